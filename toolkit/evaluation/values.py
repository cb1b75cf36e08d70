"""Numbers and dates that a text states, to be compared by value and not by how they are written.

Digits of every script are read, number words and names of months in English only. What is no number:
a decade ("1990s"), and digits that letters run into ("H2O", "7up"), but for units, ordinals ("21st") and
"k" and "bn". A point and a comma are read as English does where both readings are possible ("1.234" is
less than two), and as a decimal comma and grouping points where only that is ("3,14", "1.234.567").

A date by numbers alone between slashes, points or hyphens, day and month first, has both readings where both
are possible. Years have four digits, or three, or an era ("44 BC", "AD 79"); negative ones are before Christ.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

TOLERANCE = 1e-6
"""Largest relative difference of numbers that are the same, unless both are whole: those must be equal."""

LONGEST = 400
"""Most characters of a number; a longer one is none."""

UNITS = {
    written: unit
    for unit, names in {
        "%": "% percent",
        "°c": "°c celsius",
        "°f": "°f fahrenheit",
        "$": "$ dollar dollars usd",
        "€": "€ euro euros eur",
        "£": "£ pound pounds gbp",
        "¥": "¥ yen jpy",
        "mm": "mm millimeter millimeters millimetre millimetres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "m": "m meter meters metre metres",
        "km": "km kilometer kilometers kilometre kilometres",
        "ft": "ft foot feet",
        "mi": "mi mile miles",
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "lb": "lb lbs",
        "s": "sec second seconds",
        "min": "min minute minutes",
        "h": "h hour hours",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
        "year": "year years",
    }.items()
    for written in names.split()
}
"""Units that are told apart, by each of their names. None is converted into another."""

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
ONES += " seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
ORDINALS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth"
)
ORDINALS += " fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
SMALL = {word: i for words in (ONES, ORDINALS) for i, word in enumerate(words.split())}
SMALL |= {word: 10 * i for i, word in enumerate(TENS.split(), 2)}
SMALL |= {f"{word[:-1]}ieth": 10 * i for i, word in enumerate(TENS.split(), 2)}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES |= {f"{word}th": scale for word, scale in SCALES.items()}
MONTHS = "january february march april may june july august september october november december"
MONTH = {name: i for i, whole in enumerate(MONTHS.split(), 1) for name in (whole, whole[:3])} | {"sept": 9}

_WORD = "|".join(sorted(SMALL.keys() | SCALES.keys(), key=len, reverse=True))
_SCALE = "|".join(sorted(SCALES, key=len, reverse=True))
_MONTH = "|".join(sorted(MONTH, key=len, reverse=True))
_DIGITS = r"""(?:
      \d{1,3}(?:\.\d{3})+,\d+ | \d{1,3}(?:\.\d{3}){2,}
    | \d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d+)? | \d{1,3}(?:[ ']\d{3})+(?:\.\d+)?
    | \d+,\d+ | \d+(?:\.\d+)? | \.\d+ )(?!\d|[.,:/⁄]\d)"""
_START = r"(?<![\w^])(?<!\d[.,:/⁄])"
_UNIT = r"(?:[ -]?(?P<unit>%|°\s?[cf]\b|[^\W\d_]+))?"
_NUMERAL = re.compile(
    rf"""{_START}(?P<sign>-|minus\s|negative\s)?(?P<money>[$€£¥]\s?)?(?:
          (?:(?P<whole>\d{{1,{LONGEST}}})\s)?(?P<over>\d{{1,{LONGEST}}})\s?[/⁄]\s?(?P<under>\d+)(?!\s?[/⁄\d])
        | (?:(?P<digits>{_DIGITS})\s?[x×*·]\s?)?10\^(?P<power>-?\d{{1,3}})(?!\d)
        | (?P<plain>{_DIGITS})(?:e(?P<exponent>[+-]?\d{{1,3}})(?!\d)|(?:st|nd|rd|th)\b|(?P<short>k|\s?bn)\b)?
        )(?P<scales>(?:[ -]?(?:{_SCALE})\b)*){_UNIT}""",
    re.VERBOSE,
)
_SPELLED = re.compile(
    rf"(?<![\w^])(?P<sign>minus |negative )?(?:an? (?={_SCALE}))?"
    rf"(?P<words>(?:{_WORD})(?![^\W_])(?:(?:[ -]| and )(?:{_WORD})(?![^\W_]))*){_UNIT}"
)
_PRONOUN = re.compile(
    rf"\b((?:the|this|that|which|no|each|every|{'|'.join(ORDINALS.split())})\s)one\b|\bone(?=\sof\b)"
)
_YEAR = r"[1-9]\d{2,3}(?![\w%]|[.,]\d)"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?(?![\w%]|[.,:]\d)"
_DATE = re.compile(
    rf"""{_START}(?:
          (?P<year_1>\d{{4}})(?:(?P<sep_1>[-/.])(?P<month_1>\d{{1,2}})(?P=sep_1)(?P<day_1>\d{{1,2}})(?!\d)
            |年(?:\s?(?P<month_2>\d{{1,2}})月(?:\s?(?P<day_2>\d{{1,2}})日)?)?)
        | (?P<first>\d{{1,2}})(?P<sep_2>[-/.])(?P<second>\d{{1,2}})(?P=sep_2)(?P<year_3>\d{{4}})(?!\d)
        | (?P<day_4>{_DAY})\.?[ -](?:of\s)?(?P<month_4>{_MONTH})\b\.?(?:,?[ -](?:of\s)?(?P<year_4>{_YEAR}))?
        | (?P<month_5>{_MONTH})\b\.?\s(?:the\s)?(?P<day_5>{_DAY})(?:,?\s(?P<year_5>{_YEAR}))?
        | (?P<month_6>{_MONTH})\b\.?,?\s(?:of\s)?(?P<year_6>{_YEAR})
        | (?P<year_7>\d{{1,4}})\s?(?P<before>bce?|b\.c\.)(?!\w)
        | (?:ad|a\.d\.)\s?(?P<year_8>\d{{1,4}})(?![\w%]) | (?P<year_9>\d{{1,4}})\s?(?:ad|ce|a\.d\.)(?!\w)
        | (?P<year_0>{_YEAR}) )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit, "" where none of `UNITS` stands with it."""

    value: Fraction
    unit: str

    def same(self, other: "Quantity") -> bool:
        """Whether values are equal within `TOLERANCE` and units, where both have one, are the same."""
        if self.unit and other.unit and self.unit != other.unit:
            return False
        if self.value.denominator == other.value.denominator == 1:
            return self.value == other.value
        return abs(self.value - other.value) <= TOLERANCE * max(abs(self.value), abs(other.value))


@dataclass(frozen=True, slots=True)
class Date:
    """A date, or as much of one as is said; at least a year, or a month and a day."""

    year: int | None
    month: int | None
    day: int | None

    def answers(self, accepted: "Date") -> bool:
        """Whether it says all that an accepted date says, and perhaps more: "2 May 1999" answers "1999"."""
        pairs = ((self.year, accepted.year), (self.month, accepted.month), (self.day, accepted.day))
        return all(wanted is None or said == wanted for said, wanted in pairs)


Readings = frozenset[Date]
"""What one date in a text may mean: one date, or two where day and month cannot be told apart."""


def unified(text: str) -> str:
    """Returns a text in NFKC with ASCII digits and minus signs, "10^6" for 10⁶, and "3 1⁄2" for 3½."""
    text = re.sub(r"(?<=\d)(?=[⁻⁰¹²³⁴-⁹])", "^", text)
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)
    text = unicodedata.normalize("NFKC", text).translate(str.maketrans("−٫٬،‐‑", "-.,,--"))
    text = re.sub(r"(?<!\w)–(?=\d)", "-", text)
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def numbers(text: str) -> list[Quantity]:
    """Returns the numbers that a text states."""
    return [number for _, _, number in _numbers(unified(text).casefold())]


def number_alone(text: str) -> Quantity | None:
    """Returns the number that a text consists of, a unit and punctuation aside, or None for another text."""
    text = unified(text).casefold()
    found = list(_numbers(text))
    return found[0][2] if len(found) == 1 and _alone(text, found[0][0], found[0][1]) else None


def dates(text: str) -> list[Readings]:
    """Returns the dates that a text states."""
    return [readings for _, _, readings in _dates(unified(text).casefold())]


def date_alone(text: str) -> Readings:
    """Returns the readings of the date that a text consists of, none for another text."""
    text = unified(text).casefold()
    found = list(_dates(text))
    return found[0][2] if len(found) == 1 and _alone(text, found[0][0], found[0][1]) else frozenset()


def _alone(text: str, start: int, end: int) -> bool:
    return not any(c.isalnum() for c in text[:start] + text[end:])


def _numbers(text: str) -> Iterator[tuple[int, int, Quantity]]:
    rest = list(text)
    for match in _NUMERAL.finditer(text):
        unit, end = _unit(match)
        rest[match.start() : end] = " " * (end - match.start())
        runs_on = match["unit"] is not None and not unit and text[match.start("unit") - 1].isalnum()
        value = None if runs_on or len(match[0]) > LONGEST else _numeral(match)
        if value is not None:
            yield match.start(), end, Quantity(value, unit)
    spelled = _PRONOUN.sub(lambda match: (match[1] or "").ljust(len(match[0])), "".join(rest))
    for match in _SPELLED.finditer(spelled):
        unit, end = _unit(match)
        *others, last = _spelled(re.split("[ -]", match["words"]))
        sign = -1 if match["sign"] else 1
        for other in others:
            yield match.start(), end, Quantity(Fraction(sign * other), "")
        yield match.start(), end, Quantity(Fraction(sign * last), unit)


def _unit(match: re.Match[str]) -> tuple[str, int]:
    """Returns the unit of a number and where the number ends, with it."""
    money = (match.groupdict().get("money") or "").strip()
    after = UNITS.get("".join((match["unit"] or "").split()), "")
    end = match.end() if after or match["unit"] is None else match.start("unit")
    return UNITS.get(money, "") or after, end


def _numeral(match: re.Match[str]) -> Fraction | None:
    """Returns the value of a number in digits, or None where it divides by zero."""
    if match["over"]:
        if not int(match["under"]):
            return None
        value = Fraction(match["whole"] or 0) + Fraction(int(match["over"]), int(match["under"]))
    else:
        power = int(match["power"] or match["exponent"] or 0)
        value = _decimal(match["digits"] or match["plain"] or "1") * Fraction(10) ** power
    value *= {"k": 10**3, "bn": 10**9}.get((match["short"] or "").strip(), 1)
    for scale in re.findall(_SCALE, match["scales"]):
        value *= SCALES[scale]
    return -value if match["sign"] else value


def _decimal(digits: str) -> Fraction:
    if re.fullmatch(r"\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}", digits):
        return Fraction(digits.replace(".", "").replace(",", "."))
    if digits.count(",") == 1 and not re.search(r",\d{3}(?:\.|$)", digits):
        return Fraction(digits.replace(",", "."))
    return Fraction(re.sub("[, ']", "", digits))


def _spelled(words: Sequence[str]) -> Iterator[int]:
    """Yields the numbers that number words in a row say: "two thousand one" is one, "two three" are two."""
    total, group, last = 0, 0, 0  # last: the smallest scale so far, 0 before the first
    begun = False
    for word in words:
        if word == "and":
            continue
        if word in SCALES:
            scale = SCALES[word]
            fits = (
                (group < 100 and group % 100 if begun else True) if scale == 100 else not last or scale < last
            )
            if begun and not (fits and group):
                yield total + group
                total, group, last = 0, 0, 0
            if scale == 100:
                group = max(group, 1) * 100
            else:
                total, group, last = total + max(group, 1) * scale, 0, scale
        else:
            small = SMALL[word]
            room = group % 100 == 0 or (small < 10 and group % 10 == 0 and group % 100 >= 20)
            if begun and not (room and small and (group or last)):
                yield total + group
                total, group, last = 0, 0, 0
            group += small
        begun = True
    yield total + group


def _dates(text: str) -> Iterator[tuple[int, int, Readings]]:
    for match in _DATE.finditer(text):
        said = {
            part: next((v for k, v in match.groupdict().items() if v and k.startswith(part)), None)
            for part in ("year", "month", "day", "first", "second")
        }
        year = int(said["year"]) * (-1 if match["before"] else 1) if said["year"] else None
        if said["first"] and said["second"]:
            pair = int(said["first"]), int(said["second"])
            orders: set[tuple[int | None, int | None]] = {pair, pair[::-1]}
        else:
            orders = {(_month(said["month"]), int(re.sub(r"\D", "", said["day"])) if said["day"] else None)}
        readings = frozenset(Date(year, month, day) for month, day in orders if _exists(year, month, day))
        if readings:
            yield match.start(), match.end(), readings


def _month(name: str | None) -> int | None:
    return None if name is None else MONTH.get(name) or int(name)


def _exists(year: int | None, month: int | None, day: int | None) -> bool:
    try:
        date(year if year and year > 0 else 2000, month or 1, day or 1)
    except ValueError:
        return False
    return True
