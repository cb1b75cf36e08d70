import hashlib
import json
import os
import subprocess
import sys

import pytest

from toolkit.errors import CalibrantError
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference, Question, QuestionSet

CHOICE = MultipleChoice("q", "Is it so?", ("yes", "no"), 0)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"text": " "}, "no question text; give `question` a text"),
        ({"choices": ("yes",)}, "1 option(s); give at least two"),
        ({"choices": ("yes", "")}, "an empty option; give each option a text"),
        ({"choices": ("yes", "yes")}, "the same option twice; keep one of each"),
        ({"answer": 2}, "answer 2 is not the place of an option; give a whole number from 0 to 1"),
        ({"answer": -1}, "answer -1 is not the place"),
        ({"answer": True}, "answer True is not the place"),
        ({"answer": 1.0}, "answer 1.0 is not the place"),
        ({"answer": "B"}, "answer 'B' is not the place"),
    ],
)
def test_a_faulty_multiple_choice_question_is_refused(fields, fault):
    with pytest.raises(CalibrantError) as error:
        MultipleChoice(**{"id": "q", "text": "?", "choices": ("yes", "no"), "answer": 0} | fields)
    assert str(error.value).startswith(fault)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"text": ""}, "no question text; give `question` a text"),
        ({"answers": ()}, "no accepted answer; give at least one"),
        ({"answers": ("yes", " ")}, "an empty answer; give each answer a text"),
    ],
)
def test_a_faulty_open_ended_question_is_refused(fields, fault):
    with pytest.raises(CalibrantError, match=fault):
        OpenEnded(**{"id": "q", "text": "?", "answers": ("yes",)} | fields)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"text": "\n"}, "no prompt text; give `prompt` a text"),
        ({"chosen": ""}, "an empty answer; give `chosen` and `rejected` a text"),
        ({"rejected": " "}, "an empty answer; give `chosen` and `rejected` a text"),
        ({"rejected": "yes"}, "the same answer chosen and rejected; give two different ones"),
    ],
)
def test_a_faulty_preference_is_refused(fields, fault):
    with pytest.raises(CalibrantError) as error:
        Preference(**{"id": "q", "text": "?", "chosen": "yes", "rejected": "no"} | fields)
    assert str(error.value) == fault


def numbered(n):
    return QuestionSet("s", "train", tuple(OpenEnded(str(i), "?", ("yes",)) for i in range(n)))


def test_a_sample_is_seeded_without_repeats_and_in_order():
    questions = numbered(100)
    sample = questions.sample(10, seed=3)
    places = [int(question.id) for question in sample]
    assert len(sample) == len(set(places)) == 10
    assert places == sorted(places)
    assert sample == questions.sample(10, seed=3)
    assert sample != questions.sample(10, seed=4)
    assert (sample.name, sample.split) == ("s", "train")
    assert questions.sample(100, seed=0) == questions.sample(1000, seed=1) == questions


def test_every_question_is_drawn_about_equally_often():
    drawn = [int(q.id) for seed in range(400) for q in numbered(10).sample(3, seed)]
    counts = [drawn.count(i) for i in range(10)]  # 120 expected, standard deviation 9
    assert min(counts) > 80 and max(counts) < 160


def test_the_hash_covers_every_field_and_the_order():
    other = OpenEnded("o", "Why?", ("so",))
    variants: list[tuple[Question, ...]] = [
        (CHOICE, other),
        (other, CHOICE),
        (CHOICE,),
        (MultipleChoice("r", "Is it so?", ("yes", "no"), 0), other),
        (MultipleChoice("q", "Is it so", ("yes", "no"), 0), other),
        (MultipleChoice("q", "Is it so?", ("no", "yes"), 0), other),
        (MultipleChoice("q", "Is it so?", ("yes", "no"), 1), other),
        (MultipleChoice("q", "Is it so?", ("yes", "no"), 0, "a"), other),
        (MultipleChoice("q", "Is it so?", ("yes", "no"), 0, "", ("a",)), other),
        (CHOICE, OpenEnded("o", "Why?", ("so", "or so"))),
        (Preference("q", "Is it so?", "yes", "no"),),
        (Preference("q", "Is it so?", "no", "yes"),),
        (Preference("q", "Is it so?", "yes", "no", "a"),),
    ]
    hashes = [QuestionSet("s", "test", questions).sha256 for questions in variants]
    assert len(set(hashes)) == len(variants)


def test_the_hash_is_that_of_the_questions_as_json_lines():
    row = {"answer": 0, "choices": ["yes", "no"], "entities": [], "id": "q", "subject": "",
           "text": "Is it so?"}  # fmt: skip
    line = json.dumps(row) + "\n"
    assert QuestionSet("s", "test", (CHOICE,)).sha256 == hashlib.sha256(line.encode()).hexdigest()


def test_the_hash_of_preferences_is_that_of_json_lines_too():
    row = {
        "chosen": "yes",
        "entities": [],
        "id": "q",
        "rejected": "n\u00f6",
        "subject": "s",
        "text": "Is it?",
    }
    pairs = QuestionSet("s", "test", (Preference("q", "Is it?", "yes", "nö", "s"),))
    assert pairs.sha256 == hashlib.sha256((json.dumps(row) + "\n").encode()).hexdigest()


def test_the_hash_does_not_depend_on_the_process():
    code = (
        "from toolkit.questions.question import *\n"
        "print(QuestionSet('s', 'test', (OpenEnded('é', 'Wörld?', ('a', 'b')),)).sha256)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
