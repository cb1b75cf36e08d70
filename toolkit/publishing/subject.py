"""What a card is about: an adapter, its base and its report."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from safetensors import SafetensorError
from safetensors.torch import load_file

from toolkit.errors import CalibrantError, first_line
from toolkit.evaluation.report import Report
from toolkit.models.adjustment import FILE, Adjustment, Level, load_adjustment
from toolkit.models.bundled import HUB_ID, WHEEL

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LICENCES = {HUB_ID: {"license": "apache-2.0"}}


@dataclass(frozen=True)
class Subject:
    """An adapter as a card shows it.

    Attributes:
        name: The adapter's Hub id, or the name of its folder.
        base: The base's Hub id, or the name of its folder.
        rank: The largest rank of its updates.
        report: Its report, with `base`, `training` and `before`.
        adjusted: Whether its probabilities of options are those of Δ ⊙ z + ι.
        writes_adjusted: Whether those of the tokens of a text are too.
        alpha: Δ and ι, where it has learnt any.
        licence: `license`, and where the base's card has them `license_name` and `license_link`.
    """

    name: str
    base: str
    rank: int
    report: Report
    adjusted: bool
    writes_adjusted: bool
    alpha: Adjustment | None
    licence: Mapping[str, str] = field(default_factory=dict)

    @property
    def commit(self) -> str | None:
        """The base's commit on the Hub, where it is known."""
        revision = self.report["base"].get("revision")
        return revision if isinstance(revision, str) and _COMMIT.fullmatch(revision) else None

    @property
    def wheel(self) -> str | None:
        """The wheel that the base came from, as "name==version"."""
        revision = self.report["base"].get("revision")
        return revision if isinstance(revision, str) and revision.startswith(f"{WHEEL}==") else None


def read_subject(folder: Path, report: Report, *, name: str, base: str) -> Subject:
    """Reads what else a card says of an adapter from its folder.

    Args:
        folder: The adapter's folder.
        report: Its report.
        name: What it is called: a Hub id, or the folder's name.
        base: The base's Hub id.

    Raises:
        CalibrantError: A file is missing or damaged.
    """
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        rank = max([config["r"], *config["rank_pattern"].values()])
        path = folder / FILE
        tensors = load_file(path) if path.is_file() else None
        alpha = None if tensors is None else Adjustment(tensors["delta"], tensors["iota"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise CalibrantError(
            f"{path} cannot be read ({first_line(error)}); train or fetch the adapter again"
        ) from error
    adjusted, writes_adjusted = (load_adjustment(folder, level) is not None for level in get_args(Level))
    return Subject(name, base, rank, report, adjusted, writes_adjusted, alpha, _LICENCES.get(base, {}))
