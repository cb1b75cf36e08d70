"""What replies state: real ones against what reading them gives, and hand-written adversarial ones.

`data/stated.jsonl` has replies of the bundled model to all elicitations, greedy and at temperatures 0.6 to 1,
by chat template and as plain text. What each states was decided by reading, before any parser saw it:

- The probability is the one that the reply gives for its answer being right, or null; in a second stage a
  number that is called the answer is that, for nothing else was asked.
- The answer is the words that name it, or null where the reply holds a probability, a placeholder, a question
  or the model on itself alone. Words without sense that stand in the place of an answer are one.

Replies that reading left in doubt, by contradicting themselves or as formulas, are not in the file.
"""

import json
import math
import re
from pathlib import Path

import pytest

from toolkit.confidence.stated import PARSERS, Stated, stated
from toolkit.errors import CalibrantError
from toolkit.questions.elicitation import ELICITATIONS, top_k

DATA = Path(__file__).parent / "data" / "stated.jsonl"
REPLIES = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
SHARE = 0.98


def probability(text):
    """What a reply to the second stage states."""
    (found,) = PARSERS["probability"](text)
    assert found.answer is None and found.phrase is None
    return found.probability


def one_stage(text):
    (found,) = stated(ELICITATIONS["one_stage"], [text])
    return found.answer, found.probability


def linguistic(text):
    (found,) = stated(ELICITATIONS["linguistic"], [text])
    return found.answer, found.phrase, found.probability


def guesses(text):
    return [(guess.answer, guess.probability) for guess in stated(top_k(3), [text])]


def parsed(reply):
    """Probabilities and answers by the parser and by reading, as lists."""
    name, _, second = reply["elicitation"].partition("/")
    elicitation = ELICITATIONS[name]
    kind = elicitation.second_reply if second else elicitation.reply
    assert kind is not None
    found = PARSERS[kind](reply["text"])
    many = isinstance(reply["probability"], list)
    read = zip(
        *((reply[key] if many else [reply[key]]) for key in ("probability", "answer")),
        strict=True,
    )
    return [(one.probability, one.answer) for one in found], list(read)


def words(text):
    return " ".join(re.findall(r"[\w.+$%-]+", text.lower())).rstrip(".")


def same_probability(found, read):
    return found is read if found is None or read is None else math.isclose(found, read, abs_tol=1e-12)


def same_answer(found, read):
    return found is read if found is None or read is None else words(read) in words(found)


def test_the_replies_are_many_and_varied():
    assert len(REPLIES) >= 450
    assert len({(reply["elicitation"], reply["text"]) for reply in REPLIES}) == len(REPLIES)
    kinds = {*ELICITATIONS, "two_stage/2", "reasoning/2"}
    assert {reply["elicitation"] for reply in REPLIES} == kinds
    stating = [reply for reply in REPLIES if reply["probability"] not in (None, [])]
    assert 150 <= len(stating) <= 300  # what is stated and what is missing both count


@pytest.mark.parametrize(("column", "same"), [(0, same_probability), (1, same_answer)])
def test_real_replies_are_parsed_as_they_read(column, same):
    right = 0
    for reply in REPLIES:
        found, read = parsed(reply)
        right += len(found) == len(read) and all(
            same(one[column], other[column]) for one, other in zip(found, read, strict=True)
        )
    assert right / len(REPLIES) >= SHARE


def test_no_probability_is_invented_in_real_replies():
    for reply in REPLIES:
        found, read = parsed(reply)
        assert len(found) <= len(read), reply
        for one, other in zip(found, read, strict=False):
            assert one[0] is None or other[0] is not None, reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.8", 0.8),
        (" .75\n", 0.75),
        ("0,8", 0.8),
        ("0,125", 0.125),
        ("0.0", 0),
        ("1", 1),
        ("100", 1),
        ("85", 0.85),
        ("80%", 0.8),
        ("95 %", 0.95),
        ("12,5 %", 0.125),
        ("0%", 0),
        ("about 80 percent", 0.8),
        ("80 per cent", 0.8),
        ("eighty percent", 0.8),
        ("eighty-five percent", 0.85),
        ("Twenty five per cent", 0.25),
        ("one hundred percent", 1),
        ("a hundred percent", 1),
        ("8/10", 0.8),
        ("8 / 10", 0.8),
        ("8 out of 10", 0.8),
        ("nine out of ten", 0.9),
        ("7.5/10", 0.75),
        ("1 in 4", 0.25),
        ("3/4", 0.75),
        ("¾", 0.75),
        ("1.0/1.0", 1),
        ("50/50", 0.5),
        ("fifty-fifty", 0.5),
        ("８５％", 0.85),
        ("０．８", 0.8),
        ("٨٠٪", 0.8),
        ("~0.9", 0.9),
        ("≈ 90%", 0.9),
        ("<0.8>", 0.8),
        ("**0.85**", 0.85),
        ("`0.85`", 0.85),
        ("85\\%", 0.85),
        ('"0.7"', 0.7),
        ("between 70 and 80%", 0.75),
        ("70-80%", 0.75),
        ("70% – 80%", 0.75),
        ("0.6 to 0.8", 0.7),
        ("over 90%", 0.9),
        ("less than 0.05", 0.05),
        ("Probability: 0.85.", 0.85),
        ("Probability:0.85", 0.85),
        ("Probability = .9", 0.9),
        ("probability is 0.3", 0.3),
        ("Probability:\n0.4", 0.4),
        ("Probability: 85", 0.85),
        ("Probability: 1", 1),
        ("Probability: 1.", 1),
        ("**Probability:** 0.85", 0.85),
        ("Confidence: 90%", 0.9),
        ("Confidence level: 90%", 0.9),
        ("My confidence is 0.8 because I know it", 0.8),
        ("Probability (0.0 to 1.0): 0.8", 0.8),
        ("Probability (0-100%): 80%", 0.8),
        ("Probability that my answer is right: 0.8", 0.8),
        ("The probability that my answer is right is 80%.", 0.8),
        ("The probability of element 79 being gold is 0.6.", 0.6),
        ("Probability: about 80 percent", 0.8),
        ("I'm 90% sure", 0.9),
        ("I am 90 % certain of it.", 0.9),
        ("It is 1969, and I am 75% confident.", 0.75),
        ("There is an 80% chance that it is 1969.", 0.8),
        ("I would say 0.8", 0.8),
        ("The answer is 0.8", 0.8),
        ("80%. The moon landing was in 1969.", 0.8),
        ("In 1969. Probability: 0.4", 0.4),
        ("Probability: 0.4\n\nQuestion: What is 2 + 2?\nProbability: 0.9", 0.4),
        ("0.7\nProbability: 0.4", 0.4),
        ("I am not 100% sure, but 80% sure", 0.8),
        ("not certain, but 100% probable", 1),
        ("The answer is not 0.2, but 0.8.", 0.8),
        ("0.0 to 1.0: 80%", 0.8),
        ("The probability that it is wrong is 0.2", 0.8),
        ("There is a 10% chance that I am wrong", 0.9),
        ("I am 20% unsure", 0.8),
    ],
)
def test_a_stated_probability_is_read(text, expected):
    assert probability(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "None",
        "I do not know.",
        "Paris",
        "high",
        "Probability: high",
        "Probability: <number>",
        "Probability: unknown",
        "Probability:",
        "a number from 0.0 to 1.0",
        "0.0 to 1.0",
        "between 0 and 100%",
        "1969",
        "Probability: 1969",
        "In 1969",
        "It was in 1969.",
        "I think that it is 79.",
        "The capital has 2,148,000 people and a rate of 4.5.",
        "Probability: 79 protons",
        "Probability: 1 of the most likely",
        "Probability: 101",
        "Probability: 150%",
        "Probability: -0.5",
        "-20%",
        "Probability: 1.2",
        "1.0001",
        "Probability: 7",
        "1,000",
        "Probability: 85,000",
        "3/2",
        "9 out of 8",
        "1/0",
        "12/10/2020",
        "Probability: 1.2.3",
        "Probability: 10:30",
        "Probability: 0.8 * 0.5",
        "Probability: 80-70%",
        "I am not 100% sure",
        "I can't be 100% certain",
        "It isn’t 80% likely",
        "The number 0.0 is not a number.",
        "1.0 is too small",
        "Lyon is 80% likely and Paris is 60% likely",
        "carbon-12",
        "H2O",
        "a 95% confidence interval",
        "68% of users know it.",
        "Question: What is 2 + 2?\nProbability: 0.9",
    ],
)
def test_no_probability_is_invented(text):
    assert probability(text) is None
    assert one_stage(f"Answer: Paris\n{text}")[1] is None


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("Answer: Paris\nProbability: 0.8", "Paris", 0.8),
        ("answer: Paris\nconfidence: 80%", "Paris", 0.8),
        ("**Answer:** Paris\n**Probability:** 80%", "Paris", 0.8),
        ("Answer: Paris, Probability: 0.8", "Paris", 0.8),
        ("Answer: Paris. Probability: 0.8.", "Paris", 0.8),
        ("Answer: Paris (80%)", "Paris", 0.8),
        ("Answer: Paris, 80%", "Paris", 0.8),
        ("Answer: Paris - 0.8", "Paris", 0.8),
        ("Paris, 80% sure", "Paris", 0.8),
        ("Paris. I am 80% sure.", "Paris", 0.8),
        (" Paris\nProbability: 0.8", "Paris", 0.8),
        (" Paris\n0.8", "Paris", 0.8),
        ("Probability: 0.8\nAnswer: Paris", "Paris", 0.8),
        ("Answer:\nParis\nProbability:\n0.8", "Paris", 0.8),
        ("The answer is Paris.", "Paris", None),
        ("The final answer is: Paris", "Paris", None),
        ("Sure! Answer: Paris", "Paris", None),
        ("Here is the answer:\n\nParis", "Paris", None),
        ("I'm 90% sure that it's Paris", "Paris", 0.9),
        ("I think it is Paris", "Paris", None),
        ('Answer: "Paris"\nProbability: <number>', "Paris", None),
        ("Answer: <Paris>\nProbability: <0.8>", "Paris", 0.8),
        ("Answer: 1969\nProbability: 0.8", "1969", 0.8),
        ("Answer: 1969", "1969", None),
        ("1969", "1969", None),
        ("Answer: 0.5", "0.5", None),
        ("Answer: 45%", "45%", None),
        ("Answer: 45%\nProbability: 0.8", "45%", 0.8),
        ("Answer: 3/4\nProbability: 1", "3/4", 1),
        ("Answer: 79\nProbability: 79", "79", 0.79),
        ("Answer: between 10 and 20%", "between 10 and 20%", None),
        ("Answer: carbon-12", "carbon-12", None),
        ("Answer: Paris\nProbability: 0.8\n\nQuestion: Who?\nAnswer: I\nProbability: 0.1", "Paris", 0.8),
        ("Paris\nProbability: 0.8\nAnswer: Rome\nProbability: 0.1", "Paris", 0.8),
        ("The probability that it is Paris is 0.8", None, 0.8),
        ("Probability: 0.8", None, 0.8),
        ("Answer: <answer>\nProbability: <number>", None, None),
        ("Answer:\nProbability: 0.8", None, 0.8),
        ("Answer: ?\nProbability: 0.8", None, 0.8),
        ("I don't know.", None, None),
        ("Sorry, I cannot answer that.", None, None),
        ("As an AI, I have no answer.", None, None),
        ("What is the capital of France?", None, None),
        ("", None, None),
    ],
)
def test_answer_and_probability(text, answer, expected):
    found = one_stage(text)
    assert found == (answer, None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("G1: Paris\nP1: 0.8\nG2: Lyon\nP2: 15%", [("Paris", 0.8), ("Lyon", 0.15)]),
        ("G1: Paris, P1: 0.8, G2: Lyon, P2: 0.1", [("Paris", 0.8), ("Lyon", 0.1)]),
        ("G1: Paris (80%)\nG2: Lyon (10%)", [("Paris", 0.8), ("Lyon", 0.1)]),
        ("Guess 1: Paris\nProbability 1: 0.8\nGuess 2: Lyon", [("Paris", 0.8), ("Lyon", None)]),
        ("P1: 0.8\nG1: Paris", [("Paris", 0.8)]),
        ("G1: 1969\nP1: 0.5\nG2: 1970\nP2: 50", [("1969", 0.5), ("1970", 0.5)]),
        ("G1: Paris\nP1: Paris", [("Paris", None)]),
        ("G1: <guess 1>\nP1: <probability of guess 1>", []),
        ("G1: Paris\nP1: 1.5\nG2: <guess 2>\nP2: 0.1", [("Paris", None), (None, 0.1)]),
        ("G1: Paris\nP1: 0.9\nG1: Rome\nP1: 0.1", [("Paris", 0.9)]),
        ("1. Paris, 80%\n2. Lyon - 10%", [("Paris", 0.8), ("Lyon", 0.1)]),
        ("Paris", [("Paris", None)]),
        ("", []),
    ],
)
def test_guesses(text, expected):
    found = guesses(text)
    assert [answer for answer, _ in found] == [answer for answer, _ in expected]
    assert [value for _, value in found] == [None if p is None else pytest.approx(p) for _, p in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: Paris\nConfidence: Highly likely", ("Paris", "highly likely", 0.9)),
        ("Paris\nalmost certain", ("Paris", "almost certain", 0.95)),
        ("Answer: Paris\nConfidence: not likely", ("Paris", None, None)),
        ("Answer: Likely Lake\nConfidence: unlikely", ("Likely Lake", "unlikely", 0.2)),
        ("Answer: Paris\nConfidence: likely, unlikely", ("Paris", None, None)),
        ("Answer: Paris\nConfidence: <phrase>", ("Paris", None, None)),
        ("Answer: Paris\nConfidence: 80%", ("Paris", None, 0.8)),
        ("Answer: Paris", ("Paris", None, None)),
        ("Very likely.", (None, "highly likely", 0.9)),
        ("", (None, None, None)),
    ],
)
def test_answer_and_phrase(text, expected):
    assert linguistic(text) == expected


def test_two_stages_are_joined():
    two_stage, reasoning = ELICITATIONS["two_stage"], ELICITATIONS["reasoning"]
    assert stated(two_stage, ["Paris.", "0.8"]) == [Stated("Paris", 0.8)]
    assert stated(two_stage, ["", "0.8"]) == [Stated(None, 0.8)]
    assert stated(two_stage, ["0.9", "I am not sure"]) == [Stated("0.9", None)]
    thought = "The answer: not Lyon. It lies on the Seine, with 80% of the trade.\nAnswer: Paris"
    assert stated(reasoning, [thought, "80%"]) == [Stated("Paris", 0.8)]
    assert stated(reasoning, ["Paris.", "80%"]) == [Stated("Paris", 0.8)]
    assert stated(reasoning, ["It lies on the Seine. It is old.", "80%"]) == [Stated(None, 0.8)]


@pytest.mark.parametrize(("name", "replies"), [("two_stage", ["Paris"]), ("one_stage", ["Paris", "0.8"])])
def test_a_reply_for_each_stage_is_required(name, replies):
    with pytest.raises(CalibrantError, match="one for each"):
        stated(ELICITATIONS[name], replies)


@pytest.mark.parametrize("kind", PARSERS)
def test_long_and_odd_replies_are_no_fault(kind):
    for text in (
        "0" * 5000,
        "9" * 400,
        "%" * 999,
        "\x00\ud800",
        "G1:" * 500,
        "probability " * 500,
        "1/" * 999,
    ):
        for one in PARSERS[kind](text):
            assert one.probability is None or 0 <= one.probability <= 1
