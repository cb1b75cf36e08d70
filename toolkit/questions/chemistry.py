"""Facts about chemical elements (periodictable)."""

from functools import cache
from typing import Any

import periodictable

from toolkit.questions.fact import Fact

SPELLINGS = {"aluminum": "aluminium", "cesium": "caesium", "sulfur": "sulphur"}
PER_BLOCK = 20  # numbers of one block are preferred as each other's distractors


@cache
def _elements() -> tuple[Any, ...]:
    return tuple(element for element in periodictable.elements if element.number >= 1)


def element_names() -> dict[str, tuple[str, ...]]:
    """The names of elements.

    Returns:
        Names by entity.
    """
    return {f"element:{e.symbol}": (e.name,) for e in _elements()}


def chemistry() -> list[Fact]:
    """Symbols and atomic numbers, in both directions.

    Returns:
        Facts of the kinds "symbol" and "atomic_number", each also with "_of".
    """
    facts = []
    for element in _elements():
        symbol, name, number = element.symbol, element.name, element.number
        about = (f"element:{symbol}", (name,))
        letter, block = name[0], str((number - 1) // PER_BLOCK)
        other = (SPELLINGS[name],) if name in SPELLINGS else ()
        text = f"What is the chemical symbol of {name}?"
        facts.append(Fact("symbol", symbol, text, symbol, *about, letter))
        text = f"Which chemical element has the symbol {symbol}?"
        facts.append(Fact("symbol_of", symbol, text, name, *about, letter, other))
        text = f"What is the atomic number of {name}?"
        facts.append(Fact("atomic_number", symbol, text, str(number), *about, block))
        text = f"Which chemical element has the atomic number {number}?"
        facts.append(Fact("atomic_number_of", symbol, text, name, *about, block, other))
    return facts
