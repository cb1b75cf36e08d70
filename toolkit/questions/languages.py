"""Facts about languages (pycountry, Babel)."""

from collections import Counter
from functools import cache
from typing import Any

import pycountry
from babel import Locale
from babel.core import UnknownLocaleError

from toolkit.questions.fact import Fact, words


@cache
def _languages() -> dict[str, str]:
    """English names of languages with a two-letter code."""
    english = Locale("en").languages
    return {code: english[code] for code in sorted(_rows()) if code in english}


@cache
def _rows() -> dict[str, Any]:
    return {row.alpha_2: row for row in pycountry.languages if hasattr(row, "alpha_2")}


def language_names() -> dict[str, tuple[str, ...]]:
    """The names of languages.

    Returns:
        Names by entity.
    """
    return {f"language:{code}": (name,) for code, name in _languages().items()}


def languages() -> list[Fact]:
    """Codes of languages, and what they call themselves.

    Returns:
        Facts of the kinds "language_code", "language_code_of", "language_code3_of" and "autonym".
    """
    facts = []
    autonyms = {code: _autonym(code) for code in _languages()}
    count = Counter(words(name) for name in autonyms.values())
    for code, name in _languages().items():
        entity, names, letter = f"language:{code}", (name,), name[0]
        kin = frozenset(n for n in _languages().values() if set(words(n)) & set(words(name)))
        row = _rows()[code]
        other = tuple(n for n in (row.name,) if n != name and "(" not in n)
        more: dict[str, Any] = {"region": letter, "aliases": other, "rivals": kin - {name}}
        text = f"What is the two-letter ISO 639 code of the {name} language?"
        facts.append(Fact("language_code", code, text, code, entity, names, letter))
        text = f"Which language has the two-letter ISO 639 code {code}?"
        facts.append(Fact("language_code_of", code, text, name, entity, names, **more))
        text = f"Which language has the three-letter ISO 639 code {row.alpha_3}?"
        facts.append(Fact("language_code3_of", code, text, name, entity, names, **more))
        own = autonyms[code]
        if own and not set(words(own)) & set(words(name)) and count[words(own)] == 1:
            text = f"Which language is called {own} by its own speakers?"
            facts.append(Fact("autonym", code, text, name, entity, (name, own), **more))
    return facts


def _autonym(code: str) -> str:
    try:
        locale = Locale(code)
    except UnknownLocaleError:
        return ""
    return locale.languages.get(code) or ""
