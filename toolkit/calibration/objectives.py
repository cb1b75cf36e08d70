"""The upper level: what α is chosen for. Each objective F is minimised."""

from collections.abc import Callable

import torch
from torch import Tensor


def entropy(log_probs: Tensor) -> Tensor:
    """Returns −Σ p log p in nats, shape (N,), from log-probabilities (N, K); 0 log 0 = 0."""
    present = log_probs.isfinite()
    safe = torch.where(present, log_probs, 0.0)  # keeps the gradient of absent options finite
    return -(torch.where(present, safe.exp(), 0.0) * safe).sum(-1)


def closeness_to_uniform(log_probs: Tensor) -> Tensor:
    """Returns −KL(u ‖ p) = log K + Σ log p / K in nats, shape (N,), u uniform over the K present options.

    Like the entropy log K − KL(p ‖ u) it is greatest, here 0, at the uniform distribution. But the entropy's
    gradient vanishes where p is close to 0 or 1, so that it never reaches the answers that are most
    overconfident; this one's does not. It is the other direction of the same divergence, as label smoothing
    is to the confidence penalty (arXiv 1701.06548).

    Args:
        log_probs: Log-probabilities, shape (N, K); -inf for absent options.
    """
    present = log_probs.isfinite()
    count = present.sum(-1)
    return count.log() + torch.where(present, log_probs, 0.0).sum(-1) / count


def ascend(mean_spread: Tensor, mean_entropy: Tensor, mean_nll: Tensor) -> Tensor:
    """F = −spread in nats, shape (): CALM's upper objective, which needs no labels (arXiv 2608.07419).

    Args:
        mean_spread: Mean of a measure of spread over the held-out inputs, such as the entropy, shape ().
        mean_entropy: Ignored.
        mean_nll: Ignored.
    """
    return -mean_spread


def ascend_to_match(
    mean_spread: Tensor, mean_entropy: Tensor, mean_nll: Tensor, margin: float = 0.0
) -> Tensor:
    """F = −spread while H̄ <= NLL and +spread beyond: the spread is raised subject to H̄ <= NLL.

    Where the constraint is broken, the way back comes before everything else. At the temperature that
    minimises NLL, E[H] = E[NLL] (Guo et al. 2017, arXiv 1706.04599): an overconfident model has H̄ < NLL, a
    uniform one H̄ > NLL.

    Args:
        mean_spread: Mean of a measure of spread over the held-out inputs, shape ().
        mean_entropy: H̄, the mean predictive entropy of such inputs in nats, shape ().
        mean_nll: Mean −log p(answer) of the same inputs in nats, shape ().
        margin: Nats around the match within which F fades: it is −(NLL − H̄) / margin · spread there. The
            means that decide come late, and what moves fast would be carried far past the match.
    """
    if margin == 0:
        return torch.where(mean_entropy <= mean_nll, -mean_spread, mean_spread)
    return -((mean_nll - mean_entropy) / margin).clamp(-1, 1) * mean_spread


Spread = Callable[[Tensor], Tensor]
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]

OBJECTIVES: dict[str, tuple[Spread, Objective]] = {
    "entropy": (entropy, ascend),
    "entropy_matched": (entropy, ascend_to_match),
    "uniform": (closeness_to_uniform, ascend),
    "uniform_matched": (closeness_to_uniform, ascend_to_match),
}
"""The upper objectives by the names that a config uses: a measure of spread, and what is done with it."""
