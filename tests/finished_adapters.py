"""A finished adapter folder without training: random updates, and a report of made-up answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from toolkit.evaluation.report import build_report, build_result, write_report
from toolkit.models.adapters import adapter_parameters, attach_lora, detach, save_adapter
from toolkit.models.adjustment import Adjustment, Level, save_adjustment
from toolkit.models.base import load_model
from toolkit.publishing.checks import file_sha256
from toolkit.questions.sources import load_questions

BASE = "me/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCALAR = Adjustment(torch.tensor(0.6), torch.tensor(0.0))


def vector(vocabulary: int) -> Adjustment:
    """An α with a Δ and an ι for each token."""
    generator = torch.Generator().manual_seed(3)
    delta = torch.rand(vocabulary, generator=generator) + 0.5
    return Adjustment(delta, torch.randn(vocabulary, generator=generator))


def result(name: str, shift: float) -> dict[str, Any]:
    """Figures of made-up answers to real questions."""
    data = load_questions(name, "test").sample(30, 0)
    draw = np.random.default_rng(1)
    answers = draw.integers(0, 4, len(data))
    logits = draw.normal(size=(len(data), 4))
    logits[np.arange(len(data)), answers] += shift
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return build_result(data, log_probs, answers, resamples=20)


def report(base: str = BASE, revision: str | None = COMMIT, **changes: Any) -> dict[str, Any]:
    """What calibrate.py reports."""
    names = ["worldfacts/capitals", "worldfacts/chemistry"]
    prompt = {"form": "cloze", "style": "plain", "score": "token"} | changes.pop("prompt", {})
    found = build_report(
        [result(name, 1.0) for name in names],
        model=base,
        adapter="finished",
        method="calm",
        seed=3,
        prompt=prompt,
    )
    found["base"] = {"name": base, "revision": revision, "dtype": "float32", "quantization": None}
    found["before"] = [result(name, 0.2) for name in names]
    found["training"] = {
        "sources": {"lower": ["worldfacts/capitals", "hub/mmlu"], "upper": ["hub/mmlu"], "seen": names[:1]},
        "lower": {"count": 90},
        "upper": {"count": 30},
    }
    return found | {"kept_step": 60, "unmoved_layers": []} | changes


def finish(
    folder: Path,
    tiny: Path,
    adjustment: Adjustment | None = None,
    predictive: str = "adjusted",
    level: Level = "options",
    base: str = BASE,
    **changes: Any,
) -> Path:
    """Writes a folder as calibrate.py leaves it, but for the card."""
    model, tokenizer = load_model(str(tiny), dtype="float32")
    adapted = attach_lora(model, rank=4, alpha=8.0, base_name=base)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in adapter_parameters(adapted):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
    save_adapter(adapted, tokenizer, folder)
    detach(adapted)
    if adjustment is not None:
        save_adjustment(adjustment, folder, predictive=predictive, level=level)
    about = report(base, **changes)
    about["adapter_sha256"] = file_sha256(folder / "adapter_model.safetensors")
    write_report(about, folder / "report.json")
    settings = {"method": "calm", "model": {"name": str(tiny), "quantization": "none"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings | {"prompt": about["prompt"]}))
    (folder / "history.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    for name in ("predictions.parquet", "reliability.png", "training.png"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder
