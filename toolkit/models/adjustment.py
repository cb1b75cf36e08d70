"""α as it is applied to logits: Δ ⊙ z + ι, kept beside the adapter's weights."""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from toolkit.errors import CalibrantError

FILE = "calibration.safetensors"

Level = Literal["options", "tokens"]
"""What a loss compares, and α with it: a question's options, or the vocabulary at each token of an answer."""


class Adjustment(NamedTuple):
    """Multiplicative and additive logit adjustment, the family of the VS loss (arXiv 2103.01550).

    Attributes:
        delta: Δ, shape (V,) or (), without unit.
        iota: ι, shape (V,) or (), in nats.
    """

    delta: Tensor
    iota: Tensor


def adjust(logits: Tensor, adjustment: Adjustment | None) -> Tensor:
    """Returns Δ ⊙ z + ι, shape (..., V), or the logits as they are without an adjustment."""
    if adjustment is None:
        return logits
    return adjustment.delta * logits + adjustment.iota


def save_adjustment(adjustment: Adjustment, folder: Path, *, predictive: str, level: Level) -> None:
    """Writes `calibration.safetensors`.

    Args:
        adjustment: α.
        folder: The adapter's folder.
        predictive: "adjusted" where the adapter applies α at inference, "raw" where it does not.
        level: What α was learnt on.

    Raises:
        CalibrantError: The file cannot be written.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in adjustment._asdict().items()}
    try:
        content = save(tensors, metadata={"predictive": predictive, "level": level})
        (folder / FILE).write_bytes(in_one_order(content))
    except (OSError, SafetensorError) as error:
        raise CalibrantError(
            f"{folder / FILE} cannot be written ({error}); free some space and run the same command again"
        ) from error


def in_one_order(content: bytes) -> bytes:
    """Returns safetensors' bytes with a sorted header: its own writer puts the metadata in a random order."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True, separators=(",", ":"))
    return content[:8] + header.encode().ljust(start - 8) + content[start:]


def load_adjustment(folder: Path, level: Level = "options") -> Adjustment | None:
    """Reads the adjustment that an `adjusted` adapter applies at inference.

    Args:
        folder: The adapter's folder.
        level: What it is wanted for: the options of a question, or text, token by token. An α that was learnt
            on options is for options alone: it brings these closer, and would do so to all words of a text.

    Returns:
        The adjustment, or None where there is none for this, or the adapter is `raw`.

    Raises:
        CalibrantError: The file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            about = tensors.metadata() or {}
            if about.get("predictive") != "adjusted" or (level, about.get("level")) == ("tokens", "options"):
                return None
            return Adjustment(tensors.get_tensor("delta"), tensors.get_tensor("iota"))
    except SafetensorError as error:
        raise CalibrantError(f"{path} cannot be read ({error}); train the adapter again") from error
