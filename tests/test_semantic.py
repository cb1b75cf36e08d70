"""Semantic confidence against loops, all half-splits, and what is known in closed form."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from toolkit.confidence.clusters import by_text
from toolkit.confidence.semantic import (
    cluster_counts,
    modal,
    sem1,
    sem2,
    semantic_entropy,
    weighted_semantic_entropy,
)
from toolkit.errors import CalibrantError
from toolkit.evaluation.metrics import bin_indices


def drawn(questions, n, seed, peak=1.0):
    """Answers of random distributions, as clusters of shape (N, n)."""
    rng = np.random.default_rng(seed)
    rows = [
        by_text([str(a) for a in rng.choice(6, n, p=rng.dirichlet(np.full(6, peak)))])
        for _ in range(questions)
    ]
    return np.array(rows)


def all_splits(row, ties_to_first=False):
    """Mean over all half-splits of the share that the first half's most frequent ones have in the second."""
    n, shares = len(row), []
    for chosen in combinations(range(n), n // 2):
        counts = Counter(row[i] for i in chosen)
        other = Counter(row[i] for i in range(n) if i not in chosen)
        largest = [c for c in counts if counts[c] == max(counts.values())]
        if ties_to_first:
            largest = [min(largest, key=row.index)]
        shares.append(Fraction(sum(other[c] for c in largest), len(largest) * (n - n // 2)))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_counts_share_and_entropy_equal_loops(n):
    clusters = drawn(40, n, seed=n)
    counts, entropies = cluster_counts(clusters), semantic_entropy(clusters)
    for row, own, first, share, entropy in zip(
        clusters.tolist(), counts, modal(clusters), sem1(clusters), entropies, strict=True
    ):
        loop = Counter(row)
        assert {c: k for c, k in enumerate(own) if k} == dict(loop)
        assert row[first] == loop.most_common(1)[0][0]  # of equal ones that met first
        assert first == row.index(row[first])
        assert share == max(loop.values()) / n
        assert entropy == pytest.approx(-sum(k / n * math.log(k / n) for k in loop.values()))


@pytest.mark.parametrize(
    "row",
    [
        [0, 0, 0, 1, 1, 2, 3, 0],
        [0, 1, 0, 1, 0, 1, 0, 1],
        [0, 1, 1, 2, 2, 3],
        [0, 1, 0],
        [0, 1, 1, 0, 2, 1, 2],
        [0, 1],
    ],
)
def test_splits_come_to_the_mean_over_all_of_them(row):
    found = sem2(np.array([row]), ["id"], splits=20_000)
    assert found[0] == pytest.approx(float(all_splits(row)), abs=5 * 0.5 / math.sqrt(20_000))
    few = sem2(np.array([row] * 500), [str(i) for i in range(500)])
    assert few.mean() == pytest.approx(float(all_splits(row)), abs=5 * 0.5 / math.sqrt(5000))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 50])
def test_known_shares(n):
    alike, apart = np.zeros((1, n), dtype=int), np.arange(n)[None]
    assert (sem1(alike), sem2(alike, ["a"]), semantic_entropy(alike)) == (1, 1, 0)
    # No answer of one half is in the other.
    assert (sem1(apart), sem2(apart, ["a"])) == (1 / n, 0)
    assert semantic_entropy(apart) == pytest.approx(math.log(n))


@pytest.mark.parametrize(("n", "exact"), [(4, 1 / 2), (5, 3 / 5), (6, 5 / 6), (7, 6 / 7), (50, 49 / 50)])
def test_one_answer_apart(n, exact):
    """Whichever half has it, (n - 1)/n in the mean; a half that chooses by two answers has a tie."""
    clusters = np.array([[0] * (n - 1) + [1]])
    assert sem2(clusters, ["a"], splits=8000)[0] == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("p", [(0.5, 0.5), (0.6, 0.3, 0.1)])
def test_it_is_unbiased_for_the_probability_of_the_chosen_answer(p):
    """Over all sequences of independent answers; `sem1` is too high, and so is a tie by first appearance."""
    n = 4
    two, first, one = 0.0, 0.0, 0.0
    for sequence in product(range(len(p)), repeat=n):
        weight = math.prod(p[a] for a in sequence)
        two += weight * float(all_splits(sequence))
        first += weight * float(all_splits(sequence, ties_to_first=True))
        one += weight * max(Counter(sequence).values()) / n
    chosen = 0.0  # probability of the answer that half of the sequence chooses, ties shared
    for half in product(range(len(p)), repeat=n // 2):
        counts = Counter(half)
        largest = [a for a in counts if counts[a] == max(counts.values())]
        chosen += math.prod(p[a] for a in half) * sum(p[a] for a in largest) / len(largest)
    assert two == pytest.approx(chosen)
    assert first > chosen + 0.03
    assert one > chosen + 0.05
    rng = np.random.default_rng(0)
    rows = np.array([by_text([str(a) for a in rng.choice(len(p), n, p=p)]) for _ in range(4000)])
    assert sem2(rows, [str(i) for i in range(4000)]).mean() == pytest.approx(chosen, abs=0.02)


def test_of_equal_clusters_each_is_the_answer_equally_often():
    firsts = Counter(
        sequence[modal(np.array([by_text(sequence)]))[0]]
        for sequence in product("abc", repeat=4)
        if sorted(Counter(sequence).values()) == [2, 2]
    )
    assert len(firsts) == 3 and len(set(firsts.values())) == 1


def test_splits_of_a_question_depend_on_no_other():
    clusters = drawn(12, 21, seed=0)
    ids = [f"question {i}" for i in range(12)]
    found = sem2(clusters, ids, seed=3)
    order = np.random.default_rng(1).permutation(12)
    np.testing.assert_array_equal(sem2(clusters[order], [ids[i] for i in order], seed=3), found[order])
    alone = [sem2(clusters[i : i + 1], ids[i : i + 1], seed=3)[0] for i in range(12)]
    np.testing.assert_array_equal(alone, found)
    assert (sem2(clusters, ids, seed=4) != found).any()
    same = np.repeat(clusters[:1], 12, axis=0)
    assert len(set(sem2(same, ids).tolist())) > 1  # other names, other splits


def test_shares_on_an_edge_lie_in_the_bin_below_it():
    clusters = drawn(800, 50, seed=7)
    found = sem2(clusters, [str(i) for i in range(800)])
    exact = [Fraction(share).limit_denominator(10 * 25 * 60) for share in found.tolist()]
    on_edge = [share for share in exact if share and (10 * share).denominator == 1]
    assert len(on_edge) > 20
    bins = [max(math.ceil(10 * share) - 1, 0) for share in exact]
    assert bin_indices(found, 10).tolist() == bins


@pytest.mark.parametrize("n", [1, 6])
def test_weighted_entropy_equals_a_loop(n):
    rng = np.random.default_rng(n)
    answers = [[str(a) for a in rng.integers(5, size=n)] for _ in range(30)]
    log_p = [{str(a): rng.normal(-900, 2) for a in range(5)} for _ in range(30)]  # nothing in a float as such
    clusters = np.array([by_text([str(int(text) % 3) for text in row]) for row in answers])
    log_probs = np.array([[own[text] for text in row] for own, row in zip(log_p, answers, strict=True)])
    found = weighted_semantic_entropy(clusters, log_probs, answers)
    for row, own, entropy in zip(answers, log_p, found, strict=True):
        mass = dict.fromkeys(range(3), 0.0)
        for text in set(row):
            mass[int(text) % 3] += math.exp(own[text] + 900)
        total = sum(mass.values())
        assert entropy == pytest.approx(-sum(m / total * math.log(m / total) for m in mass.values() if m))


def test_weighted_entropy_of_all_answers_there_are_is_the_true_one():
    """However often each was drawn: p(s) says it already. Frequencies come to the same with many samples."""
    p = {"Paris": 0.5, "It is Paris": 0.2, "Lyon": 0.3}
    rng = np.random.default_rng(0)
    answers = rng.choice(list(p), 4000, p=list(p.values())).tolist()
    clusters = np.array([by_text([text.removeprefix("It is ") for text in answers])])
    log_probs = np.log([[p[text] for text in answers]])
    true = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    assert weighted_semantic_entropy(clusters, log_probs, [answers])[0] == pytest.approx(true)
    assert semantic_entropy(clusters)[0] == pytest.approx(true, abs=0.02)


def test_a_constant_in_the_log_probabilities_does_not_matter():
    clusters, answers = drawn(5, 8, seed=2), [[str(i) for i in range(8)]] * 5
    log_probs = np.random.default_rng(3).normal(size=(5, 8))
    found = weighted_semantic_entropy(clusters, log_probs, answers)
    np.testing.assert_allclose(weighted_semantic_entropy(clusters, log_probs - 5000, answers), found)
    equal = weighted_semantic_entropy(clusters, np.zeros((5, 8)), answers)
    np.testing.assert_allclose(equal, semantic_entropy(clusters))


@pytest.mark.parametrize("clusters", [[[1, 0]], [[0, 2]], [[0, -1]], [[]], [0, 1]])
def test_what_are_no_clusters_is_refused_in_one_line(clusters):
    with pytest.raises(CalibrantError) as caught:
        sem1(np.array(clusters, dtype=int))
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


def test_one_answer_has_no_halves_and_probabilities_must_be_there():
    with pytest.raises(CalibrantError, match="sample two or more"):
        sem2(np.zeros((2, 1), dtype=int), ["a", "b"])
    with pytest.raises(CalibrantError, match="float32"):
        weighted_semantic_entropy(np.zeros((1, 2), dtype=int), np.array([[-1, -np.inf]]), [["a", "b"]])
