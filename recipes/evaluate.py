"""Measures how well a model's confidence follows its accuracy, with or without an adapter.

accelerate launch recipes/evaluate.py --model bundled --adapter adapters/NAME --data worldfacts/chemistry \
    --data questions.jsonl --output_dir runs/evaluation
"""

import logging
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml
from accelerate import PartialState
from build import Base, build_accelerator, build_answers, build_base, by_kind, load_sets, place
from open_answers import build_open_answers
from parsing import Launch, dump, parse_evaluate
from peft import PeftModel
from runs import open_run, run_recipe
from settings import EvaluateSettings, ModelSettings, PromptSettings
from transformers import PreTrainedModel

from toolkit.confidence.vllm_samples import VllmSampler, load_vllm
from toolkit.errors import CalibrantError
from toolkit.evaluation.evaluate import measure, panel, write_evaluation
from toolkit.evaluation.open_report import format_tables, measure_open
from toolkit.evaluation.report import Report, build_report
from toolkit.models.adapters import adapter_folder, load_adapter
from toolkit.models.adjustment import Adjustment, load_adjustment
from toolkit.models.base import model_identity
from toolkit.models.generation import end_ids

logger = logging.getLogger(__name__)


def evaluate(settings: EvaluateSettings, folder: Path) -> Report:
    """Evaluates one model on sets of questions and writes a report.

    Args:
        settings: All settings.
        folder: Takes `config.yaml` and what `toolkit.evaluation.evaluate.write_evaluation` writes.

    Returns:
        The report.

    Raises:
        CalibrantError: Any fault that the user can mend.
    """
    accelerator = build_accelerator(Launch(folder))
    adapter = None if settings.adapter is None else adapter_folder(settings.adapter)
    trained = trained_settings(adapter)
    prompt = prompt_of(settings, trained)
    with open_run(folder, dump(settings), finished="report.json", active=accelerator.is_main_process):
        sets = load_sets(settings.data, settings.split, settings.limit, settings.seed)
        chosen = ModelSettings(
            settings.model,
            settings.revision,
            settings.dtype,
            settings.quantization or quantization_of(trained),
            settings.trust_remote_code,
            settings.allow_pickle,
        )
        if adapter is not None and chosen.quantization != (as_trained := quantization_of(trained)):
            logger.warning(
                "%s was trained over quantization %s, not %s: the figures of its report need not hold",
                settings.adapter,
                as_trained,
                chosen.quantization,
            )
        base = build_base(chosen, accelerator)
        identity = model_identity(chosen.name, base.model, chosen.revision)
        model: PreTrainedModel | PeftModel = base.model
        adjustment = written = None
        if adapter is not None:
            adjustment, written = load_adjustment(adapter), load_adjustment(adapter, "tokens")
            model = load_adapter(base.model, adapter)
        base = place(base, model)
        label = Path(settings.adapter or settings.model).name
        shown = label if accelerator.is_main_process else None
        choices, open_ended = by_kind(sets)
        answered = build_answers(base, model, choices, prompt, settings.batch_size, shown, adjustment)
        opened = build_open_answers(
            base,
            model,
            open_ended,
            settings.open_ended,
            prompt,
            settings.batch_size,
            settings.seed,
            shown,
            written,
            build_sampler(settings, chosen, base, adapter, written) if open_ended else None,
        )
        report = build_report(
            measure(answered, bins=settings.bins, resamples=settings.resamples, seed=settings.seed),
            model=str(identity["name"]),
            adapter=settings.adapter,
            method="none" if adapter is None else trained.get("method", "unknown"),
            seed=settings.seed,
            prompt=asdict(prompt),
        )
        report["base"] = identity
        report["open_ended"] = measure_open(
            opened,
            grader=settings.open_ended.grader,
            bins=settings.bins,
            resamples=settings.resamples,
            seed=settings.seed,
        )
        if accelerator.is_main_process:
            panels = [panel(one, label) for one in answered]
            write_evaluation(folder, report, answered, panels, opened, label=label, bins=settings.bins)
        accelerator.wait_for_everyone()
    return report


def build_sampler(
    settings: EvaluateSettings,
    model: ModelSettings,
    base: Base,
    adapter: Path | None,
    adjustment: Adjustment | None,
) -> VllmSampler | None:
    """Returns what draws sampled answers in the place of the model, or None where the model does.

    Raises:
        CalibrantError: vLLM is asked for what it does not do here.
    """
    if settings.sampler == "transformers" or not settings.open_ended.samples:
        return None
    if base.accelerator.num_processes > 1 or model.quantization != "none":
        raise CalibrantError(
            "--sampler vllm is for one process and a base that is not quantized; "
            "draw with --sampler transformers"
        )
    return load_vllm(
        model.name,
        ends=end_ids(base.model, base.tokenizer),
        max_length=base.max_length,
        revision=model.revision,
        dtype=model.dtype,
        trust_remote_code=model.trust_remote_code,
        adapter=adapter,
        adjustment=adjustment,
    )


def trained_settings(adapter: Path | None) -> dict[str, Any]:
    """Returns the settings that an adapter was trained with, or nothing where none are known."""
    if adapter is None or not (path := adapter / "config.yaml").is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CalibrantError(f"{path} is damaged; train the adapter again") from error
    return config if isinstance(config, dict) else {}


def quantization_of(trained: dict[str, Any]) -> Literal["none", "nf4"]:
    """Returns the quantization of the base that an adapter was trained on."""
    model = trained.get("model")
    found = model.get("quantization", "none") if isinstance(model, dict) else "none"
    for known in get_args(get_type_hints(ModelSettings)["quantization"]):
        if found == known:
            return known
    raise CalibrantError(
        f"the adapter's config.yaml has the unknown quantization {found!r}; give --quantization"
    )


def prompt_of(settings: EvaluateSettings, trained: dict[str, Any]) -> PromptSettings:
    """Returns the prompt: what the command line says, else what the adapter was trained with."""
    try:
        prompt = PromptSettings(**trained.get("prompt", {}))
    except TypeError as error:
        raise CalibrantError(
            f"the adapter's config.yaml has a damaged prompt, {trained['prompt']}; train the adapter again"
        ) from error
    given = {key: value for key in ("form", "style", "score") if (value := getattr(settings, key))}
    prompt = replace(prompt, **given)
    for key, hint in get_type_hints(PromptSettings).items():
        if getattr(prompt, key) not in get_args(hint):
            raise CalibrantError(
                f"the adapter's config.yaml has the unknown {key} {getattr(prompt, key)!r}; give --{key}"
            )
    return prompt


def main() -> None:
    """Reads the command line, evaluates, and prints the report's table."""
    settings, folder = parse_evaluate()
    report = evaluate(settings, folder)
    if not PartialState().is_main_process:
        return
    print(format_tables({Path(settings.adapter or report["model"]).name: report}))
    print(f"report, predictions and figures: {folder}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
