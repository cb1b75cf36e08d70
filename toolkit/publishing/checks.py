"""What an adapter folder must be before anyone else gets it."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open

from toolkit.errors import CalibrantError, first_line
from toolkit.evaluation.report import Report, read_report
from toolkit.models.adapters import WEIGHTS
from toolkit.models.adjustment import FILE
from toolkit.models.bundled import HUB_ID
from toolkit.publishing.subject import Subject, read_subject

CARD = "README.md"

NEEDED = (
    WEIGHTS,
    "adapter_config.json",
    "config.yaml",
    "report.json",
    "history.jsonl",
    "training.png",
    "tokenizer_config.json",
)
"""What every finished adapter folder holds."""

ALLOWED = (
    *NEEDED,
    FILE,
    CARD,
    "predictions.parquet",
    "reliability.png",
    "answers.parquet",
    "confidence.png",
    "chat_template.jinja",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
"""All that may be in a repository: those and α, the card, what was answered, and the tokenizer's files."""

_SETTINGS = ("config.yaml", "report.json", "adapter_config.json", "tokenizer_config.json")
_LOCAL = re.compile(r"(/|~/|\.\.?/|[A-Za-z]:\\)[^\s{}]+")


def check_folder(folder: Path, name: str | None = None) -> tuple[Subject, list[str]]:
    """Checks that an adapter folder is whole, says what is true, and holds nothing else.

    Args:
        folder: The folder.
        name: The adapter's Hub id; the folder's name if None.

    Returns:
        What the card is about, and warnings: things that are published as they are, and that a publisher may
        not want so.

    Raises:
        CalibrantError: The folder cannot be published as it is.
    """
    _check_files(folder)
    config = read_mapping(folder / "adapter_config.json")
    report = read_report(folder / "report.json")
    base = _check_base(folder, config, report)
    _check_weights(folder / WEIGHTS)
    if (folder / FILE).is_file():
        _tensors_are_finite(folder / FILE)
    warnings = [*_check_hash(folder, report), *_check_template(folder, report), *_local_paths(folder)]
    if report["base"].get("revision") is None:
        warnings.append(f"the base's commit is not known: that it is {base} as the Hub has it is your word")
    name = name or folder.resolve().name
    return read_subject(folder, report, name=name, base=base), warnings


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise CalibrantError(f"no folder {folder}; give the output folder of calibrate.py")
    paths = sorted(folder.iterdir())
    present = {path.name for path in paths}
    if missing := [name for name in NEEDED if name not in present]:
        raise CalibrantError(
            f"{folder} lacks {', '.join(missing)}; give the output folder of a finished calibrate.py"
        )
    if links := [path.name for path in paths if path.is_symlink()]:
        raise CalibrantError(f"{folder} holds links ({_some(links)}); put the files themselves there")
    if others := [path.name for path in paths if path.name not in ALLOWED or not path.is_file()]:
        raise CalibrantError(
            f"{folder} holds what is no part of an adapter ({_some(others)}); move that elsewhere first"
        )


def _check_base(folder: Path, config: dict[str, Any], report: Report) -> str:
    """Returns the base's Hub id."""
    base, about = config.get("base_model_name_or_path"), report.get("base")
    if not isinstance(base, str) or not isinstance(about, dict) or "before" not in report:
        raise CalibrantError(
            f"{folder} does not say what its base is or does; give the output folder of calibrate.py"
        )
    from_hub = about.get("revision") is not None or "/" in base
    try:
        validate_repo_id(base)
    except HFValidationError:
        from_hub = False
    if not from_hub or base.startswith(".") or Path(base).exists():
        raise CalibrantError(
            f"the adapter's base is the local folder {base!r}, which nobody else has; if the Hub has that "
            "model, put its id as base_model_name_or_path into adapter_config.json, else publish it first"
        )
    named = HUB_ID if report.get("model") == "bundled" else str(report.get("model"))
    if named.rpartition("/")[2] != base.rpartition("/")[2]:
        raise CalibrantError(
            f"report.json is about the base {named} and adapter_config.json names {base}; put the one that "
            "the adapter was trained on into adapter_config.json"
        )
    return base


def _check_weights(path: Path) -> None:
    moved = False
    for name, tensor in _tensors_are_finite(path):
        moved = moved or (".lora_B" in name and bool(tensor.any()))
    if not moved:
        raise CalibrantError(
            f"every B in {path} is zero, so the adapter does nothing; publish one that was trained"
        )


def _tensors_are_finite(path: Path) -> list[tuple[str, torch.Tensor]]:
    try:
        with safe_open(path, framework="pt") as tensors:
            found = [(name, tensors.get_tensor(name)) for name in tensors.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CalibrantError(
            f"{path} cannot be read ({first_line(error)}); train or fetch the adapter again"
        ) from error
    for name, tensor in found:
        if not torch.isfinite(tensor).all():
            raise CalibrantError(f"{name} in {path} is not finite; train the adapter again")
    return found


def _check_hash(folder: Path, report: Report) -> list[str]:
    """Refuses weights that are not those of the report, and warns where the report does not say which."""
    expected = report.get("adapter_sha256")
    if expected is None:
        return ["report.json does not say which weights it is about, for it was written by an older version"]
    if expected != file_sha256(folder / WEIGHTS):
        raise CalibrantError(
            f"report.json in {folder} is about other weights than {WEIGHTS}; put back the ones it is about, "
            "or train again"
        )
    return []


def _check_template(folder: Path, report: Report) -> list[str]:
    template = folder / "chat_template.jinja"
    if template.is_file() and template.read_text(encoding="utf-8").strip():
        return []
    if read_mapping(folder / "tokenizer_config.json").get("chat_template"):
        return []
    if report.get("prompt", {}).get("style") == "chat":
        raise CalibrantError(
            f"{folder} holds no chat template though the adapter was trained with one; put the base's "
            "chat_template.jinja there"
        )
    return ["no chat template is saved with the adapter; that is right only if its base has none"]


def _local_paths(folder: Path) -> list[str]:
    """Warns of paths of this machine in what is going to be public."""
    found = {
        value
        for name in _SETTINGS
        for value in _strings(read_mapping(folder / name))
        if _LOCAL.fullmatch(value)
    }
    return [f"paths of this machine will be seen by others: {_some(sorted(found))}"] if found else []


def _strings(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value)


def read_mapping(path: Path) -> dict[str, Any]:
    """Reads a JSON or YAML file that holds a mapping.

    Raises:
        CalibrantError: There is no such file, or it holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CalibrantError(
            f"{path} cannot be read ({first_line(error)}); train or fetch the adapter again"
        ) from error
    if not isinstance(found, dict):
        raise CalibrantError(f"{path} holds no settings; train or fetch the adapter again")
    return found


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
