"""Answers and probabilities that a model states in words, read from its replies.

A probability is read only where the text says that it is one: after a label ("Probability: 0.85", "confidence
is 80%"), before what it is of ("90% sure"), behind the answer after a comma, in brackets or on a line of its
own, or at the beginning of a reply that was asked for nothing else. What is missing, out of range or said in
several ways is None, never guessed.

- Percentages, decimals, fractions and "8 out of 10" are read, with a point or a comma, in digits of every
  script and in English words.
- A bare number is a probability up to 1 and a percentage above 10: "1" is 1 and "85" is 0.85. In between it
  may be out of ten, and is none.
- A range is its midpoint, unless it is the whole scale ("from 0.0 to 1.0"). A bound ("over 90%") is the
  number.
- A negated value ("not 100% sure") is none; one of being wrong ("10% wrong") is taken from 1.

An answer is what stands after its label, or else the first line, without the probability. It is None where
that is empty, a question, the prompt's own placeholder, or the model on itself ("I'm not sure"). The prompts
are in `toolkit.questions.elicitation`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.confidence.phrases import HUMAN, VARIANTS, find_phrase
from toolkit.errors import CalibrantError
from toolkit.questions.elicitation import Elicitation, Reply


@dataclass(frozen=True, slots=True)
class Stated:
    """What a reply states.

    Attributes:
        answer: The answer, None where there is none.
        probability: The probability that it is right, None where none is said; where a phrase is said, the
            one that people take it for.
        phrase: The phrase that is said in place of a number, one of `toolkit.confidence.phrases.HUMAN`.
    """

    answer: str | None
    probability: float | None
    phrase: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A number in a text, as a probability.

    Attributes:
        start: Where it begins in the text.
        end: Where it ends.
        probability: None where it is out of range.
        bare: Whether it is a whole number without a sign, which is a probability only after a label.
    """

    start: int
    end: int
    probability: float | None
    bare: bool


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
ONES += " seventeen eighteen nineteen"
TENS = "ten twenty thirty forty fifty sixty seventy eighty ninety"
WORDS = {word: value for value, word in enumerate(ONES.split())}
WORDS |= {word: 10 * value for value, word in enumerate(TENS.split(), 1)}
WORDS |= {
    f"{tens} {one}": WORDS[tens] + WORDS[one] for tens in TENS.split()[1:] for one in ONES.split()[1:10]
}
WORDS |= {"hundred": 100, "one hundred": 100, "a hundred": 100}

_WORD = "|".join(sorted(WORDS, key=len, reverse=True)).replace(" ", r"[\s-]")
_ONE = "|".join(ONES.split()[1:10])
_NUMBER = rf"(?:(?:\d+(?:[.,]\d+)?|[.,]\d+)(?![.,:]?\d)|(?:{_WORD})\b(?![\s-](?:{_ONE})\b))"
_PERCENT = r"\s*-?(?:%|٪|per\s?cent\b|pct\b)"
# No letter, hyphenated word or formula goes on behind a number.
_ALONE = r"(?!\w|\s*!?\s*[*/⁄+^×=]|-\w)"
_VALUE = re.compile(
    rf"""(?<![\w%−-])(?<!\d[.,:/⁄])(?:
      (?P<even>(?:50\s?[/-]\s?50|fifty[\s-]fifty){_ALONE})
    | (?P<between>between\s+)?(?P<low>{_NUMBER})(?P<percents>{_PERCENT})?\s*(?(between)and|(?:[-–—]|to\b))\s*
      (?P<high>{_NUMBER})(?P<percent_high>{_PERCENT})?{_ALONE}
    | (?P<part>{_NUMBER})\s*(?:[/⁄]|out\s+of|in)\s*(?P<whole>{_NUMBER}){_ALONE}
    | (?P<percent>{_NUMBER}){_PERCENT}
    | (?P<number>{_NUMBER}){_ALONE}
    )""",
    re.I | re.VERBOSE,
)
_SCALE = re.compile(r"(?:between\s+)?0(?:\.0+)?%?\s*(?:[-–—]|to|and)\s*(?:1(?:\.0+)?|100)%?", re.I)
# "not 0.2, but 0.8" says 0.8.
_CORRECTED = re.compile(
    rf"\bnot\s+(?:\w+\s+)?{_NUMBER}(?:{_PERCENT})?\s*,?\s+but\s+(?:rather\s+)?|\A\W*{_SCALE.pattern}\s*[:=]",
    re.I,
)
# What a probability is called; "P1" only before a colon.
_KEYWORD = r"\b(?:probability|confidence|certainty|likelihood|chances?|odds|prob)\b(?:\s*\d+(?=\s*[:=]))?"
_LABEL = re.compile(rf"{_KEYWORD}|\bP\d*(?=\s*[:=])", re.I)
# What may stand between a label and its number: "Probability: about", "confidence is".
_LEAD = re.compile(
    r"""(?:[^\w.,]|\b(?:i|id|im|am|would|say|it|its|is|are|was|of|at|an?|the|be|being|level|score|about|around
    |approximately|approx|roughly|nearly|almost|over|under|above|below|more|less|than|least|most|only|very|indeed)\b)*""",
    re.I | re.VERBOSE,
)
# What calls a number the reply to the second stage.
_SUBJECT = re.compile(
    r"""(?:\A\W*(?:\w+\s+){0,2}(?:answer|response|number|result)
    |(?<=[.!?,]\s)(?:but\s+)?(?:the|my)\s+(?:\w+\s+)?answer)\s*(?:[:=]|is\b|would\s+be\b)""",
    re.I | re.VERBOSE,
)
# What must stand before a number that comes some words after its label.
_COPULA = re.compile(r"(?:[:=]|\b(?:is|be|equals?|about|around|approximately|roughly|of|at|than))\W*\Z", re.I)
# What follows a number that is a probability: "90% sure".
_SURE = re.compile(
    r"[\s)\"]{0,3}(?:sure|certain|confident|likely|likelihood|probab\w+|chances?|confidence|certainty)\b",
    re.I,
)
# Where the reach of "not" and "wrong" ends, and what undoes a number from behind: "1.0 is too small".
_CLAUSE = re.compile(r"[,;!?()\n]|\.(?!\d)|\bbut\b", re.I)
_NEGATION = re.compile(r"\b(?:not|never|cannot|(?:ca|is|do|does|was|wo|would|could|should)nt)\b", re.I)
_DENIED = re.compile(
    r"""\s*(?:(?:is|was|are)\b(?!\s+(?:my|the|how)\b)|(?:can)?not\b|(?:is|was|ca)nt\b
    |(?:\w+\s+)?(?:distribution|interval|level|mass|theory)\b|of\s+(?!the\s+time|being|my|it|this|that)\w)""",
    re.I | re.VERBOSE,
)
_WRONG = re.compile(r"\b(?:wrong|incorrect|mistaken|false|unsure|uncertain)\b", re.I)

# "Answer:", "My final guess is:", "The answer is".
_ANSWER = re.compile(
    r"""(?:^|(?<=[.!?:]\s)|(?<="))[\s"(<]*(?:(?:(?!prob|conf)[\w']+\s+){0,2}(?:answer|guess|ans)\s*\d*(?:\s+is)?\s*[:=]
    |A\s*[:=]|(?:the|my|your)\s+(?:\w+\s+)?(?:answer|guess)(?:\s+to\s+\w+\s+question)?\s+is\b)""",
    re.I | re.MULTILINE | re.VERBOSE,
)
# "G1:" and "P1:", or in words.
_GUESS = re.compile(
    r"(?:^|(?<=[\s,;(]))(?P<kind>[GP]|guess|probability|confidence)\s*(?P<place>\d+)\s*[:=)]",
    re.I | re.MULTILINE,
)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+(.+)", re.MULTILINE)
_NEXT_QUESTION = re.compile(r"^\W*(?:question|q|user|human)\s*\d*\s*:", re.I | re.MULTILINE)

# Where an answer ends in its line: "Paris, probability: 0.8", "Paris. I am", "Paris with a probability".
_NEXT = re.compile(
    rf"""[\s,;(–—-]*(?:\w+\s+)?(?:{_KEYWORD}[^\n:=]{{0,60}}|\bP\d*\s*)[:=] | (?<=[.!?])\s+I\b
    | (?:[\s,;(–—-]*\b(?:with|and)\s+(?:(?:an?|the|my)\s+)?|^\W*(?:the|my)\s+)(?:\w+\s+)?{_KEYWORD}""",
    re.I | re.VERBOSE,
)
_SEPARATOR = re.compile(r"[\s,;:(–—-]*")
_OWN_LINE = re.compile(rf"^\W*{_KEYWORD}[^\n:=]{{0,40}}[:=]", re.I | re.MULTILINE)
# What is no answer: the prompt's own "<answer>", and the model on itself.
_PLACEHOLDER = re.compile(
    r"(?:(?:your|the|short)\s+)*(?:answer|guess|number|phrase|probability)(?:\s+of\s+guess)?(?:\s+\d+)?", re.I
)
_ITSELF = re.compile(
    r"(?:(?:sorry|sure|great|awesome|ok(?:ay)?|yes|no|well|understood|hello|hi)\b\W*)*"
    r"(?:(?:i|i'(?:m|d|ve|ll)|(?:as )?an? (?:\w+ )?ai|can't|cannot|n/a|none|unknown|no answer)\b.*)?",
    re.I,
)
# What stands before an answer: "I think that it is".
_OPINION = re.compile(
    r"(?:i|i'm|i'd)\b[^.\n]{0,30}?\b(?:think|believe|say|guess|sure|certain|confident)\b(?:\s+that\b)?"
    r"(?:\s+(?:it's|it\s+is|the\s+answer\s+is)\b)?\W*",
    re.I,
)


def values(text: str) -> Iterator[Value]:
    """Yields the numbers of a text that may be probabilities, in order, without those that it negates."""
    for match in _VALUE.finditer(text):
        clause = _CLAUSE.split(text[: match.start()])[-1], _CLAUSE.split(text[match.end() :])[0]
        if _NEGATION.search(clause[0]) or _DENIED.match(clause[1]) or _SCALE.fullmatch(match[0]):
            continue
        probability = _probability(match)
        if probability is not None and any(map(_WRONG.search, clause)):
            probability = 1 - probability
        written = match["number"] or (
            match["low"] if not (match["percents"] or match["percent_high"]) else None
        )
        bare = written is not None and not re.search(r"\d[.,]\d|^[.,]", written)
        yield Value(match.start(), match.end(), probability, bare)


def _probability(match: re.Match[str]) -> float | None:
    if match["even"]:
        return 0.5
    if match["low"]:
        percents = match["percents"] or match["percent_high"]
        low, high = (_percentage(match[end]) if percents else _bare(match[end]) for end in ("low", "high"))
        return (low + high) / 2 if low is not None and high is not None and low <= high else None
    if match["part"]:
        part, whole = _number(match["part"]), _number(match["whole"])
        return part / whole if part <= whole and 0 < whole <= 1000 else None
    return _percentage(match["percent"]) if match["percent"] else _bare(match["number"])


def _percentage(written: str) -> float | None:
    number = _number(written)
    return number / 100 if number <= 100 else None


def _bare(written: str) -> float | None:
    number = _number(written)
    return number if number <= 1 else number / 100 if 10 < number <= 100 else None


def _number(written: str) -> float:
    word = WORDS.get(re.sub(r"[\s-]+", " ", written.lower()))
    if word is not None:
        return word
    whole, _, decimals = written.partition(",")
    grouped = len(decimals) == 3 and whole.strip("0") != ""  # 1,000 is a thousand and 0,125 an eighth
    return float(whole + decimals if grouped else written.replace(",", "."))


def _at(text: str, start: int, found: Sequence[Value], lead: re.Pattern[str] = _LEAD) -> Value | None:
    """Returns the value that stands at a place of the text, after words such as "about"."""
    match = lead.match(text, start)
    end = match.end() if match else start
    value = next((value for value in found if start <= value.start <= end), None)
    alone = value is None or not value.bare or re.match(r"[ \t]*(?:[^\w \t]|\Z)", text[value.end :])
    return value if alone else None


def _labelled(text: str, found: Sequence[Value]) -> Value | None:
    """Returns the first value that the text calls a probability."""
    for label in _LABEL.finditer(text):
        line = text[label.end() :].split("\n")[0]
        colon = re.search("[:=]", line)
        value = _at(text, label.end(), found)
        if value is None and colon is not None:
            value = _at(text, label.end() + colon.end(), found)
        for other in found:
            between = text[label.end() : other.start]
            if value is None and label.end() <= other.start <= label.end() + len(line) and not other.bare:
                value = other if _COPULA.search(between) and not _CLAUSE.search(between) else None
        if value is not None:
            return value
    return None


def _sure(text: str, found: Sequence[Value]) -> Value | None:
    """Returns the value before "sure" or a word like it, if there is one only."""
    sure = {value.probability: value for value in found if not value.bare and _SURE.match(text, value.end)}
    return next(iter(sure.values())) if len(sure) == 1 else None


def _said(text: str, alone: bool = False) -> float | None:
    """Returns the probability in a text.

    Args:
        text: A cleaned reply, or a part of one.
        alone: Whether it was asked for a probability and nothing else, so that one may begin it.
    """
    text = _CORRECTED.sub("", text.replace("'", ""))
    own_line = _OWN_LINE.search(text)
    text = text[own_line.start() :] if own_line else text
    found = list(values(text))
    value = _at(text, 0, found) if alone else None
    if value is None or (value.bare and value.probability is None):
        value = _labelled(text, found) or _sure(text, found)
    for subject in _SUBJECT.finditer(text) if alone else ():
        said = _at(text, subject.end(), found)
        if value is None and said is not None and not (said.bare and subject.start()):
            value = said
    return value.probability if value else None


def _clean(text: str) -> str:
    """Returns a reply without Markdown, up to where the model asks itself a new question."""
    text = unicodedata.normalize("NFKC", text).translate(str.maketrans("’‘“”", "''\"\"")).replace("\\%", "%")
    text = re.sub(r"(?<!\s)\*+|\*+(?!\s)|`+|__+", "", text).strip()
    again = _NEXT_QUESTION.search(text, 1)
    return text[: again.start()].rstrip() if again else text


def _answer(text: str, *, reasoned: bool = False) -> tuple[str | None, str, str]:
    """Returns the answer in a cleaned reply, what stands before it, and what stands after it.

    Args:
        text: The reply.
        reasoned: Whether reasoning stands before the answer, which then has the last label; without a label
            only a single sentence is an answer.
    """
    own_line = _OWN_LINE.search(text)
    labels = list(_ANSWER.finditer(text, 0, own_line.start() if own_line and own_line.start() else len(text)))
    if not labels and reasoned and re.search(r"[.!?]\s+\S|\n", text):
        return None, "", text
    start = labels[-1 if reasoned else 0].end() if labels else 0
    start += len(text[start:]) - len(text[start:].lstrip(" \t\n:=-"))
    opinion = _OPINION.match(text, start)
    start = opinion.end() if opinion else start
    lead_in = re.match(r"[^\n]*:\s*\n\s*", text[start:])
    if not labels and lead_in and not find_phrase(lead_in[0]):
        start += lead_in.end()
    line = text[start:].split("\n")[0]
    following = _NEXT.search(line)
    line = line[: following.start()] if following else line
    for value in values(line):
        before = re.search(r"\s*(?:[,;(–—]|\s-)\s*\Z", line[: value.start])
        if before and not value.bare and re.fullmatch(rf"(?:{_SURE.pattern})?\W*", line[value.end :], re.I):
            line = line[: before.start()]
            break
    return _offered(line), text[:start], text[start + len(line) :]


def _offered(line: str) -> str | None:
    """Returns a line as an answer, or None where it offers none."""
    answer = line.strip("\"'<>[]{}():; \t\r").removesuffix(".").strip("\"' ")
    offers_none = (
        not re.search(r"\w", answer)
        or answer.endswith("?")
        or answer.lower() in HUMAN | VARIANTS
        or _PLACEHOLDER.fullmatch(answer)
        or _ITSELF.fullmatch(answer)
    )
    return None if offers_none else answer


def _answer_and_probability(text: str) -> list[Stated]:
    text = _clean(text)
    answer, before, after = _answer(text)
    probability = _said(f"{before}\n{after}")
    if probability is None and answer is not None:
        value = _at(after, 0, list(values(after)), _SEPARATOR)
        if value and not value.bare and re.match(r"\W*?(?:\n|\Z)", after[value.end :]):
            probability = value.probability
    return [Stated(answer, probability)]


def _guesses(text: str) -> list[Stated]:
    text = _clean(text)
    marks = list(_GUESS.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    answers: dict[int, str | None] = {}
    probabilities: dict[int, float] = {}
    for mark, end in zip(marks, ends, strict=True):
        said, place = text[mark.end() : end].strip(" \t\n,;"), int(mark["place"])
        if mark["kind"][0] in "Gg":
            (guess,) = _answer_and_probability(said)
            answers.setdefault(place, guess.answer)
            probability = guess.probability
        else:
            probability = _said(f"Probability: {said}")
        if probability is not None:
            probabilities.setdefault(place, probability)
    guesses = [
        Stated(answers.get(place), probabilities.get(place))
        for place in dict.fromkeys([*answers, *probabilities])
    ]
    if not marks:
        lines = _NUMBERED.findall(text) or [text]
        guesses = [stated for line in lines for stated in _answer_and_probability(line)]
    return [guess for guess in guesses if guess.answer is not None or guess.probability is not None]


def _answer_and_phrase(text: str) -> list[Stated]:
    text = _clean(text)
    answer, before, after = _answer(text)
    rest = f"{before}\n{after}"
    label = re.search(rf"{_KEYWORD}[^\n:=]{{0,60}}[:=]\s*([^\n]*)", rest, re.I)
    phrase = find_phrase(label[1] if label else text)
    return [Stated(answer, HUMAN[phrase] if phrase else _said(rest), phrase)]


PARSERS: dict[Reply, Callable[[str], list[Stated]]] = {
    "answer_probability": _answer_and_probability,
    "guesses": _guesses,
    "answer": lambda text: [Stated(_answer(_clean(text))[0], None)],
    "reasoned_answer": lambda text: [Stated(_answer(_clean(text), reasoned=True)[0], None)],
    "probability": lambda text: [Stated(None, _said(_NEXT_QUESTION.split(_clean(text))[0], alone=True))],
    "answer_phrase": _answer_and_phrase,
}
"""What each kind of reply states: one `Stated`, or as many as there are guesses."""


def stated(elicitation: Elicitation, replies: Sequence[str]) -> list[Stated]:
    """Returns what a model states in its replies to an elicitation.

    Args:
        elicitation: How it was asked.
        replies: Its reply to each stage.

    Returns:
        One answer with its probability, or for several guesses those that the reply has, in its order, none
        of them without an answer and a probability both missing.

    Raises:
        CalibrantError: There is not one reply for each stage.
    """
    if len(replies) != elicitation.stages:
        raise CalibrantError(f"{len(replies)} replies to {elicitation.stages} stages; give one for each")
    first = PARSERS[elicitation.reply](replies[0])
    if elicitation.second_reply is None:
        return first
    (second,) = PARSERS[elicitation.second_reply](replies[1])
    return [replace(one, probability=second.probability) for one in first]
