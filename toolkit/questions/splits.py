"""Which split an entity belongs to, so that no name is seen in two of them."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from toolkit.questions.fact import Fact, words

SPLITS = ("train", "validation", "test")
ENDS = (0.55, 0.70)  # of the shares of train and validation

Names = Mapping[str, tuple[str, ...]]


def assign_splits(names: Names) -> dict[str, str]:
    """Give each entity a split by a hash of its key.

    Entities of which a name is the same, or is part of another's ("Guinea", "Equatorial Guinea",
    "Papua New Guinea"), share a split.

    Args:
        names: Names by entity.

    Returns:
        Splits by entity.
    """
    owners = defaultdict(set)
    for entity, own in names.items():
        for name in own:
            owners[words(name)].add(entity)
    parent = {entity: entity for entity in names}

    def root(entity: str) -> str:
        while parent[entity] != entity:
            entity = parent[entity]
        return entity

    for entity, own in names.items():
        for name in own:
            for part in _runs(words(name)):
                for other in sorted(owners.get(part, ())):
                    low, high = sorted((root(entity), root(other)))
                    parent[high] = low
    return {entity: _hashed_split(root(entity)) for entity in names}


def keep_names_apart(facts: Iterable[Fact], names: Names, split_of: Mapping[str, str]) -> list[Fact]:
    """Drop facts, and aliases of facts, that hold a name which belongs to another split.

    Such names are those of entities, and those of capitals, cities and the like, which belong to
    the first fact that has them. "New Mexico" holds "Mexico", and "Gold Coast" holds "gold".

    Args:
        facts: All facts of all domains, those to keep first.
        names: Names by entity.
        split_of: Splits by entity.

    Returns:
        The facts that remain, in the same order.
    """
    owner: dict[tuple[str, ...], str] = {}  # split of a whole name
    parts: dict[tuple[str, ...], set[str]] = defaultdict(set)  # splits of a text with these words

    def take(name: str, split: str) -> None:
        owner[words(name)] = split
        read(name, split)

    def read(text: str, split: str) -> None:
        for run in _runs(words(text)):
            parts[run].add(split)

    def foreign(text: str, split: str) -> bool:
        return any(owner.get(run, split) != split for run in _runs(words(text)))

    for entity, own in names.items():
        for name in own:
            take(name, split_of[entity])
    kept = []
    for fact in facts:
        split = split_of[fact.entity]
        clash = any(foreign(text, split) for text in (fact.text, fact.answer, *fact.names))
        clash |= any(parts[words(name)] - {split} for name in fact.names)
        if clash:
            continue
        for name in fact.names:
            take(name, split)
        read(fact.text, split)
        aliases = tuple(alias for alias in fact.aliases if not foreign(alias, split))
        for alias in aliases:
            read(alias, split)
        kept.append(replace(fact, aliases=aliases))
    return kept


def _runs(sequence: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for start in range(len(sequence)):
        for stop in range(start + 1, len(sequence) + 1):
            yield sequence[start:stop]


def _hashed_split(key: str) -> str:
    digest = hashlib.sha256(key.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return SPLITS[sum(share >= end for end in ENDS)]
