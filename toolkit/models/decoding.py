"""How a token is chosen: temperature, top-k, nucleus, and a draw that only its seed decides.

All of it is pure functions of logits and random numbers. What remains after temperature, top-k and nucleus is
`kept_log_probs`; probabilities of a model come from its raw logits instead, never from these.
"""

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CANDIDATES = 1024
"""Most probable tokens that are sorted to find a nucleus; where they do not hold it, all are."""


def kept_log_probs(
    logits: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None
) -> Tensor:
    """Returns the log-probabilities that temperature, then top-k, then nucleus (arXiv 1904.09751) leave.

    The nucleus is the smallest set of most probable tokens that holds at least `top_p`, as after the steps
    before; of equally probable tokens at its edge, any may be in. Top-k keeps all that are as probable as the
    k-th. transformers' processors do the same in the same order.

    Args:
        logits: Raw logits, shape (..., V).
        temperature: Divides the logits; 0 keeps the most probable token alone, the first of equals.
        top_p: Probability that the nucleus holds.
        top_k: Number of tokens kept; all if None.

    Returns:
        Shape (..., V), in nats, float32, normalised over what is kept, -inf for what is cut.
    """
    logits = logits.float()
    if temperature == 0:
        first = logits.argmax(-1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter(-1, first, 0.0)
    scaled = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = scaled.topk(top_k).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, -math.inf)
    log_probs = scaled.log_softmax(-1)
    return log_probs if top_p >= 1 else _nucleus(log_probs, top_p)


def _nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """Keeps the smallest set of most probable tokens that holds `top_p`, shape (..., V), renormalised."""
    rows = log_probs.reshape(-1, log_probs.shape[-1])
    values, ids = rows.topk(min(CANDIDATES, rows.shape[-1]))
    short = values.exp().sum(-1) < top_p
    kept = _keep(rows, values, ids, top_p)
    if short.any():
        kept[short] = _keep(rows[short], *rows[short].sort(descending=True), top_p)
    return kept.view_as(log_probs)


def _keep(rows: Tensor, values: Tensor, ids: Tensor, top_p: float) -> Tensor:
    """Keeps of each row's sorted tokens, values and ids (R, C), the first ones that hold `top_p`."""
    probs = values.exp()
    more_probable = probs.cumsum(-1) - probs
    more_probable[:, 0] = 0
    values = values.masked_fill(more_probable >= top_p, -math.inf)
    return torch.full_like(rows, -math.inf).scatter(-1, ids, values).log_softmax(-1)


def noise_size(vocabulary: int) -> int:
    """Returns how many random numbers one choice among V tokens takes: about 2 √V; see `choose`."""
    width = _width(vocabulary)
    return width + math.ceil(vocabulary / width)


def choose(weights: Tensor, noise: Tensor) -> Tensor:
    """Draws one token a row with the Gumbel-max trick: first a block of neighbouring ids, then one of them.

    Rows that differ in their last bits, as those of batches of different size do, give the same choice but
    for a chance of about the size of the difference. Inverting a cumulative distribution changes 1 to 8
    choices in 1000 where 49152 logits differ by 1e-5, for all its boundaries move, and samples would be
    others in other company.

    Args:
        weights: Log-probabilities, shape (R, V), in nats up to a constant for each row, -inf where cut.
        noise: Standard Gumbel numbers, shape (R, `noise_size(V)`).

    Returns:
        The chosen ids, shape (R,).
    """
    rows, vocabulary = weights.shape
    width = _width(vocabulary)
    padded = torch.nn.functional.pad(weights, (0, -vocabulary % width), value=-math.inf)
    blocks = padded.view(rows, -1, width)
    block = (blocks.logsumexp(-1) + noise[:, width:]).argmax(-1)  # (R,)
    inside = blocks[torch.arange(rows, device=weights.device), block] + noise[:, :width]  # (R, width)
    return block * width + inside.argmax(-1)


def _width(vocabulary: int) -> int:
    return math.isqrt(vocabulary - 1) + 1


def random_numbers(seed: int, *names: str | int) -> np.random.Generator:
    """Returns a generator that is a function of a seed and of what its numbers are for, in any process."""
    digest = hashlib.sha256(repr([str(part) for part in (seed, *names)]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16])))


def gumbel_noise(generators: list[np.random.Generator], vocabulary: int) -> NDArray[np.float32]:
    """Draws the next noise of each row from its own generator, shape (R, `noise_size(V)`)."""
    size = noise_size(vocabulary)
    return np.stack([generator.gumbel(size=size) for generator in generators]).astype(np.float32)
