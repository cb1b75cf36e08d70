from collections import Counter

import pytest

from toolkit.errors import CalibrantError
from toolkit.questions.heldout import check_disjoint, hold_out
from toolkit.questions.question import MultipleChoice, OpenEnded
from toolkit.questions.sources import load_questions


def choice(text: str, *entities: str, options=("a", "b")) -> MultipleChoice:
    return MultipleChoice(f"{text}/{entities}", text, options, 0, "", entities)


def numbered(n: int) -> list[MultipleChoice]:
    return [choice(f"Question {i}?") for i in range(n)]


def test_every_question_is_on_one_side_and_in_its_order():
    questions = numbered(40)
    kept, held = hold_out(questions, 0.25, seed=0)
    assert (len(kept), len(held)) == (30, 10)
    assert [q for q in questions if q in kept] == kept
    assert [q for q in questions if q in held] == held
    assert not set(kept) & set(held)


def test_the_seed_decides():
    questions = numbered(40)
    assert hold_out(questions, 0.5, seed=1) == hold_out(questions, 0.5, seed=1)
    assert hold_out(questions, 0.5, seed=1) != hold_out(questions, 0.5, seed=2)


def test_the_order_of_the_questions_decides_nothing():
    questions = numbered(40)
    kept, held = hold_out(questions[::-1], 0.25, seed=3)
    assert (kept[::-1], held[::-1]) == hold_out(questions, 0.25, seed=3)


def test_questions_that_name_the_same_things_stay_together():
    things = [("country:KE",), ("country:UG",), ("country:KE", "country:UG"), *((f"{i}",) for i in range(17))]
    questions = [choice(f"What is the {what} of {e}?", *e) for e in things for what in ("capital", "code")]
    kept, held = hold_out(questions, 0.25, seed=0)
    assert (len(kept), len(held)) == (30, 10)
    assert not {q.entities for q in kept} & {q.entities for q in held}


def test_the_same_text_is_on_one_side():
    questions = [choice(f"Question {i % 10}?", options=("a", f"b{i}")) for i in range(30)]
    kept, held = hold_out(questions, 0.5, seed=0)
    assert not {q.text for q in kept} & {q.text for q in held}


def test_worldfacts_are_held_out_in_whole_groups():
    """Four questions share their options; in a part of them, an option would be right more often than not."""
    questions = list(load_questions("worldfacts/chemistry", "train"))
    for side in hold_out(questions, 0.25, seed=0):
        asked = [q for q in side if isinstance(q, MultipleChoice)]
        groups = Counter((q.subject, frozenset(q.choices)) for q in asked)
        assert len(groups) > 10 and set(groups.values()) == {4}


def test_open_worldfacts_are_held_out_by_entity():
    questions = list(load_questions("worldfacts/capitals/open", "train"))
    kept, held = hold_out(questions, 0.25, seed=0)
    assert 0.2 < len(held) / len(questions) < 0.3
    assert not {e for q in kept for e in q.entities} & {e for q in held for e in q.entities}


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_refuses_a_share_that_is_none(share):
    with pytest.raises(CalibrantError, match="--data.heldout_share between 0 and 1"):
        hold_out(numbered(10), share, seed=0)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_refuses_an_empty_side(share):
    with pytest.raises(CalibrantError, match="leaves one side empty"):
        hold_out(numbered(10), share, seed=0)


def test_refuses_sets_that_share_a_question():
    one, other = numbered(5), [*numbered(8)[5:], choice("Question 3?")]
    with pytest.raises(CalibrantError) as caught:
        check_disjoint(one, other, "--data.train and --data.heldout")
    message = str(caught.value)
    assert message.startswith("--data.train and --data.heldout share 1 questions, such as 'Question 3?'")
    assert "\n" not in message


def test_the_same_text_with_other_options_is_another_question():
    check_disjoint([choice("Which?")], [choice("Which?", options=("a", "c"))], "these")
    check_disjoint([choice("Which?")], [OpenEnded("id", "Which?", ("a",))], "these")


def test_an_id_makes_no_difference():
    open_ended = [OpenEnded(name, "Which?", ("a",)) for name in ("one", "two")]
    with pytest.raises(CalibrantError, match="share 1"):
        check_disjoint(open_ended[:1], open_ended[1:], "these")
