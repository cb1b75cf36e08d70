"""Semantic confidence: how often sampled answers of one meaning come (arXiv 2605.08432, 2302.09664).

N questions have n sampled answers each. `clusters` has shape (N, n): the number of each answer's cluster, by
first appearance within its question, as `toolkit.confidence.clusters` gives it. The answers must be in the
order in which they were drawn, and drawn alike: no greedy answer among them.

The answer that a question is said to get is the first of its largest cluster. Of equally large clusters it is
the one that appears first. As the answers are drawn independently, each of those is the first to appear
equally often, whether it is right or not: this is a fair draw without a generator, where clusters do not
depend on the order of the answers.

`sem1` is the share of that cluster. It is too high on average, since the same answers choose the cluster and
measure it. `sem2` chooses on one half of the answers and measures on the other.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from toolkit.errors import CalibrantError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def cluster_counts(clusters: Ints) -> Ints:
    """Returns how many answers each cluster has, 0 for one that a question lacks.

    Args:
        clusters: Shape (N, n).

    Returns:
        Shape (N, C), C being the most clusters of a question.

    Raises:
        CalibrantError: The clusters are not numbered by first appearance, or there are no answers.
    """
    return _sums(clusters, np.ones(clusters.shape)).astype(np.int64)


def _sums(clusters: Ints, weights: Floats) -> Floats:
    """Returns the sum of the weights of each cluster's answers, shape (N, C)."""
    if clusters.ndim != 2 or clusters.size == 0:
        raise CalibrantError(
            f"clusters of shape {clusters.shape} have no answers; give as many answers, at least one, to "
            "each question"
        )
    known = np.maximum.accumulate(clusters, axis=1)
    before = np.pad(known[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    if ((clusters < 0) | (clusters > before + 1)).any():
        raise CalibrantError(
            "clusters are not numbered by first appearance; number the answers of each question 0, 1, 2, ..."
        )
    count = int(clusters.max()) + 1
    places = clusters + count * np.arange(len(clusters))[:, None]
    sums = np.bincount(places.ravel(), weights.ravel(), minlength=count * len(clusters))
    return sums.reshape(len(clusters), count).astype(np.float64)


def modal(clusters: Ints) -> Ints:
    """Returns which of its answers each question is said to get, shape (N,); see the top of this file.

    Args:
        clusters: Shape (N, n).
    """
    return (clusters == cluster_counts(clusters).argmax(axis=1)[:, None]).argmax(axis=1)


def sem1(clusters: Ints) -> Floats:
    """Returns the share of the largest cluster among all answers, shape (N,) (arXiv 2605.08432).

    Args:
        clusters: Shape (N, n).
    """
    return cluster_counts(clusters).max(axis=1) / clusters.shape[1]


def sem2(clusters: Ints, ids: Sequence[str], *, splits: int = 10, seed: int = 0) -> Floats:
    """Returns the share that the largest cluster of one half has in the other half (arXiv 2605.08432).

    It is a mean over random splits. Of n answers ⌊n/2⌋ choose, and the others measure. Where several clusters
    are the largest of the half, the mean of their shares counts: to take the first of them, by appearance
    among all answers, would favour one that is frequent in the other half.

    Args:
        clusters: Shape (N, n), n at least 2.
        ids: Names of the questions. The splits of a question depend on its name, n, the number of splits and
            the seed, and on no other question.
        splits: Number R of splits.
        seed: Seed of the splits.

    Returns:
        Shape (N,).

    Raises:
        CalibrantError: There is only one answer to each question.
    """
    counts = cluster_counts(clusters)
    n = clusters.shape[1]
    if n < 2:
        raise CalibrantError("one answer to each question cannot be split in halves; sample two or more")
    choosing = np.tile(np.arange(n) < n // 2, (splits, 1))
    found = np.empty(len(clusters))
    for i, (row, id_) in enumerate(zip(clusters, ids, strict=True)):
        first = _generator(id_, seed).permuted(choosing, axis=1)
        chosen = first.astype(np.int64) @ (row[:, None] == np.arange(counts.shape[1]))  # (R, C)
        largest = chosen == chosen.max(axis=1, keepdims=True)
        shares = (counts[i] - chosen) / (n - n // 2)
        found[i] = ((largest * shares).sum(axis=1) / largest.sum(axis=1)).mean()
    return found.round(12)  # many lie on an edge between two bins, and must not miss it by rounding errors


def _generator(id_: str, seed: int) -> np.random.Generator:
    """Returns the generator of a question, the same on every machine."""
    digest = hashlib.sha256(id_.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


def semantic_entropy(clusters: Ints) -> Floats:
    """Returns the entropy of the clusters' shares, -Σ_c p_c log p_c, shape (N,), in nats.

    This is the discrete form, which needs no probabilities from the model. It lies between 0 and log n.

    Args:
        clusters: Shape (N, n).
    """
    return entr(cluster_counts(clusters) / clusters.shape[1]).sum(axis=1)


def weighted_semantic_entropy(clusters: Ints, log_probs: Floats, answers: Sequence[Sequence[str]]) -> Floats:
    """Returns the entropy of clusters that weigh what the model gives to their answers, shape (N,), in nats.

    That is -Σ_c p_c log p_c with p_c ∝ Σ_s p(s) over the different answers s of a cluster (the definition of
    arXiv 2302.09664). An answer that was drawn twice counts once, for p(s) says already how often it comes.
    The p_c add up to 1 over the clusters that were found; the paper's own estimate, the mean of -log p_c over
    the clusters, leaves them as they are, and is no entropy of what was found.

    Args:
        clusters: Shape (N, n).
        log_probs: Log-probability of each answer's tokens, shape (N, n), in nats: their sum, or their mean
            for the length-normalised variant.
        answers: The answers as they were drawn, n for each of N questions.

    Raises:
        CalibrantError: A log-probability is not finite, or as `cluster_counts`.
    """
    if not np.isfinite(log_probs).all():
        raise CalibrantError("a sampled answer has no finite log-probability; use the dtype float32")
    first = np.array([[text not in row[:i] for i, text in enumerate(row)] for row in answers])
    weights = np.exp(log_probs - log_probs.max(axis=1, keepdims=True)) * first
    mass = _sums(clusters, weights)
    return entr(mass / mass.sum(axis=1, keepdims=True)).sum(axis=1)
