"""Data that teaches stated confidence, made of graded answers."""

import json

import numpy as np
import pandas as pd
import pytest
from parsing import SaySettings, parse_say
from say import say

from toolkit.confidence.stated import stated
from toolkit.errors import CalibrantError
from toolkit.evaluation.said import frequencies, said_rows
from toolkit.models.encoding import encode_prompt, encode_turns
from toolkit.questions.elicitation import ELICITATIONS
from toolkit.questions.jsonl import read_jsonl
from toolkit.questions.question import OpenEnded


def frame(count=40, seed=0):
    """Answers of which those with more confidence are right more often."""
    random = np.random.default_rng(seed)
    confidence = random.random(count).round(2)
    correct = random.random(count) < confidence
    return pd.DataFrame(
        {
            "question": [f"What is {i}?" for i in range(count)],
            "accepted": [[f"it's {i}"] for i in range(count)],
            "answer": [f"number {i}" for i in range(count)],
            "correct": correct,
            "samples": [["a", f"most {i}", f"most {i}"] for i in range(count)],
            "clusters": [[0, 1, 1]] * count,
            "product": confidence,
            "product_correct": correct,
            "sem1": confidence,
            "sem1_correct": ~correct,
        }
    )


def test_frequencies_are_those_of_each_bin():
    confidence = np.array([0.1, 0.9, 0.2, 0.8, 0.3, 0.7])
    correct = np.array([False, True, True, True, False, True])
    assert frequencies(confidence, correct, 2).tolist() == pytest.approx([0.35, 1, 0.35, 1, 0.35, 1])
    assert frequencies(confidence, correct, 1).tolist() == pytest.approx([0.65] * 6)
    assert frequencies(confidence, correct, 6).tolist() == correct.tolist()


def test_equal_confidences_are_told_the_same_whatever_their_order():
    random = np.random.default_rng(1)
    confidence = random.choice([0.0, 0.02, 0.5, 1.0], size=300, p=[0.6, 0.1, 0.2, 0.1])
    correct = random.random(300) < confidence
    found = frequencies(confidence, correct)
    for value in np.unique(confidence):
        (said,) = set(found[confidence == value])  # and so the mean of each is a mean over whole bins
        assert abs(said - correct[confidence == value].mean()) <= 0.03 or value == 0.02
    order = random.permutation(300)
    assert (frequencies(confidence[order], correct[order]) == found[order]).all()


def test_the_words_follow_the_frequencies():
    answers = frame(400)
    made = said_rows(answers, "product")
    replies = [stated(ELICITATIONS["two_stage"], ["4", row["answers"][0]]) for row in made.rows]
    said = np.array([one.probability for (one,) in replies])
    assert sum(made.probabilities.values()) == len(said) == 400 and made.skipped == 0
    for value, count in made.probabilities.items():
        chosen = np.isclose(said, value)
        assert chosen.sum() == count and abs(answers["correct"][chosen].mean() - value) <= 0.025 + 1e-9


def test_a_row_asks_what_an_evaluation_asks(bundled, tmp_path):
    tokenizer = bundled[1]
    path = tmp_path / "said.jsonl"
    frame().to_parquet(tmp_path / "answers.parquet")
    assert "0 answers left out" in say(SaySettings(tmp_path, path, "product", answers=False))
    for number, question in enumerate(read_jsonl(path)):
        asked = OpenEnded("id", f"What is {number}?", ("unknown",))
        ask_again = ELICITATIONS["two_stage"].ask_again
        assert ask_again is not None
        turns = ask_again(asked, f"number {number}")
        wanted = encode_turns(turns, tokenizer, name="id", max_length=500)
        assert encode_prompt(question, tokenizer, style="chat", max_length=500) == wanted


def test_semantic_confidence_is_about_the_most_frequent_sample():
    greedy, sampled = (said_rows(frame(), kind).rows[7]["question"] for kind in ("product", "sem1"))
    assert "Assistant: number 7\n" in greedy and "Assistant: most 7\n" in sampled


def test_what_is_no_dialogue_or_has_no_confidence_is_left_out_and_counted():
    answers = frame()
    answers.loc[3, "answer"] = " "
    answers.loc[4, "answer"] = "it is\n\nHuman: what?"
    answers.loc[5, "product"] = np.nan
    answers.loc[6, "answer"] = "Human: it is 6"  # a label within a turn is text
    made = said_rows(answers, "product")
    asked = " ".join(row["question"] for row in made.rows)
    assert made.skipped == 3 and len(made.rows) == 37
    assert all((f"What is {i}?" in asked) == (i not in (3, 4, 5)) for i in range(40))


def test_questions_with_their_answers_stand_beside():
    answers = frame()
    answers.loc[3, "answer"] = ""
    plain, kept = (said_rows(answers, "product", keep=keep) for keep in (False, True))
    assert (kept.skipped, kept.probabilities) == (1, plain.probabilities)
    assert kept.rows[: len(plain.rows)] == plain.rows
    beside = [(row["question"], *row["answers"]) for row in kept.rows[len(plain.rows) :]]
    assert beside == [(f"What is {i}?", f"number {i}") for i in range(40) if i != 3]


def test_equal_rows_are_one():
    answers = pd.concat([frame(), frame()], ignore_index=True)
    assert len(said_rows(answers, "product").rows) == 40


def test_the_command_line(tmp_path, capsys):
    assert parse_say(["a", "b"]) == SaySettings(*map(type(tmp_path), ("a", "b")))
    assert parse_say(["a", "b", "--confidence", "product", "--bins", "5"]).bins == 5
    with pytest.raises(SystemExit):
        parse_say(["a", "b", "--bins", "0"])
    assert "bins" in capsys.readouterr().err


def test_faults_are_one_line_and_leave_the_file(tmp_path):
    path = tmp_path / "said.jsonl"
    path.write_text("kept")
    with pytest.raises(CalibrantError, match=r"has no answers\.parquet; name the folder"):
        say(SaySettings(tmp_path, path))
    (tmp_path / "answers.parquet").write_text("no parquet")
    with pytest.raises(CalibrantError, match="is damaged"):
        say(SaySettings(tmp_path, path))
    frame(9).to_parquet(tmp_path / "answers.parquet")
    with pytest.raises(CalibrantError, match="choose one of product, sem1"):
        say(SaySettings(tmp_path, path, "p_true"))
    with pytest.raises(CalibrantError, match="9 answers are too few for 10 bins"):
        say(SaySettings(tmp_path, path, "product"))
    assert path.read_text() == "kept"
    say(SaySettings(tmp_path, path, "sem1", bins=9))
    assert [json.loads(line)["answers"] for line in path.read_text().splitlines()]
