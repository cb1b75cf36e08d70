"""Facts about the states of the United States (us)."""

from functools import cache

import us

from toolkit.questions.fact import Fact, words


@cache
def states() -> dict[str, us.states.State]:
    """The fifty states.

    Returns:
        States by their postal abbreviation.
    """
    return {state.abbr: state for state in us.states.STATES if state.abbr != "DC"}


def state_entity(code: str) -> str:
    """The entity of a state.

    Args:
        code: Its postal abbreviation.

    Returns:
        A key such as "state:CA".
    """
    return f"state:{code}"


def state_names() -> dict[str, tuple[str, ...]]:
    """The names of states.

    Returns:
        Names by entity.
    """
    return {state_entity(code): (state.name,) for code, state in states().items()}


def state_facts() -> list[Fact]:
    """Capitals, abbreviations and years of admission.

    Returns:
        Facts of the kinds "state_capital", "state_code", each also with "_of", and "statehood".
    """
    facts = []
    for code, state in states().items():
        name, capital = state.name, state.capital or ""
        about = (state_entity(code), (name,))
        if not set(words(name)) & set(words(capital)):
            both = (state_entity(code), (name, capital))
            text = f"What is the capital of the U.S. state of {name}?"
            facts.append(Fact("state_capital", code, text, capital, *both))
            text = f"{capital} is the capital of which U.S. state?"
            facts.append(Fact("state_capital_of", code, text, name, *both))
        text = f"What is the postal abbreviation of the U.S. state of {name}?"
        facts.append(Fact("state_code", code, text, code, *about))
        text = f"Which U.S. state has the postal abbreviation {code}?"
        facts.append(Fact("state_code_of", code, text, name, *about))
        text = f"In which year did {name} become a U.S. state?"
        facts.append(Fact("statehood", code, text, str(state.statehood_year), *about))
    return facts
