"""Options for facts, such that the options alone give nothing away."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable

from toolkit.questions.fact import Fact

OPTIONS = 4


def group_in_fours(facts: Iterable[Fact]) -> list[tuple[Fact, ...]]:
    """Group facts of one kind and split, so that each four share their answers as options.

    In such a group each option is right once and wrong three times, and stands once at each
    place as the right one. So whatever is guessed from the options alone is right in exactly one
    of the four, whatever the frequencies of the answers: a distractor is drawn exactly three times
    as often as it is an answer.

    Facts of one region are grouped first, then what is left over of all regions; at the end up
    to a few facts are left without a group.

    Args:
        facts: Facts of one kind and split.

    Returns:
        Groups of four facts, no answer of which is right for another.
    """
    regions = defaultdict(list)
    for fact in sorted(facts, key=lambda f: stable_hash(f.kind, f.key)):
        regions[fact.region].append(fact)
    groups, left = [], []
    for region in sorted(regions):
        found, rest = _group(regions[region])
        groups += found
        left += rest
    found, _ = _group(left)
    return groups + found


def arrange(group: tuple[Fact, ...]) -> list[tuple[tuple[str, ...], int]]:
    """Options and the place of the right one, for each fact of a group.

    Args:
        group: Four facts.

    Returns:
        Options in their order and the index of the right one; each index occurs once.
    """
    seed = [group[0].kind, *sorted(fact.key for fact in group)]
    index = sorted(range(OPTIONS), key=lambda i: stable_hash("place", str(i), *seed))
    placed = []
    for fact, place in zip(group, index, strict=True):
        wrong = [other.answer for other in group if other is not fact]
        wrong.sort(key=lambda answer: stable_hash(answer, fact.key, *seed))
        placed.append((tuple(wrong[:place] + [fact.answer] + wrong[place:]), place))
    return placed


def stable_hash(*parts: str) -> str:
    """A hash that is the same on every machine.

    Args:
        *parts: Texts.

    Returns:
        Hexadecimal digits.
    """
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _group(facts: list[Fact]) -> tuple[list[tuple[Fact, ...]], list[Fact]]:
    """Group as many as possible; the answers with most facts left come first."""
    groups, left = [], []
    remaining = list(facts)
    while remaining:
        count = Counter(fact.answer for fact in remaining)
        turn = str(len(remaining))  # mixes answers of one frequency anew each time
        remaining.sort(key=lambda f: (-count[f.answer], stable_hash(turn, f.kind, f.key)))
        group: list[Fact] = []
        for fact in remaining:
            if all(_apart(fact, other) for other in group):
                group.append(fact)
                if len(group) == OPTIONS:
                    break
        if len(group) == OPTIONS:
            groups.append(tuple(group))
            remaining = [fact for fact in remaining if fact not in group]
        else:
            left.append(remaining.pop(0))
    return groups, left


def _apart(one: Fact, other: Fact) -> bool:
    return one.answer != other.answer and one.answer not in other.rivals and other.answer not in one.rivals
