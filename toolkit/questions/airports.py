"""Facts about the international airports of large cities (airportsdata)."""

from collections import Counter, defaultdict

import airportsdata

from toolkit.questions.fact import Fact, words
from toolkit.questions.places import Place, large_cities, places


def airports() -> list[Fact]:
    """Codes and names of airports, of capitals and large cities with one international airport.

    Returns:
        Facts of the kinds "airport_city", "airport_code", "airport_name_city", "airport_country"
        and "airport_state".
    """
    rows = airportsdata.load("IATA").values()
    name_count = Counter(words(row["name"]) for row in rows)
    by_city = defaultdict(list)
    for row in rows:
        if "International" in row["name"] and name_count[words(row["name"])] == 1:
            by_city[row["country"], words(row["city"])].append(row)
    facts = []
    for place in places().values():
        cities = {words(c): c for c in (*large_cities().get(place.code, ()), place.capital) if c}
        for spelling, city in cities.items():
            found = by_city.get((place.code[:2], spelling), [])
            if len(found) == 1 and (place.sort == "country" or found[0]["subd"] == place.name):
                facts += _airport_facts(place, city, found[0])
    return facts


def _airport_facts(place: Place, city: str, airport: airportsdata.Airport) -> list[Fact]:
    iata, name = airport["iata"], airport["name"]
    about = (place.entity, (city,), place.region)
    facts = [
        Fact(
            "airport_city",
            iata,
            f"Which city has the airport with the IATA code {iata}?",
            city,
            *about,
        ),
        Fact(
            "airport_code",
            iata,
            f"What is the IATA code of the international airport of {city}?",
            iata,
            *about,
        ),
    ]
    if not set(words(city)) & set(words(name)):
        text = f"Which city is served by {name}?"
        facts.append(Fact("airport_name_city", iata, text, city, *about))
    if not place.gives_away(city):
        text = f"In which {place.asked} is the airport with the IATA code {iata}?"
        facts.append(
            Fact(f"airport_{place.sort}", iata, text, place.name, place.entity, (place.name,),
                 place.region, place.aliases)
        )  # fmt: skip
    return facts
