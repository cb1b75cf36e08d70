import logging
from dataclasses import replace

import pytest
from conftest import tiny_tokenizer
from tokenizers.processors import TemplateProcessing

from toolkit.errors import CalibrantError
from toolkit.models.encoding import (
    EncodedQuestion,
    encode_prompt,
    encode_question,
    encode_questions,
    encode_turns,
)
from toolkit.questions.prompts import dialogue
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference

QUESTION = MultipleChoice("capital", "What is the capital of France?", ("Rome", "Paris", "Lima"), 1)


def encode(question, tokenizer, form="cloze", style="plain", max_length=512) -> EncodedQuestion:
    return encode_question(question, tokenizer, form=form, style=style, max_length=max_length)


def choices(*options: str) -> MultipleChoice:
    return MultipleChoice("id", "Which?", options, 0)


def refusal(*arguments, **options) -> str:
    """The message with which a question is refused: one line."""
    with pytest.raises(CalibrantError) as caught:
        encode(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def texts(encoded: EncodedQuestion, tokenizer) -> list[str]:
    """The whole text of each option, from its tokens."""
    return [tokenizer.decode(encoded.prompt + option) for option in encoded.options]


def tokens(encoded: EncodedQuestion, tokenizer) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(option) for option in encoded.options]


def test_plain_cloze_reads_as_a_question_and_its_answer():
    tokenizer = tiny_tokenizer()
    encoded = encode(QUESTION, tokenizer)
    assert texts(encoded, tokenizer) == [
        f"Question: What is the capital of France?\nAnswer: {answer}" for answer in QUESTION.choices
    ]
    assert tokenizer.decode(encoded.prompt) == "Question: What is the capital of France?\nAnswer:"
    assert (encoded.id, encoded.answer, encoded.option_bytes) == ("capital", 1, [4, 5, 4])


def test_letters_are_listed_and_then_scored():
    tokenizer = tiny_tokenizer()
    encoded = encode(QUESTION, tokenizer, form="letter")
    listed = "Question: What is the capital of France?\nA. Rome\nB. Paris\nC. Lima\nAnswer: "
    assert texts(encoded, tokenizer) == [listed + letter for letter in "ABC"]
    assert encoded.option_bytes == [1, 1, 1]


def test_chat_is_a_turn_of_the_user():
    tokenizer = tiny_tokenizer()
    encoded = encode(QUESTION, tokenizer, style="chat")
    turn = "<|begin|>user\nWhat is the capital of France?<|end|>\n<|begin|>assistant\n"
    assert texts(encoded, tokenizer) == [turn + answer for answer in QUESTION.choices]


@pytest.mark.parametrize(
    ("form", "style", "end", "options"),
    [
        ("cloze", "plain", ["Answer", ":"], [["ĠRome"], ["ĠParis"], ["ĠLima"]]),
        ("letter", "plain", ["Answer", ":"], [["ĠA"], ["ĠB"], ["ĠC"]]),
        ("cloze", "chat", ["istant", "Ċ"], [["Rome"], ["Paris"], ["L", "ima"]]),
        ("letter", "chat", ["istant", "Ċ"], [["A"], ["B"], ["C"]]),
    ],
)
def test_bundled_tokenizer(bundled, form, style, end, options):
    tokenizer = bundled[1]
    encoded = encode(QUESTION, tokenizer, form, style)
    assert tokenizer.convert_ids_to_tokens(encoded.prompt)[-2:] == end
    assert tokens(encoded, tokenizer) == options
    starts = encoded.prompt.count(tokenizer.bos_token_id)
    assert starts == (3 if style == "chat" else 0)  # of system, user and assistant


def test_a_letter_after_a_space_a_line_break_or_nothing(bundled):
    """The token of "A" depends on what stands before it, so both are tokenised as one text."""
    tokenizer = bundled[1]
    template = tokenizer.chat_template
    asked = [{"role": "user", "content": f"{QUESTION.text}\nA. Rome\nB. Paris\nC. Lima"}]
    found = {}
    try:
        for end in (" ", "\n", ""):
            tokenizer.chat_template = "{{ messages[0]['content'] }}<|im_end|>" + end
            encoded = encode(QUESTION, tokenizer, "letter", "chat")
            for letter, option in zip("ABC", encoded.options, strict=True):
                whole = tokenizer.apply_chat_template(asked, tokenize=False)
                assert encoded.prompt + option == tokenizer(whole + letter).input_ids
            found[end] = tokens(encoded, tokenizer)[0]
    finally:
        tokenizer.chat_template = template
    assert found == {" ": ["ĠA"], "\n": ["A"], "": ["A"]}


def test_prompt_and_option_may_share_a_token():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }} th"
    encoded = encode(choices("e", "x"), tokenizer, style="chat")
    assert texts(encoded, tokenizer) == ["Which? the", "Which? thx"]
    assert tokens(encoded, tokenizer) == [["Ġthe"], ["Ġ", "th", "x"]]
    assert tokenizer.decode(encoded.prompt) == "Which?"


def test_options_that_begin_with_one_another_keep_all_their_tokens():
    tokenizer = tiny_tokenizer()
    options = ("the", "the and", "the andes", "th")
    encoded = encode(choices(*options), tokenizer)
    assert tuple(tokenizer.decode(option) for option in encoded.options) == tuple(f" {o}" for o in options)
    assert len({tuple(option) for option in encoded.options}) == 4


def test_the_shared_prompt_holds_nothing_of_the_options():
    """All options begin with the same tokens, which are theirs and not the prompt's."""
    tokenizer = tiny_tokenizer()
    encoded = encode(choices("the é", "the è"), tokenizer)
    assert tokenizer.decode(encoded.prompt) == "Question: Which?\nAnswer:"
    assert encoded.options[0][:-1] == encoded.options[1][:-1]  # é and è differ in their second byte only


@pytest.mark.parametrize("form", ["cloze", "letter"])
@pytest.mark.parametrize("style", ["plain", "chat"])
def test_any_script(form, style):
    options = ("القاهرة", "ירושלים", "東京", "👩\u200d👩\u200d👧", "e\u0301")
    question = MultipleChoice("id", "ما عاصمة مصر؟ 🇪🇬", options, 0)
    tokenizer = tiny_tokenizer()
    encoded = encode(question, tokenizer, form, style)
    for text, choice, letter in zip(texts(encoded, tokenizer), question.choices, "ABCDE", strict=True):
        assert question.text in text
        assert text.endswith(choice if form == "cloze" else letter)
    assert encoded.option_bytes == ([14, 14, 6, 18, 3] if form == "cloze" else [1] * 5)


def test_special_tokens_come_once():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.bos_token_id)]
    )
    plain, chat = (encode(QUESTION, tokenizer, style=style) for style in ("plain", "chat"))
    assert plain.prompt[0] == chat.prompt[0] == tokenizer.bos_token_id
    assert plain.prompt.count(tokenizer.bos_token_id) == 1
    assert chat.prompt.count(tokenizer.bos_token_id) == 2  # one a turn: the user's, the assistant's
    assert all(tokenizer.bos_token_id not in option for option in plain.options + chat.options)


def test_packed_length_counts_what_a_packed_row_takes():
    assert EncodedQuestion("id", [5, 6, 7], [[1], [2, 3], [4, 5, 6, 7]], 0, [1, 1, 1]).packed_length == 7


def test_refuses_a_question_longer_than_the_context(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = tiny_tokenizer()
    encoded = encode(QUESTION, tokenizer)
    longest = len(encoded.prompt) + max(map(len, encoded.options))
    assert encode(QUESTION, tokenizer, max_length=longest) == encoded
    message = refusal(QUESTION, tokenizer, max_length=longest - 1)
    assert "'capital'" in message and f"{longest} tokens" in message and str(longest - 1) in message
    far = MultipleChoice("far", "x" * 600, ("a", "b"), 0)
    assert "'far'" in refusal(far, tokenizer)
    assert not caplog.records  # the tokenizer's own warning would say it a second time


def test_refuses_chat_without_a_template():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    assert "style plain" in refusal(QUESTION, tokenizer, style="chat")
    encode(QUESTION, tokenizer, style="plain")


@pytest.mark.parametrize(
    ("style", "whole"),
    [
        ("plain", "Question: What is the capital of France?\nAnswer: Paris\n"),
        (
            "chat",
            "<|begin|>user\nWhat is the capital of France?<|end|>\n<|begin|>assistant\nParis<|end|>",
        ),
    ],
)
def test_an_open_ended_question_has_its_preferred_answer_and_where_it_ends(style, whole):
    tokenizer = tiny_tokenizer()
    question = OpenEnded("open", "What is the capital of France?", ("Paris", "Lutetia"))
    encoded = encode(question, tokenizer, style=style)
    assert texts(encoded, tokenizer) == [whole] and encoded.answer == 0
    prompt = encode_prompt(question, tokenizer, style=style, max_length=512)
    assert encoded.prompt == prompt[: len(encoded.prompt)]
    assert whole.startswith(tokenizer.decode(prompt)) and "Paris" not in tokenizer.decode(prompt)
    with pytest.raises(CalibrantError, match=f"'open' takes {len(prompt)} tokens"):
        encode_prompt(question, tokenizer, style=style, max_length=len(prompt) - 1)


def test_a_conversation_ends_where_the_reply_begins():
    tokenizer = tiny_tokenizer()
    turns = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "Here."},
        {"role": "user", "content": "Sure?"},
    ]

    def text():
        return tokenizer.decode(encode_turns(turns, tokenizer, name="one", max_length=100))

    assert text() == (
        "<|begin|>user\nWhere?<|end|>\n<|begin|>assistant\nHere.<|end|>\n"
        "<|begin|>user\nSure?<|end|>\n<|begin|>assistant\n"
    )
    tokenizer.chat_template = None
    assert text() == "Question: Where?\nAnswer: Here.\n\nQuestion: Sure?\nAnswer:"
    with pytest.raises(CalibrantError, match="question 'one' takes"):
        encode_turns(turns, tokenizer, name="one", max_length=5)


def test_refuses_more_options_than_letters():
    many = choices(*map(str, range(27)))
    assert "form cloze" in refusal(many, tiny_tokenizer(), form="letter")
    assert len(encode(many, tiny_tokenizer()).options) == 27


def test_many_questions_keep_their_order():
    tokenizer = tiny_tokenizer()
    questions = [QUESTION, choices("a", "b"), choices("c", "d", "e")]
    encoded = encode_questions(questions, tokenizer, style="plain", max_length=512)
    assert encoded == [encode(question, tokenizer) for question in questions]


# --- preferences --------------------------------------------------------------------------------

PAIR = Preference("pair", "Is it so?", "It is indeed.", "no")
DIALOGUE = "System: Be kind.\n\nHuman: Hi\n\nAssistant: Yes?\nWell?\n\nHuman: Who is it?\n\nAssistant:"


@pytest.mark.parametrize("form", ["cloze", "letter"])
def test_a_preference_in_chat_ends_where_a_turn_ends(form):
    tokenizer = tiny_tokenizer()
    encoded = encode(PAIR, tokenizer, form, "chat")
    turn = "<|begin|>user\nIs it so?<|end|>\n<|begin|>assistant\n"
    assert tokenizer.decode(encoded.prompt) == turn
    assert [tokenizer.decode(o) for o in encoded.options] == ["It is indeed.<|end|>", "no<|end|>"]
    assert all(option[-1] == tokenizer.eos_token_id for option in encoded.options)
    assert (encoded.id, encoded.answer, encoded.option_bytes) == ("pair", 0, [13, 2])


def test_a_plain_preference_reads_as_a_question_and_its_answer():
    tokenizer = tiny_tokenizer()
    encoded = encode(PAIR, tokenizer)
    beginning = "Question: Is it so?\nAnswer: "
    assert texts(encoded, tokenizer) == [beginning + "It is indeed.", beginning + "no"]


def test_a_dialogue_becomes_turns_of_the_template_or_stays_as_it_is():
    tokenizer = tiny_tokenizer()
    pair = Preference("turns", f"\n{DIALOGUE} ", "Me.", "You.")
    encoded = encode(pair, tokenizer, style="chat")
    turns = (("system", "Be kind."), ("user", "Hi"), ("assistant", "Yes?\nWell?"), ("user", "Who is it?"))
    prompt = "".join(f"<|begin|>{role}\n{text}<|end|>\n" for role, text in turns) + "<|begin|>assistant\n"
    assert texts(encoded, tokenizer) == [f"{prompt}{answer}<|end|>" for answer in ("Me.", "You.")]
    plain = encode(pair, tokenizer)
    assert texts(plain, tokenizer) == [f"\n{DIALOGUE} {answer}" for answer in ("Me.", "You.")]


@pytest.mark.parametrize(
    "text",
    [
        "Who?",
        "Human: Who?",  # whose turn is it?
        "Human: Who?\n\nAssistant: I.",
        "Human: Who?\nAssistant:",  # no empty line
        "So:\n\nHuman: Who?\n\nAssistant:",
        "Human:\n\nAssistant:",
        "Human: Who?\n\nHuman: I say!\n\nAssistant:",
        "System: Be kind.\n\nAssistant:",
        "Human: Who?\n\nSystem: Be kind.\n\nAssistant:",
        "System:",
        "Assistant:",
    ],
)
def test_any_other_text_is_one_turn_as_it_stands(text):
    assert dialogue(text) is None
    encoded = encode(Preference("id", text, "a", "b"), tokenizer := tiny_tokenizer(), style="chat")
    assert tokenizer.decode(encoded.prompt) == f"<|begin|>user\n{text}<|end|>\n<|begin|>assistant\n"
    asked = texts(encode(Preference("id", text, "a", "b"), tokenizer), tokenizer)
    assert asked == [f"Question: {text}\nAnswer: {answer}" for answer in "ab"]


def test_a_question_with_options_is_no_dialogue_and_has_no_end():
    tokenizer = tiny_tokenizer()
    encoded = encode(MultipleChoice("id", DIALOGUE, ("a", "b"), 1), tokenizer, style="chat")
    assert texts(encoded, tokenizer)[0] == f"<|begin|>user\n{DIALOGUE}<|end|>\n<|begin|>assistant\na"


def test_preferences_of_the_bundled_template(bundled):
    tokenizer = bundled[1]
    for pair in (PAIR, Preference("turns", DIALOGUE, "Me.", "You.")):
        encoded = encode(pair, tokenizer, style="chat", max_length=2048)
        turns = [{"role": "user", "content": PAIR.text}] if pair is PAIR else dialogue(DIALOGUE) or []
        for answer, option in zip((pair.chosen, pair.rejected), encoded.options, strict=True):
            whole = tokenizer.apply_chat_template(
                [*turns, {"role": "assistant", "content": answer}], tokenize=False
            )
            assert tokenizer.decode(encoded.prompt + option) + "\n" == whole
            assert tokenizer.decode(option) == answer + "<|im_end|>"
            assert option.count(tokenizer.eos_token_id) == 1


@pytest.mark.parametrize(
    ("after", "end"),
    [
        ("<|end|>", "<|end|>"),
        (" <|end|>\n", "<|end|>"),
        ("\n", ""),
        ("", ""),
        ("[/turn]", ""),
        ("<|ender|>", "<|ender|>"),
    ],
)
def test_the_end_of_a_turn_is_what_the_template_writes(after, end):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|ender|>"]} if "ender" in after else {})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] | trim }}" + after + "{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    encoded = encode(PAIR, tokenizer, style="chat")
    prompt = f"user: Is it so?{after}assistant: "
    assert texts(encoded, tokenizer) == [f"{prompt}It is indeed.{end}", f"{prompt}no{end}"]


def test_refuses_a_preference_longer_than_the_context_or_refused_by_the_template():
    tokenizer = tiny_tokenizer()
    longest = max(len(text) for text in map(tokenizer.encode, texts(encode(PAIR, tokenizer), tokenizer)))
    assert f"question 'pair' takes {longest} tokens" in refusal(PAIR, tokenizer, max_length=longest - 1)
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role.') }}{% endif %}"
    )
    message = refusal(Preference("turns", DIALOGUE, "a", "b"), tokenizer, style="chat")
    assert message.startswith("the chat template refuses the turns of question 'turns' (No system role); use")


def test_right_only_keeps_the_reference_of_the_right_option():
    question = EncodedQuestion("id", [5], [[1], [2, 3]], 1, [1, 2], [-1.0, -2.0])
    assert question.right_only() == EncodedQuestion("id", [5], [[2, 3]], 0, [2], [-2.0])
    assert replace(question, reference=None).right_only().reference is None
