"""Answers in free text, as they are compared: without what does not change their meaning."""

import re
import unicodedata

_APOSTROPHES = re.compile(r"(?<=\w)['’ʼʻ](?=\w)")
_INITIALS = re.compile(r"(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)")
_ARTICLES = re.compile(r"\b(?:an?|the)\s+(?=\w)")
_KEPT = re.compile(r"(?<=\d)[.,:/](?=\d)|(?<!\w)-(?=\.?\d)|[#%]")


def normalise_answer(text: str) -> str:
    """Returns an answer in NFKC, without case, articles, punctuation and needless white space.

    Answers with the same result are one answer, so what may change a value stays: a point, comma, colon or
    slash between digits, a minus before them, "#" and "%", and symbols such as "+" and "$". A power is not
    run into its base, nor a fraction into a whole number. An article goes only where a word follows, so that
    the answer "A" stays, and so does an answer of punctuation alone. Only an answer of nothing that can be
    seen comes out empty.
    """
    text = re.sub(r"(?<=\d)(?=[⁻⁰¹²³⁴-⁹])", "^", text)
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)
    text = re.sub(r"(?<!\w)[−–](?=\.?\d)", "-", text)
    bare = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
    words = _ARTICLES.sub("", _INITIALS.sub("", _APOSTROPHES.sub("", bare.casefold())))
    kept = {match.start() for match in _KEPT.finditer(words)}
    plain = "".join(c if at in kept or not _is_mark(c) else " " for at, c in enumerate(words))
    return " ".join(plain.split()) or " ".join(bare.split())


def _is_mark(c: str) -> bool:
    return c == "`" or unicodedata.category(c).startswith("P")
