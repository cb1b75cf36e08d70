"""The upper level: what α is chosen for. Each objective F is minimised."""

import torch
from torch import Tensor


def entropy(log_probs: Tensor) -> Tensor:
    """Returns −Σ p log p in nats, shape (N,), from log-probabilities (N, K); 0 log 0 = 0."""
    present = log_probs.isfinite()
    safe = torch.where(present, log_probs, 0.0)  # keeps the gradient of absent options finite
    return -(torch.where(present, safe.exp(), 0.0) * safe).sum(-1)


def negative_entropy(mean_entropy: Tensor, mean_nll: Tensor) -> Tensor:
    """CALM's upper objective F = −H̄ in nats, shape (); it needs no labels (arXiv 2608.07419).

    Args:
        mean_entropy: H̄, mean predictive entropy of the held-out inputs, shape ().
        mean_nll: Ignored.
    """
    return -mean_entropy


def entropy_mismatch(mean_entropy: Tensor, mean_nll: Tensor) -> Tensor:
    """F = (H̄ − NLL)² / 2 in nats², NLL held constant: raise H̄ to where it equals the NLL, no further.

    At the temperature that minimises NLL, E[H] = E[NLL] (Guo et al. 2017, arXiv 1706.04599): an overconfident
    model has H̄ < NLL, a uniform one H̄ > NLL.

    Args:
        mean_entropy: H̄, mean predictive entropy of the held-out inputs, shape ().
        mean_nll: Mean −log p(answer) of the same inputs, shape ().
    """
    return 0.5 * (mean_entropy - mean_nll.detach()) ** 2


OBJECTIVES = {"entropy": negative_entropy, "entropy_matched": entropy_mismatch}
"""The upper objectives by the names that a config uses."""
