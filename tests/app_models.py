"""A tiny model with two adapters, loaded as the explorer loads it."""

from pathlib import Path

import pandas as pd
from finished_adapters import finish
from safetensors.torch import load_file, save_file

from app.models import Models, load_models

HOSTILE = "<img src=x onerror=alert(1)>"


def adapter_folders(folder: Path, tiny: Path) -> list[Path]:
    """Two adapters of the tiny model: one as it was finished, and one twice as strong with a hostile name."""
    folders = [folder / "first", folder / HOSTILE]
    for one in folders:
        finish(one, tiny, base=str(tiny))
        (one / "predictions.parquet").unlink()
    weights = folders[1] / "adapter_model.safetensors"
    doubled = {name: 2 * value if "lora_B" in name else value for name, value in load_file(weights).items()}
    save_file(doubled, weights, metadata={"format": "pt"})
    predictions().to_parquet(folders[0] / "predictions.parquet")
    return folders


def load(folder: Path, tiny: Path) -> Models:
    return load_models(str(tiny), adapter_folders(folder, tiny))


def predictions() -> pd.DataFrame:
    """Six answers as `predictions.parquet` has them."""
    rows = [
        ("worldfacts/capitals", "test", "capital", "A?", 0, 1, 0.9),
        ("worldfacts/capitals", "test", "capital", "B?", 1, 1, 0.95),
        ("worldfacts/capitals", "test", "border", "C?", 0, 1, 0.97),
        ("worldfacts/chemistry", "test", "symbol", "D?", 1, 0, 0.4),
        ("worldfacts/chemistry", "test", "symbol", HOSTILE, 1, 0, 0.6),
        ("worldfacts/chemistry", "validation", "symbol", "seen?", 1, 0, 0.99),
    ]
    frame = pd.DataFrame(
        rows, columns=["source", "split", "subject", "question", "answer", "chosen", "confidence"]
    )
    frame["choices"] = [["yes", HOSTILE]] * len(rows)
    frame["correct"] = frame["answer"] == frame["chosen"]
    return frame
