"""Questions as token ids: a prompt that all options share, and the tokens of each option."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from os.path import commonprefix

from transformers import PreTrainedTokenizerBase

from toolkit.errors import CalibrantError
from toolkit.questions.prompts import Form, Style, answer_texts, plain_prompt, question_text
from toolkit.questions.question import MultipleChoice, Question


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """One multiple-choice question as token ids.

    Attributes:
        id: The question's id.
        prompt: Token ids that every option continues.
        options: Token ids of each option, at least one each.
        answer: Index of the right option.
        option_bytes: Length of each option's text in UTF-8 bytes, for per-byte scores.
    """

    id: str
    prompt: list[int]
    options: list[list[int]]
    answer: int
    option_bytes: list[int]

    @property
    def packed_length(self) -> int:
        """Number of input tokens of the packed sequence; an option's last token is never an input."""
        return len(self.prompt) + sum(len(option) - 1 for option in self.options)

    def right_only(self) -> "EncodedQuestion":
        """Returns the question with its right option alone."""
        right = self.answer
        return replace(self, options=[self.options[right]], answer=0, option_bytes=[self.option_bytes[right]])


def encode_question(
    question: Question,
    tokenizer: PreTrainedTokenizerBase,
    *,
    form: Form = "cloze",
    style: Style = "chat",
    max_length: int,
) -> EncodedQuestion:
    """Encodes a question together with each of its options.

    Prompt and option are tokenised as one text, because "A" after a space, a line break or nothing can be
    three different tokens. The shared prompt is the longest run of tokens that all these texts, and the
    prompt alone, begin with.

    Args:
        question: A multiple-choice question.
        tokenizer: The model's tokenizer.
        form: Whether the options' texts or their letters are scored.
        style: Plain text, or the tokenizer's chat template.
        max_length: The model's context, in tokens.

    Raises:
        CalibrantError: The question is open-ended or longer than the context, or the tokenizer has no chat
            template though `style` is "chat".
    """
    if not isinstance(question, MultipleChoice):
        raise CalibrantError(
            f"question {question.id!r} is open-ended; this command scores multiple choice only, so give "
            "questions with choices"
        )
    prompt, separator = _prompt(question, tokenizer, form, style)
    texts = answer_texts(question, form)
    special = style == "plain"  # a chat template writes its own special tokens
    whole = [prompt, *(prompt + separator + text for text in texts)]
    sequences = tokenizer(whole, add_special_tokens=special, verbose=False)["input_ids"]
    shared: list[int] = commonprefix(sequences)
    options = [sequence[len(shared) :] for sequence in sequences[1:]]
    longest = len(shared) + max(map(len, options))
    if longest > max_length:
        raise CalibrantError(
            f"question {question.id!r} takes {longest} tokens and the model's context holds {max_length}; "
            "shorten or remove it"
        )
    return EncodedQuestion(
        question.id, shared, options, question.answer, [len(text.encode()) for text in texts]
    )


def encode_questions(
    questions: Iterable[Question],
    tokenizer: PreTrainedTokenizerBase,
    *,
    form: Form = "cloze",
    style: Style = "chat",
    max_length: int,
) -> list[EncodedQuestion]:
    """Encodes many questions; see `encode_question`."""
    return [
        encode_question(question, tokenizer, form=form, style=style, max_length=max_length)
        for question in questions
    ]


def _prompt(
    question: MultipleChoice, tokenizer: PreTrainedTokenizerBase, form: Form, style: Style
) -> tuple[str, str]:
    """Returns the prompt's text and what stands between it and an answer."""
    if style == "plain":
        return plain_prompt(question, form), " "
    if not tokenizer.chat_template:
        raise CalibrantError("the tokenizer has no chat template; use the style plain, or give the model one")
    turns = [{"role": "user", "content": question_text(question, form)}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)), ""
