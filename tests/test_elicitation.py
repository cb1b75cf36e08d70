"""The prompts: what each stage asks and shows, and that chat templates and plain text can take them."""

import pytest

from toolkit.errors import CalibrantError
from toolkit.questions.elicitation import ELICITATIONS, PHRASES, linguistic, plain_text, top_k
from toolkit.questions.question import OpenEnded

FRANCE = OpenEnded("france", "What is the capital of France?", ("Paris",))
CHAD = OpenEnded("chad", "What is the capital of Chad?", ("N'Djamena",))


def all_turns():
    for name, elicitation in ELICITATIONS.items():
        yield name, elicitation.ask(FRANCE)
        if elicitation.ask_again is not None:
            yield name, elicitation.ask_again(FRANCE, "Because I know it.\nAnswer: Lyon\n")


def test_stages_and_replies():
    found = {name: (one.stages, one.reply, one.second_reply) for name, one in ELICITATIONS.items()}
    assert found == {
        "one_stage": (1, "answer_probability", None),
        "top_k": (1, "guesses", None),
        "two_stage": (2, "answer", "probability"),
        "reasoning": (2, "reasoned_answer", "probability"),
        "linguistic": (1, "answer_phrase", None),
    }


def test_turns_alternate_begin_and_end_with_the_user_and_hold_the_question_once():
    for name, turns in all_turns():
        roles = [turn["role"] for turn in turns]
        assert roles in (["user"], ["user", "assistant", "user"]), name
        assert sum(FRANCE.text in turn["content"] for turn in turns) == 1
        assert all(turn["content"] == turn["content"].strip() != "" for turn in turns)
        assert not any("Paris" in turn["content"] for turn in turns)  # the right answer stays a secret


def test_nothing_of_a_question_stays_in_the_table():
    for elicitation in ELICITATIONS.values():
        france, chad = elicitation.ask(FRANCE)[0]["content"], elicitation.ask(CHAD)[0]["content"]
        assert france.replace("France", "Chad") == chad


def test_second_stage_shows_the_whole_first_reply_as_the_assistants_turn():
    for name in ("two_stage", "reasoning"):
        asked = ELICITATIONS[name].ask_again
        assert asked is not None
        first, said, second = asked(FRANCE, " I think of maps.\nAnswer: Lyon \n")
        assert first["content"] == FRANCE.text
        assert said == {"role": "assistant", "content": "I think of maps.\nAnswer: Lyon"}
        assert "Probability:" in second["content"] and "Lyon" not in second["content"]


def test_probability_is_asked_for_where_the_reply_holds_one_and_nowhere_else():
    for name, elicitation in ELICITATIONS.items():
        asks = "robab" in elicitation.ask(FRANCE)[0]["content"].replace(", ".join(PHRASES), "")
        assert asks == (elicitation.reply in ("answer_probability", "guesses")), name


@pytest.mark.parametrize("k", [1, 2, 4, 10])
def test_top_k_asks_for_k_guesses(k):
    lines = top_k(k).ask(FRANCE)[0]["content"].splitlines()[-2 * k :]
    assert [line.split(":")[0] for line in lines] == [f"{mark}{i}" for i in range(1, k + 1) for mark in "GP"]


def test_no_guess_is_refused():
    with pytest.raises(CalibrantError, match="at least 1"):
        top_k(0)


def test_phrases_are_listed_in_the_order_given():
    assert ", ".join(PHRASES) in ELICITATIONS["linguistic"].ask(FRANCE)[0]["content"]
    content = linguistic(["sure", "unsure"]).ask(FRANCE)[0]["content"]
    assert "sure, unsure" in content and not any(
        phrase in content for phrase in PHRASES if phrase != "likely"
    )


def test_plain_text_is_questions_and_answers_and_ends_where_the_reply_begins():
    turns = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "I."},
        {"role": "user", "content": "Sure?"},
    ]
    assert plain_text(turns) == "Question: Who?\nAnswer: I.\n\nQuestion: Sure?\nAnswer:"
    assert plain_text(turns[:1]) == "Question: Who?\nAnswer:"
    for _, asked in all_turns():
        assert plain_text(asked).endswith("\nAnswer:")


def test_a_chat_template_takes_all_turns(bundled):
    _, tokenizer = bundled
    for _, turns in all_turns():
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert all(turn["content"] in text for turn in turns)
