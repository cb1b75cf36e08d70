"""Means over the last steps, where one batch alone would be too noisy."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class RunningMeans:
    """Exponentially weighted means of n quantities, each with its own number of observations.

    Attributes:
        prior: Sum and count of each quantity before anything was seen, shape (n, 2); its weight stays.
        decay: Share of what was seen that a step keeps, in [0, 1].
        sums: Weighted sum and count of each quantity, shape (n, 2), float64; changed in place.
    """

    prior: Tensor
    decay: float
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.prior = self.prior.to(dtype=torch.float64, device="cpu")
        self.sums = self.prior.clone()

    def add(self, summed: Tensor) -> None:
        """Takes a step's sums and counts, shape (n, 2); a quantity that was not observed has 0 and 0."""
        seen = self.decay * (self.sums - self.prior) + summed.to(self.sums)
        self.sums.copy_(self.prior + seen)

    def means(self) -> Tensor:
        """Returns the means, shape (n,), float64; NaN where nothing was seen and there is no prior."""
        return self.sums[:, 0] / self.sums[:, 1]


def entropy_and_nll(decay: float) -> RunningMeans:
    """Returns running means of the held-out entropy and NLL, which have no prior."""
    return RunningMeans(torch.zeros(2, 2), decay)


def bin_accuracies(bins: int, decay: float) -> RunningMeans:
    """Returns running accuracies of equal-width bins of confidence, at first the middle of each bin."""
    middles = (torch.arange(bins) + 0.5) / bins
    return RunningMeans(torch.stack([middles, torch.ones(bins)], dim=1), decay)
