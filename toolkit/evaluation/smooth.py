"""Smooth ECE: a calibration error without bins (arXiv 2309.12236).

The residual (right - confidence) of every question is spread around its confidence by a Gaussian of
width σ that is reflected at 0 and 1; smECE_σ is the integral of the absolute value of what adds up,
and falls as σ grows. Smooth ECE is the σ at which smECE_σ = σ: the blur is as wide as the error.

On [0, 1] the reflected Gaussian is, exactly,

    K_σ(t, f) = 1 + 2 Σ_{k≥1} exp(-(πkσ)²/2) cos(πkt) cos(πkf),

so the spread residual at a grid of t is one cosine transform of the mean residuals
c_k = mean_n (right_n - f_n) cos(πk f_n), each times its factor. A resample has its own c_k and
needs nothing else of its questions. Nothing is rounded to a grid of confidences; what is approximated
is the integral (a sum over midpoints σ/8 apart or closer) and the crossing (secants); the sum of both
errors is below 1e-5.

Below σ = 1/1024 no crossing is looked for: the value there is smECE_σ at that σ, which lies between
the true one and 1/1024. It is 0 only where every confidence is 0 or 1 and right, or residuals cancel.

The authors' package `relplot` 1.0 differs in four ways. It stops the search for σ at steps of 1/1024;
it sums over 200 points, both ends of the interval among them in full (`config.smECE_mesh_pts`); it
cuts the Gaussian off at a distance of 1/2, which shows where σ is above 0.15; and it does not reflect
what lies within 1/1000 of 0 or 1, so that a confidence of exactly 1 counts half. Away from all that
the two agree within 3e-4 at equal σ.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

_WIDTHS = (1 / 64, 1 / 256, 1 / 1024)  # least σ of each try; a finer one costs more and serves what is left
_SECANTS = 4
_ENTRIES = 4_000_000  # of a block of cosines; 32 MB as float64


def smooth_ece(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> float:
    """Smooth ECE of the given answers (arXiv 2309.12236).

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).

    Returns:
        A probability.
    """
    return float(resampled_smooth_ece(np.ones((1, len(confidence))), confidence, correct)[0])


def resampled_smooth_ece(
    weights: NDArray[np.float64], confidence: NDArray[np.float64], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Smooth ECE of R resamples together.

    Args:
        weights: How often each resample holds each question, shape (R, N).
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).

    Returns:
        Shape (R,).
    """
    found = np.empty(len(weights))
    left = np.arange(len(weights))  # resamples whose crossing lies below every σ so far
    for least in _WIDTHS:
        if len(left) == 0:
            break
        moments = _moments(weights[left], confidence, correct, round(2 / least))
        rows = max(_ENTRIES // (4 * moments.shape[1]), 1)
        for start in range(0, len(left), rows):
            found[left[start : start + rows]] = _crossing(moments[start : start + rows], least)
        left = left[found[left] < least]
    return found


def _moments(
    weights: NDArray[np.float64], confidence: NDArray[np.float64], correct: NDArray[np.bool_], terms: int
) -> NDArray[np.float64]:
    """Returns c_k = Σ_n w_n (right_n - f_n) cos(πk f_n) / Σ_n w_n for k < terms, shape (R, terms)."""
    residual = correct - confidence
    step = max(_ENTRIES // len(confidence), 1)
    blocks = [
        weights
        @ (np.cos(np.pi * np.outer(confidence, np.arange(k, min(k + step, terms)))) * residual[:, None])
        for k in range(0, terms, step)
    ]
    return np.concatenate(blocks, axis=1) / weights.sum(axis=1, keepdims=True)


def _smoothed(moments: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns smECE_σ of each row at the row's own σ, shape (R,); terms beyond 2/σ are below 3e-9."""
    factors = np.exp(-((np.pi * np.arange(moments.shape[1]) * width[:, None]) ** 2) / 2)
    # A transform of type III is c_0 + 2 Σ_k c_k cos(πk t_j) at the midpoints t_j = (j + 1/2)/n.
    spread = dct(moments * factors, type=3, n=4 * moments.shape[1], axis=1, overwrite_x=True)
    return np.abs(spread, out=spread).mean(axis=1)


def _crossing(moments: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Returns the σ where smECE_σ = σ, or smECE at `least` in the rows where it is below that, shape (R,).

    smECE_σ falls in σ, so that the crossing lies between any σ and smECE_σ, and each secant through
    these two stays between them.
    """
    low = np.full(len(moments), least)
    found = _smoothed(moments, low)
    below = found < least
    if below.all():
        return found
    x, at_x = low, found
    for _ in range(_SECANTS):
        y = np.maximum(at_x, least)
        rise = (_smoothed(moments, y) - y) - (at_x - x)
        x = x - np.divide((at_x - x) * (y - x), rise, out=np.zeros(len(x)), where=rise != 0)
        at_x = _smoothed(moments, x)
    return np.where(below, found, x)
