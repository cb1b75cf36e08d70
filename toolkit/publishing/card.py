"""The model card of an adapter folder: what it is, what it does to confidence, how to use it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from toolkit.evaluation.files import replacing
from toolkit.evaluation.report import Report
from toolkit.models.bundled import HUB_ID

_PREDICTIVE = {
    "raw": "Its logits are used as they are.",
    "adjusted": "Its probabilities are softmax(Δ ⊙ z + ι); `calibration.safetensors` holds Δ and ι.",
}
_SCORES = {
    "sum": "the sum over its tokens",
    "token": "the mean over its tokens",
    "byte": "the sum over its tokens, divided by its bytes",
}
_SHOWN = {"accuracy": "accuracy", "confidence": "confidence", "conf_ece": "conf-ECE", "nll": "NLL"}


def card_text(name: str, report: Report, predictive: str) -> str:
    """Returns a model card in Markdown, with the Hub's metadata at its top.

    Args:
        name: What the adapter is called.
        report: The adapter's report, with `base`, `training` and `before`.
        predictive: "raw" or "adjusted", as in `save_adjustment`.
    """
    base = HUB_ID if report["model"] == "bundled" else report["model"]
    metadata = ModelCardData(
        base_model=base,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=["lora", "calibration", "confidence", report["method"]],
    )
    training, prompt = report["training"], report["prompt"]
    return f"""---
{metadata.to_yaml()}
---

# {name}

A LoRA adapter for {_code(base)}, trained with calibrant by the method {_code(report["method"])}:
the model's confidence in an answer shall follow how often it is right.

{_table(report)}

Before → after, with 95 % bootstrap intervals; ECE with {report["results"][0]["binning"]["bins"]} equal-width
bins, NLL in nats. *In domain* are questions of a kind that training saw, about things that it did not;
*out of domain* is what training never saw. `report.json` has every metric, `predictions.parquet` every
prediction. Elsewhere these figures need not hold.

![Accuracy against confidence, base and adapter](reliability.png)

## Use

```python
from peft import PeftModel
from transformers import {_imports(report["base"])}

base = AutoModelForCausalLM.from_pretrained("{base}"{_loading(report["base"])})
model = PeftModel.from_pretrained(base, "{name}")  # this folder, or its id on the Hub
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

{_PREDICTIVE[predictive]}
Confidence is the softmax over a question's options of their log-probabilities, each
{_SCORES[prompt["score"]]}; form {_code(prompt["form"])}, style {_code(prompt["style"])}.

## Training

{_levels(training)}
- seed {report["seed"]}, base in {_precision(report["base"])}, weights of step {report["kept_step"]}
- every setting is in `config.yaml`, every step in `history.jsonl`

![Entropy, NLL and accuracy over training](training.png)
"""


def write_card(folder: Path, report: Report, predictive: str) -> None:
    """Writes `README.md` into an adapter folder, whose name becomes the adapter's.

    Raises:
        CalibrantError: The file cannot be written.
    """
    with replacing(folder / "README.md") as partial:
        partial.write_text(card_text(folder.resolve().name, report, predictive), encoding="utf-8")


def _table(report: Report) -> str:
    sources = report["training"]["sources"]["seen"]
    lines = [
        "| test set | | questions | " + " | ".join(_SHOWN.values()) + " |",
        "|---|---|--:|" + "--:|" * len(_SHOWN),
    ]
    for before, after in zip(report["before"], report["results"], strict=True):
        data = after["data"]
        place = "in domain" if data["name"] in sources else "out of domain"
        cells = [f"{_interval(before[key])} → {_interval(after[key])}" for key in _SHOWN]
        name = data["name"] if data["split"] == "test" else f"{data['name']} ({data['split']})"
        lines.append(f"| {_code(name)} | {place} | {data['count']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _interval(measured: Mapping[str, Any]) -> str:
    if measured["ci95"] is None:
        return f"{measured['value']:.3f}"
    low, high = measured["ci95"]
    return f"{measured['value']:.3f} [{low:.3f}, {high:.3f}]"


def _levels(training: Mapping[str, Any]) -> str:
    return "\n".join(
        f"- {level} level: {training[level]['count']} questions of {_sources(training['sources'][level])}"
        for level in ("lower", "upper")
        if level in training
    )


def _sources(names: list[str]) -> str:
    return ", ".join(map(_code, names))


def _imports(base: Mapping[str, Any]) -> str:
    classes = "AutoModelForCausalLM, AutoTokenizer"
    return f"{classes}, BitsAndBytesConfig" if _is_nf4(base) else classes


def _loading(base: Mapping[str, Any]) -> str:
    """Returns the arguments that load the base in the 4 bits that the figures belong to."""
    if not _is_nf4(base):
        return ""
    found = base["quantization"]
    keys = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": found["double_quantization"],
        "bnb_4bit_compute_dtype": found["compute_dtype"],
    }
    arguments = "".join(f"        {key}={value!r},\n" for key, value in keys.items())
    config = f"BitsAndBytesConfig(\n{arguments}    )"
    return f",\n    quantization_config={config},\n    dtype={found['compute_dtype']!r},\n"


def _is_nf4(base: Mapping[str, Any]) -> bool:
    return (base.get("quantization") or {}).get("method") == "nf4"


def _precision(base: Mapping[str, Any]) -> str:
    found = base.get("quantization")
    if found is None:
        return str(base["dtype"])
    if "compute_dtype" not in found:  # by another library, whose bits are not known here
        return f"quantized ({found['method']})"
    details = [found["method"], f"computed in {found['compute_dtype']}"]
    if found["double_quantization"]:
        details.insert(1, "double quantization")
    return f"4 bits ({', '.join(details)})"


def _code(name: str) -> str:
    """Shows a name as it is: no character in it means anything to Markdown or HTML."""
    return f"`{name.replace('`', '').replace('|', '/')}`"
