"""Whether answers to open-ended questions are right, by their text.

Texts are compared as words: NFKC, without case, accents, punctuation, invisible characters, and the
articles "a", "an" and "the" where a word follows. Apostrophes and the points of initials join ("N'Djamena",
"J. R. R."), hyphens and other punctuation part. What stays: points and commas in numbers, a sign before a
number, "#" and "+" after a letter ("C#"), and symbols such as 🙂. Accents are those of Latin, Greek,
Cyrillic, Arabic and Hebrew; in other scripts, marks are letters. "ö" is "o" and not "oe".

In Chinese, Japanese, Thai and other scripts without spaces a word is a run of one script: in "答えは東京です"
東京 is one, and 京都 is none in "東京都". 是, 为, 為, 在 and 叫 are words of their own.

An answer that negates what it names, or offers several candidates, is wrong, and so is an empty one:

- A negation ("not", "isn't", "never", ...) strikes its clause: "not Lyon, but Paris" says Paris. Clauses end
  at punctuation and at "but". Only English negations are known, and "rather than Lyon" is none of them.
- "Paris or London" is wrong unless both are accepted. So is a list, by commas, semicolons, slashes, lines,
  "and" or "or", of parts of up to three words that are neither accepted nor in the question. "Paris, France"
  is none: two parts with a comma between may be a name and where it is.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from toolkit.evaluation.values import (
    Quantity,
    Readings,
    date_alone,
    dates,
    number_alone,
    numbers,
    unified,
)
from toolkit.questions.question import OpenEnded

Value = TypeVar("Value", Quantity, Readings)

Grader = Callable[[Sequence[OpenEnded], Sequence[str]], list[bool]]
"""Says of an answer to each of some questions whether it is right."""

F1_THRESHOLD = 0.6
"""Least token F1 of a right answer: "Obama" for "Barack Obama" is right, "Michelle Obama" is not."""

NEGATIONS = {
    "not", "no", "never", "neither", "nor", "cannot", "isnt", "arent", "wasnt", "werent", "dont", "doesnt",
    "didnt", "cant", "couldnt", "wont", "wouldnt", "aint",
}  # fmt: skip
QUALIFIERS = {
    "north", "south", "east", "west", "northern", "southern", "eastern", "western", "central", "new", "upper",
    "lower", "equatorial",
}  # fmt: skip
"""Words that make another name of the one after them: Virginia is not in "West Virginia"."""

FUNCTION_WORDS = {
    "a", "am", "an", "and", "as", "at", "be", "by", "co", "do", "for", "go", "ha", "has", "he", "hi", "i",
    "if", "in", "is", "it", "la", "ma", "me", "mi", "my", "no", "of", "oh", "ok", "on", "or", "pa", "so",
    "the", "to", "up", "us", "was", "we",
}  # fmt: skip
"""Words that are also codes and symbols: as such, they are written as is accepted and end a clause, but not
by a colon, as in "the code is: IJ"."""

LIST_PART = 3
"""Most words of a part of a list of candidates."""

ARTICLES = {"a", "an", "the"}
SENTENCE_ENDS = ".!?\n。"
CLAUSE_ENDS = SENTENCE_ENDS + ",;:—()、؛"
LIST_MARKS = ";/|\n"
COMMAS = ",،、"
HYPHENS = "-–"
WITHOUT_STROKE = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe"})
ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u064b-\u065f\u0670\u0640]")
SCRIPTS = {
    "han": re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "hiragana": re.compile("[\u3041-\u309f]"),
    "katakana": re.compile("[\u30a1-\u30fa\u30fc-\u30ff]"),
}
HAN_FUNCTION_WORDS = "是为為在叫"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text.

    Attributes:
        text: As it is compared.
        written: As it is written.
        gap: What stands between it and the word before, or the beginning.
    """

    text: str
    written: str
    gap: str


def normalise(text: str) -> str:
    """Returns the words of a text with spaces between, or the bare text where it has none, such as "?"."""
    return " ".join(word.text for word in _words(text)) or unified(text).strip()


def token_f1(answer: str, accepted: str) -> float:
    """Returns the harmonic mean of precision and recall of an answer's words, 0 to 1 (arXiv 1606.05250)."""
    return _f1_of_words(normalise(answer).split(), normalise(accepted).split())


def _f1_of_words(answer: Sequence[str], accepted: Sequence[str]) -> float:
    said, wanted = Counter(answer), Counter(accepted)
    both = (said & wanted).total()
    return 2 * both / (said.total() + wanted.total()) if both else 0.0


def short_answer(text: str) -> str:
    """Returns what a model's raw generation gives as its answer.

    That is its first line that is not empty, without a lead such as "Answer:" or "A:", up to where the model
    asks itself a new "Question:" or "Q:", and without quotes around it.
    """
    text = re.split(r"\b(?:Question|Q)(?: \d+)?\**\s*[:：]", text, maxsplit=1)[0]
    text = re.sub(
        r"\A(?:[\s*_#]*\b(?:(?:the |final |short )*answer|ans|a)(?: is)?\s*[:：][*_]*)+", "", text, flags=re.I
    )
    line = next((line.strip() for line in text.splitlines() if line.strip(" \t*_")), "")
    quoted = re.fullmatch(
        r"(?P<mark>\*\*|__|[\"'`])(?P<plain>(?:(?!(?P=mark)).)+)(?P=mark)\.?", line
    ) or re.fullmatch(
        r"(?:“([^“”]+)”|„([^„“”]+)[“”]|‘([^‘]+)’|«([^«»]+)»|»([^«»]+)«|「([^「」]+)」|『([^『』]+)』)[.。]?",
        line,
    )
    if quoted is None:
        return line
    return (quoted.groupdict().get("plain") or next(filter(None, quoted.groups()))).strip()


def _exact(question: OpenEnded, answer: str) -> bool:
    return normalise(answer) in map(normalise, question.answers)


def _contained(question: OpenEnded, answer: str) -> bool:
    if _exact(question, answer):
        return True
    said = _words(answer)
    names = [name for name in map(_words, question.answers) if name]
    spans = [range(at, at + len(name)) for name in names for at in _occurrences(said, name)]
    named = {at for span in spans for at in span}
    refused = _negated(said, named) | _hedged(said, named)
    return not all(refused & set(span) for span in spans) and not _offers_more(said, named, question)


def _f1(question: OpenEnded, answer: str) -> bool:
    said = normalise(answer).split()
    negations = NEGATIONS.intersection(said)
    wanted = [normalise(accepted).split() for accepted in question.answers]
    return any(_f1_of_words(said, one) >= F1_THRESHOLD and negations.issubset(one) for one in wanted)


def _number(question: OpenEnded, answer: str) -> bool:
    stated = (numbers(accepted) for accepted in question.answers)
    return _states_number(question, answer, [found[0] for found in stated if len(found) == 1])


def _date(question: OpenEnded, answer: str) -> bool:
    stated = (dates(accepted) for accepted in question.answers)
    return _states_date(question, answer, [found[0] for found in stated if len(found) == 1])


def _any(question: OpenEnded, answer: str) -> bool:
    as_number = {accepted: number_alone(accepted) for accepted in question.answers}
    as_date = {accepted: date_alone(accepted) for accepted in question.answers}
    names = tuple(name for name in question.answers if as_number[name] is None and not as_date[name])
    return (
        _exact(question, answer)
        or _states_number(question, answer, [one for one in as_number.values() if one is not None])
        or _states_date(question, answer, [one for one in as_date.values() if one])
        or (bool(names) and _contained(replace(question, answers=names), answer))
    )


def _by_answer(rule: Callable[[OpenEnded, str], bool]) -> Grader:
    def grade(questions: Sequence[OpenEnded], answers: Sequence[str]) -> list[bool]:
        pairs = zip(questions, answers, strict=True)
        return [bool(answer.strip()) and rule(question, answer) for question, answer in pairs]

    return grade


GRADERS: dict[str, Grader] = {
    "exact": _by_answer(_exact),
    "contained": _by_answer(_contained),
    "f1": _by_answer(_f1),
    "number": _by_answer(_number),
    "date": _by_answer(_date),
    "any": _by_answer(_any),
}
"""Graders by the text alone. An answer is right by

- `exact` if it has the words of an accepted answer and no others;
- `contained` if an accepted answer's words are in it, in a row and not inside a hyphenated word, and it
  neither negates them nor offers something else;
- `f1` if its token F1 with one of them is at least `F1_THRESHOLD`, and it adds no negation;
- `number` if the first sentence that affirms a number has only one, of the value of the number in an
  accepted answer;
- `date` if so it is with dates, and the date says all that the accepted one says: the year alone is too
  little for a full date, and a full date answers a year;
- `any` if it is right by `number` or `date` for accepted answers that are nothing but a number or a date, or
  by `contained` for the others.

Numbers and dates that the question names are no answers to it, unless they are all that the answer has. An
accepted answer without a number, or with several, is never matched by `number`; so with `date`.
"""


def _states_number(question: OpenEnded, answer: str, accepted: Sequence[Quantity]) -> bool:
    def among(one: Quantity, others: Sequence[Quantity]) -> bool:
        return any(one.same(other) for other in others)

    asked = numbers(question.text)
    own = _first_stated(answer, numbers, lambda one: among(one, asked))
    return bool(own) and all(among(one, accepted) for one in own)


def _states_date(question: OpenEnded, answer: str, accepted: Sequence[Readings]) -> bool:
    asked = dates(question.text)
    own = _first_stated(answer, dates, lambda one: one in asked)
    wanted = [date for readings in accepted for date in readings]
    return bool(own) and all(
        any(date.answers(one) for date in readings for one in wanted) for readings in own
    )


def _first_stated(
    answer: str, read: Callable[[str], list[Value]], in_question: Callable[[Value], bool]
) -> list[Value]:
    """Returns the values in the first sentence that has its own, or all if they are the question's."""
    text = _affirmed(answer)
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])|。", text)
    own = ([one for one in read(sentence) if not in_question(one)] for sentence in sentences)
    return next(filter(None, own), None) or read(text)


def _affirmed(answer: str) -> str:
    """Returns an answer without its negated clauses."""
    said = _written_words(answer)
    refused = _negated(said, set())
    return "".join(word.gap + word.written for at, word in enumerate(said) if at not in refused)


def _occurrences(said: Sequence[Word], name: Sequence[Word]) -> Iterator[int]:
    """Yields where a name's words stand in a row, as no part of a longer name and as no function word."""
    wanted, texts = [word.text for word in name], [word.text for word in said]
    for at in range(len(said) - len(name) + 1):
        if texts[at : at + len(name)] != wanted:
            continue
        gaps = [said[at].gap if at else " ", *(word.gap for word in said[at + len(name) :][:1])]
        if any(gap in HYPHENS for gap in gaps if gap):
            continue
        if at and texts[at - 1] in QUALIFIERS and gaps[0].isspace():
            continue
        if len(name) == 1 and wanted[0] in FUNCTION_WORDS:
            ends = len(gaps) == 1 or any(mark in gaps[1] for mark in CLAUSE_ENDS.replace(":", ""))
            if not ends or said[at].written != name[0].written:
                continue
        yield at


def _parts(words: Sequence[Word], begins: Callable[[int, Word], bool]) -> list[set[int]]:
    """Returns the places of the words in each part, where `begins` says which words begin one."""
    parts: list[set[int]] = [set()]
    for at, word in enumerate(words):
        if begins(at, word):
            parts.append(set())
        parts[-1].add(at)
    return parts


def _negated(words: Sequence[Word], named: set[int]) -> set[int]:
    """Returns the places of the words in clauses with a negation that is no part of an accepted answer."""

    def begins(at: int, word: Word) -> bool:
        ends = SENTENCE_ENDS if word.text[0].isdecimal() else CLAUSE_ENDS
        return word.text == "but" or any(mark in word.gap for mark in ends)

    clauses = _parts(words, begins)
    return {
        at for clause in clauses if any(words[i].text in NEGATIONS for i in clause - named) for at in clause
    }


def _hedged(words: Sequence[Word], named: set[int]) -> set[int]:
    """Returns the places of the words in sentences with an "or" that has no accepted answer on one side."""

    def ends(at: int, word: Word) -> bool:
        return any(mark in word.gap for mark in SENTENCE_ENDS)

    def turns(at: int, word: Word) -> bool:
        return word.text == "or" and at not in named

    sides = _parts(words, lambda at, word: ends(at, word) or turns(at, word))
    empty = {at for side in sides if not side & named for at in side}
    turning = {at for at, word in enumerate(words) if turns(at, word)}
    return {
        at for sentence in _parts(words, ends) if sentence & turning and sentence & empty for at in sentence
    }


def _offers_more(words: Sequence[Word], named: set[int], question: OpenEnded) -> bool:
    """Whether an answer is a list with a part that is neither an accepted answer nor from the question."""
    joined = {at for at in named if at - 1 in named}  # what stands before these is inside a name
    links = {at for at, word in enumerate(words) if word.text in ("and", "or") and at not in named}
    links |= {at for at, word in enumerate(words) if any(mark in word.gap for mark in LIST_MARKS)} - joined

    def begins(at: int, word: Word) -> bool:
        return at in links or (at not in joined and any(mark in word.gap for mark in COMMAS))

    known = {word.text for word in _words(question.text)} | {"and", "or"}
    parts = [part for part in _parts(words, begins) if any(words[at].text not in known for at in part)]
    others = [
        part for part in parts if not part & named and not any(words[at].text in NEGATIONS for at in part)
    ]
    short = all(
        sum(words[at].text not in ("and", "or") for at in part - named) <= LIST_PART for part in parts
    )
    return bool(others) and short and (len(parts) > 2 or bool(links))


def _words(text: str) -> list[Word]:
    """Returns the words of a text without the articles that a word follows: not the A of "vitamin A"."""
    words: list[Word] = []
    gap = ""
    written = _written_words(text)
    for word, after in zip(written, [*written[1:], None], strict=False):
        gap += word.gap
        if word.text not in ARTICLES or after is None or not after.gap.isspace():
            words.append(replace(word, gap=gap))
            gap = ""
    return words


def _written_words(text: str) -> list[Word]:
    text = unified(text).replace("&", " and ").replace("_", " ")
    text = re.sub(r"(?<=\w)['’ʼʻ‘`´](?=\w)", "", text)
    text = re.sub(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)|(?<=\b[A-Z])\. (?=[A-Z]\.)", "", text)
    text = "".join(c for c in text if unicodedata.category(c) != "Cf" and c not in "\ufe0e\ufe0f")
    words: list[Word] = []
    gap = ""
    around = zip(f" {text}", text, f"{text} "[1:], strict=False)
    for kind, run in groupby(around, key=lambda three: _kind(*three)):
        written = "".join(c for _, c, _ in run)
        for part in written if kind == "symbol" else [written]:
            plain = "" if kind == "gap" else _plain(part)
            if plain:
                words.append(Word(plain, part, gap))
            gap = "" if plain else gap + part
    return words


def _kind(before: str, c: str, after: str) -> str:
    """Returns what a character between two others belongs to: a word, by its script, a symbol or a gap."""
    if c.isascii() and c.isalnum():
        return "word"
    category = unicodedata.category(c)
    if category[0] in "LNM":
        script = next((name for name, characters in SCRIPTS.items() if characters.match(c)), "word")
        return "symbol" if c in HAN_FUNCTION_WORDS else script
    in_number = before.isdecimal() and after.isdecimal() if c in ".," else c == "-" and after.isdecimal()
    if (in_number and not (c == "-" and before.isalnum())) or (
        c in "#+" and (before.isalpha() or before == c)
    ):
        return "word"
    return "symbol" if c == "%" or (category in ("So", "Sc", "Sm") and c not in "+<=>|~") else "gap"


def _plain(written: str) -> str:
    """Returns a word without case, accents, and the commas that group a number's digits."""
    letters = unicodedata.normalize("NFD", written.casefold())
    letters = unicodedata.normalize("NFC", ACCENTS.sub("", letters)).translate(WITHOUT_STROKE)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", letters)
