"""Post-hoc baselines: what can be had without training."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

Floats = NDArray[np.float64]


def temper(log_probs: Floats, temperature: float) -> Floats:
    """Returns log softmax(log p / T) in nats, shape (N, K); -inf stays -inf."""
    return np.asarray(log_softmax(log_probs / temperature, axis=1), dtype=np.float64)


def fit_temperature(
    log_probs: Floats, answers: NDArray[np.int64], limits: tuple[float, float] = (0.01, 100.0)
) -> float:
    """Fits the one temperature T that minimises the NLL (Guo et al. 2017, arXiv 1706.04599).

    The NLL is convex in 1/T, so a bounded search over log T finds its only minimum.

    Args:
        log_probs: Log-probabilities of the options, shape (N, K), in nats.
        answers: Index of the right option, shape (N,).
        limits: Least and greatest T. A model that is always right, or no better than chance, ends at one of
            them: its optimum is 0 or infinity.
    """
    rows = np.arange(len(answers))

    def nll(log_temperature: float) -> float:
        return float(-temper(log_probs, np.exp(log_temperature))[rows, answers].mean())

    found = minimize_scalar(nll, bounds=tuple(np.log(limits)), method="bounded", options={"xatol": 1e-8})
    return float(np.exp(found.x))


def contextual(log_probs: Floats, without_content: Sequence[Floats]) -> Floats:
    """Returns log p, divided by the option probabilities of content-free prompts (arXiv 2102.09690).

    Args:
        log_probs: Log-probabilities of the options, shape (N, K), in nats; -inf for absent ones.
        without_content: The same of each content-free prompt; the mean of their probabilities divides.

    Returns:
        Normalised log-probabilities, shape (N, K).
    """
    present = np.isfinite(log_probs)
    leaning = logsumexp(np.stack(without_content), axis=0) - np.log(len(without_content))
    divided = np.where(present, log_probs - np.where(present, leaning, 0.0), -np.inf)
    return np.asarray(log_softmax(divided, axis=1), dtype=np.float64)
