"""Questions as token ids: a prompt that all options share, and the tokens of each option."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from toolkit.errors import CalibrantError, first_line
from toolkit.questions.elicitation import plain_text
from toolkit.questions.prompts import Form, Style, Turn, answer_texts, chat_turns, plain_prompt
from toolkit.questions.question import MultipleChoice, OpenEnded, Question


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """One question with its answers as token ids.

    Attributes:
        id: The question's id.
        prompt: Token ids that every option continues.
        options: Token ids of each option, at least one each.
        answer: Index of the right option; 0 where a question has a preferred answer instead.
        option_bytes: Length of each option's text in UTF-8 bytes, for per-byte scores.
        reference: Each option's score under a reference model, in nats, where a loss needs it.
    """

    id: str
    prompt: list[int]
    options: list[list[int]]
    answer: int
    option_bytes: list[int]
    reference: list[float] | None = None

    @property
    def packed_length(self) -> int:
        """Number of input tokens of the packed sequence; an option's last token is never an input."""
        return len(self.prompt) + sum(len(option) - 1 for option in self.options)

    def right_only(self) -> "EncodedQuestion":
        """Returns the question with its right option alone."""
        right = self.answer
        return replace(
            self,
            options=[self.options[right]],
            answer=0,
            option_bytes=[self.option_bytes[right]],
            reference=None if self.reference is None else [self.reference[right]],
        )


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

    A preference has its chosen and its rejected answer for options, in either form, and an open-ended
    question its preferred answer alone. Where to stop is a part of such answers: in the style "chat" they end
    with the token that ends an assistant's turn in the template, if there is one, and in the style "plain"
    those of open-ended questions end with a line break. Such a question is a user's turn, or the turns of a
    dialogue; see `toolkit.questions.prompts.dialogue`.

    Args:
        question: A question of any kind.
        tokenizer: The model's tokenizer.
        form: Whether the options' texts or their letters are scored.
        style: Plain text, or the tokenizer's chat template.
        max_length: The model's context, in tokens.

    Raises:
        CalibrantError: The question is longer than the context, or the tokenizer has no chat template though
            `style` is "chat", or one that refuses these turns.
    """
    prompt, separator = _prompt(question, tokenizer, form, style)
    texts = answer_texts(question, form)
    end = _end_of_answer(question, tokenizer, style)
    whole = [prompt, *(prompt + separator + text + end for text in texts)]
    sequences = _tokenise(whole, tokenizer, style)
    shared = list(commonprefix(sequences))
    options = [sequence[len(shared) :] for sequence in sequences[1:]]
    _check_length(question.id, len(shared) + max(map(len, options)), max_length)
    answer = question.answer if isinstance(question, MultipleChoice) else 0
    return EncodedQuestion(question.id, shared, options, answer, [len(text.encode()) for text in texts])


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


def encode_prompt(
    question: Question, tokenizer: PreTrainedTokenizerBase, *, style: Style = "chat", max_length: int
) -> list[int]:
    """Returns the token ids after which the model writes its answer to an open-ended question.

    Raises:
        CalibrantError: As `encode_question`; `max_length` includes the answer's tokens.
    """
    prompt, _ = _prompt(question, tokenizer, "cloze", style)
    (ids,) = _tokenise([prompt], tokenizer, style)
    _check_length(question.id, len(ids), max_length)
    return ids


def encode_turns(
    turns: Sequence[Turn], tokenizer: PreTrainedTokenizerBase, *, name: str, max_length: int
) -> list[int]:
    """Returns the token ids of a conversation after which the assistant's turn begins.

    It is written by the chat template or, where the tokenizer has none, as `plain_text` does.

    Args:
        turns: The turns so far.
        tokenizer: The model's tokenizer.
        name: What a message calls the conversation: the question's id.
        max_length: The model's context, in tokens, which the reply is a part of.

    Raises:
        CalibrantError: They are longer than the context, or the template refuses them.
    """
    style: Style = "chat" if tokenizer.chat_template else "plain"
    text = _rendered(name, turns, tokenizer, True) if style == "chat" else plain_text(turns)
    (ids,) = _tokenise([text], tokenizer, style)
    _check_length(name, len(ids), max_length)
    return ids


def _tokenise(texts: list[str], tokenizer: PreTrainedTokenizerBase, style: Style) -> list[list[int]]:
    special = style == "plain"  # a chat template writes its own special tokens
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"]
    return ids


def _check_length(name: str, length: int, max_length: int) -> None:
    if length > max_length:
        raise CalibrantError(
            f"question {name!r} takes {length} tokens and the model's context holds {max_length}; "
            "shorten or remove it"
        )


def _prompt(
    question: Question, tokenizer: PreTrainedTokenizerBase, form: Form, style: Style
) -> tuple[str, str]:
    """Returns the prompt's text and what stands between it and an answer."""
    if style == "plain":
        return plain_prompt(question, form), " "
    if not tokenizer.chat_template:
        raise CalibrantError("the tokenizer has no chat template; use the style plain, or give the model one")
    return _rendered(question.id, chat_turns(question, form), tokenizer, True), ""


def _end_of_answer(question: Question, tokenizer: PreTrainedTokenizerBase, style: Style) -> str:
    """Returns what ends an answer of the kind that the model learns to end, or "" if nothing does."""
    if isinstance(question, MultipleChoice):
        return ""
    if style == "plain":
        return "\n" if isinstance(question, OpenEnded) else ""
    return _end_of_turn(question, tokenizer)


def _end_of_turn(question: Question, tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the token that the chat template writes after an assistant's turn, or "" if none."""
    mark = "The answer."  # no template makes anything else of it
    turns = [*chat_turns(question, "cloze"), {"role": "assistant", "content": mark}]
    after = _rendered(question.id, turns, tokenizer, False).rpartition(mark)[2].lstrip()
    written = [token for token in tokenizer.get_added_vocab() if after.startswith(token)]
    return max(written, key=len, default="")


def _rendered(name: str, turns: Sequence[Turn], tokenizer: PreTrainedTokenizerBase, open_turn: bool) -> str:
    """Returns turns as the chat template writes them, with the beginning of the assistant's if asked for."""
    try:
        return str(
            tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=open_turn)
        )
    except TemplateError as error:
        raise CalibrantError(
            f"the chat template refuses the turns of question {name!r} ({first_line(error)}); use the "
            "style plain, or remove it"
        ) from error
