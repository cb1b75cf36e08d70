"""Clusters of answers against the plain procedure, one comparison at a time."""

import itertools
import random

import pytest

from toolkit.confidence.clusters import by_content, by_meaning, by_text
from toolkit.questions.normalise import normalise_answer

SAME = [
    ["Paris", "paris.", " The  PARIS ", "**Paris**", "“Paris”", "Ｐａｒｉｓ", "`Paris`", "Par\u200bis"],
    ["N'Djamena", "N’Djamena", "n'djamena!"],
    ["the U.S.", "US", "U.S"],
    ["Straße", "STRASSE"],
    ["an apple", "Apple", "a\tapple"],
    ["-5", "−5", " –5."],
    ["H₂O", "H2O"],
    ["A", "a."],
    ["New York", "New\nYork", "New-York"],
]
DIFFERENT = [
    ["1.5", "15", "1:5", "1/5", "-1.5", "1.5%"],
    ["C", "C#", "C++"],
    ["10⁶", "106"],
    ["3½", "31/2"],
    ["5", "-5", "$5"],
    ["?", "!", ""],
    ["A", "An", "The", ""],
    ["the cat", "cats"],
]


@pytest.mark.parametrize("texts", SAME)
def test_what_is_written_otherwise_is_the_same(texts):
    assert len({normalise_answer(text) for text in texts}) == 1


@pytest.mark.parametrize("texts", DIFFERENT)
def test_what_means_something_else_stays_apart(texts):
    assert len({normalise_answer(text) for text in texts}) == len(texts)


@pytest.mark.parametrize("text", [*itertools.chain(*SAME, *DIFFERENT)])
def test_normalising_again_changes_nothing(text):
    once = normalise_answer(text)
    assert normalise_answer(once) == once


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "\u3000"])
def test_nothing_to_be_seen_is_empty(text):
    assert normalise_answer(text) == ""


def test_clusters_by_text_are_numbered_by_first_appearance():
    assert by_text(["Lyon", "Paris", "", "the lyon", " ", "paris!"]) == [0, 1, 2, 0, 2, 1]
    assert by_text([]) == []


def test_answers_that_add_the_same_to_the_question_mean_the_same():
    question = "What is the capital of Bhutan?"
    same = [
        "The capital of Bhutan is Thimphu.", "Thimphu is the capital.", "**Thimphu**", "It's Thimphu",
        "thimphu! It is a city.", "The capital of Bhutan is Thimphu. Paro was its capital before.",
    ]  # fmt: skip
    others = ["Paro", "not Thimphu", "Thimphu or Paro", "Thimphu, Paro", "Paro, Thimphu", "", "St. Louis"]
    answers = [*same, *others]
    assert by_content(question, answers) == [*[0] * len(same), 1, 2, 3, 4, 5, 6, 7]
    assert by_content(question, []) == []
    longer = "Which city lies in Bhutan, Thimphu or Paro?"  # which names both, so that no word is added
    assert by_content(longer, ["Paro", "It is Paro.", "Paro", "Thimphu"]) == [0, 1, 0, 2]
    assert by_content("What is U.S. currency?", ["The U.S. dollar", "dollar", "The euro"]) == [0, 0, 1]


class Told:
    """Says what a relation says, and keeps what it was asked."""

    def __init__(self, holds):
        self.holds, self.asked, self.batches = holds, [], []

    def __call__(self, question, pairs):
        assert question == "Which?"
        self.asked += pairs
        self.batches.append(len(pairs))
        return [self.holds(*pair) for pair in pairs]


def one_by_one(answers, entails):
    """Each answer with the first member of each cluster in turn; the second direction if the first holds."""
    firsts: list[str] = []
    found, seen = [], {}
    for answer in answers:
        text = normalise_answer(answer)
        if text not in seen:
            for number, first in enumerate(firsts):
                if not text or not first:
                    continue
                if entails("Which?", [(answer, first)])[0] and entails("Which?", [(first, answer)])[0]:
                    seen[text] = number
                    break
            else:
                seen[text] = len(firsts)
                firsts.append(answer)
        found.append(seen[text])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_clusters_by_meaning_equal_one_comparison_at_a_time(seed):
    """The relation is neither symmetric nor transitive, so that the order of comparisons matters."""
    draw = random.Random(seed)
    words = ["", *(f"answer{i}" for i in range(draw.randint(1, 12)))]
    answers = draw.choices(words, k=draw.randint(1, 25))
    holds = {pair: draw.random() < 0.6 for pair in itertools.product(words, words)}
    ours, plain = (Told(lambda a, b: holds[a, b]) for _ in range(2))
    assert by_meaning("Which?", answers, ours) == one_by_one(answers, plain)
    assert sorted(ours.asked) == sorted(plain.asked)  # no comparison is added for the sake of batches


def test_equal_words_are_never_compared_and_empty_answers_never_asked_about():
    asked = Told(lambda a, b: True)
    answers = ["Paris", "paris.", "It is Paris", "", "PARIS", " ", "it is  Paris!"]
    assert by_meaning("Which?", answers, asked) == [0, 0, 0, 1, 0, 1, 0]
    assert asked.asked == [("It is Paris", "Paris"), ("Paris", "It is Paris")]  # as first given


def test_implying_is_not_enough_if_it_is_not_implied():
    more = Told(lambda a, b: a == "Paris, France" and b == "France")
    assert by_meaning("Which?", ["France", "Paris, France"], more) == [0, 1]
    assert by_meaning("Which?", ["Paris, France", "France"], more) == [0, 1]


def test_clusters_need_two_calls_each_whatever_the_number_of_answers():
    asked = Told(lambda a, b: a[-1] == b[-1])
    answers = [f"{i}{'xyz'[i % 3]}" for i in range(48)]
    assert by_meaning("Which?", answers, asked) == [i % 3 for i in range(48)]
    assert asked.batches == [47, 15, 31, 15, 15, 15]


def test_nothing_is_asked_where_there_is_nothing_to_compare():
    asked = Told(lambda a, b: True)
    assert [by_meaning("Which?", answers, asked) for answers in ([], ["", ""], ["one", "one"])] == [
        [],
        [0, 0],
        [0, 0],
    ]
    assert asked.asked == []
