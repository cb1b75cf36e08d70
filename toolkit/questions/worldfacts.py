"""Real facts from packaged databases, split by entity: the questions that need no download."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from toolkit.errors import CalibrantError
from toolkit.questions.airports import airports
from toolkit.questions.chemistry import chemistry, element_names
from toolkit.questions.cities import cities, state_cities
from toolkit.questions.codes import codes
from toolkit.questions.countries import country_names
from toolkit.questions.currencies import currencies
from toolkit.questions.fact import Fact
from toolkit.questions.fours import arrange, group_in_fours, stable_hash
from toolkit.questions.geography import capitals, continents, neighbours
from toolkit.questions.languages import language_names, languages
from toolkit.questions.question import MultipleChoice, OpenEnded, Question
from toolkit.questions.splits import assign_splits, keep_names_apart
from toolkit.questions.states import state_facts, state_names

FORMS = ("choice", "open")
READERS: dict[str, tuple[Callable[[], list[Fact]], ...]] = {  # names go to the first that has them
    "capitals": (capitals,),
    "us_states": (state_facts, state_cities),
    "chemistry": (chemistry,),
    "languages": (languages,),
    "currencies": (currencies,),
    "country_codes": (codes,),
    "geography": (continents, neighbours),
    "cities": (cities,),
    "airports": (airports,),
}


def domains() -> tuple[str, ...]:
    """The fields of knowledge that there are questions on.

    Returns:
        Names of domains.
    """
    return tuple(READERS)


def worldfacts(domain: str, split: str, form: str) -> list[Question]:
    """The questions of one domain and split.

    Args:
        domain: One of `domains()`.
        split: "train", "validation" or "test".
        form: "choice" for four options, "open" for a free answer.

    Returns:
        The questions, in an order that is always the same.

    Raises:
        CalibrantError: If there is no such domain or form.
    """
    if domain not in READERS:
        raise CalibrantError(f"unknown domain {domain!r}; choose one of {', '.join(READERS)}")
    if form not in FORMS:
        raise CalibrantError(f"unknown form {form!r}; choose one of {', '.join(FORMS)}")
    facts = [f for f in _facts().get(domain, []) if _split_of()[f.entity] == split]
    questions = _open_ended(domain, facts) if form == "open" else _multiple_choice(domain, facts)
    return sorted(questions, key=lambda question: stable_hash(question.id))


@cache
def _entity_names() -> dict[str, tuple[str, ...]]:
    return country_names() | state_names() | element_names() | language_names()


@cache
def _split_of() -> dict[str, str]:
    return assign_splits(_entity_names())


@cache
def _facts() -> dict[str, list[Fact]]:
    """All facts by domain, without those whose names would be seen in two splits."""
    read = {domain: [f for r in readers for f in r()] for domain, readers in READERS.items()}
    everything = (fact for facts in read.values() for fact in facts)
    kept = {
        (fact.kind, fact.key): fact for fact in keep_names_apart(everything, _entity_names(), _split_of())
    }
    return {
        domain: [kept[f.kind, f.key] for f in facts if (f.kind, f.key) in kept]
        for domain, facts in read.items()
    }


def _name(domain: str, fact: Fact) -> str:
    return f"{domain}/{fact.kind}/{fact.key}"


def _multiple_choice(domain: str, facts: list[Fact]) -> list[Question]:
    kinds = defaultdict(list)
    for fact in facts:
        kinds[fact.kind].append(fact)
    questions: list[Question] = []
    for kind in kinds.values():
        for group in group_in_fours(kind):
            entities = tuple(sorted({fact.entity for fact in group}))
            for fact, (choices, place) in zip(group, arrange(group), strict=True):
                questions.append(
                    MultipleChoice(_name(domain, fact), fact.text, choices, place, fact.kind, entities)
                )
    return questions


def _open_ended(domain: str, facts: list[Fact]) -> list[Question]:
    return [
        OpenEnded(
            _name(domain, fact),
            fact.text,
            tuple(dict.fromkeys((fact.answer, *fact.aliases))),
            fact.kind,
            (fact.entity,),
        )
        for fact in facts
        if fact.open
    ]
