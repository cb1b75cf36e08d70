"""Gradients and predictions of a tiny model whose base is sharded: what each launched process finds.

accelerate launch --config_file CONFIG tests/sharding_worker.py BASE FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel

from toolkit.calibration.losses import Bounds, initial_alpha
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.models.adapters import (
    activate,
    adapter_parameters,
    add_copy,
    attach_lora,
    base_only,
    save_adapter,
)
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import OptionBatch, collate, predictive
from toolkit.models.sharding import is_sharded, load_whole, shard_base

KINDS = ("float32", "nf4")
ADAPTERS = ("default", "hat")


def questions() -> list[OptionBatch]:
    """Four ragged questions, one a micro-batch."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> list[int]:
        return torch.randint(5, 260, (size,), generator=generator).tolist()

    return [
        collate([EncodedQuestion(str(n), draw(3 + n), [draw(1 + n % 3), draw(2)], n % 2, [3, 3])])
        for n in range(4)
    ]


def build(folder: str, kind: str, storage: torch.dtype = torch.float32) -> PeftModel:
    """Loads the base with two adapters that differ from no change at all and from each other."""
    model = attach_lora(load(folder, kind, storage), rank=2, alpha=4, base_name="tiny", seed=0)
    add_copy(model, "hat")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in ADAPTERS:
            for tensor in adapter_parameters(model, name):
                tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model.train()


def load(folder: str, kind: str, storage: torch.dtype = torch.float32) -> PreTrainedModel:
    """Loads the base in evaluation mode."""
    quantization: dict[str, Any] = {}
    if kind == "nf4":
        quantization["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
            bnb_4bit_quant_storage=storage,
        )
        quantization["device_map"] = {"": "cpu"}
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **quantization)
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):  # else a pass without gradients repacks the weights
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return base.eval()


def gradients(model: PeftModel, accelerator: Accelerator | None = None) -> list[Tensor]:
    """Returns values and gradients of L and F at both adapters, from this process's share of questions."""
    batches, alpha = questions(), initial_alpha("vector", 271)
    spread, objective = OBJECTIVES["entropy"]
    problem = CalibrationProblem(model, ADAPTERS, Bounds(), spread, objective)
    if accelerator is not None:
        batches = batches[accelerator.process_index :: accelerator.num_processes]
        reduce = lambda tensor: accelerator.reduce(tensor, "sum")  # noqa: E731
        problem = CalibrationProblem(model, ADAPTERS, Bounds(), spread, objective, reduce=reduce)
    found = []
    for name in ADAPTERS:
        theta = adapter_parameters(model, name)
        for oracle in (problem.lower(batches), problem.upper(batches)):
            for gradient in (oracle(theta, alpha), oracle(theta, alpha, wrt="alpha")):
                found += [gradient.value, *gradient.theta, *gradient.alpha]
    return found


@torch.no_grad()
def predictions(model: PeftModel) -> list[Tensor]:
    """Returns the logits of the first question with the adapter and without, in evaluation mode."""
    model.eval()
    activate(model, "default")
    adapted = predictive(model, questions()[0])
    with base_only(model):
        base = predictive(model, questions()[0])
    model.train()
    return [adapted, base]


def share(parameter: Tensor) -> float:
    """Returns which part of a parameter this process holds."""
    if isinstance(parameter, DTensor):
        return parameter.to_local().numel() / parameter.numel()
    if hasattr(parameter, "ds_tensor"):
        return parameter.ds_tensor.numel() / parameter.ds_numel  # type: ignore[attr-defined]
    return 1.0


def main() -> None:
    """Writes what this process finds to FOLDER, and the main process its adapters."""
    base, folder = sys.argv[1], Path(sys.argv[2])
    accelerator = Accelerator()
    load_whole()
    found: dict[str, Any] = {"sharded": is_sharded(accelerator)}
    for kind in KINDS:
        model = build(base, kind)
        shard_base(model, accelerator)
        found[kind] = {
            "shares": {name: share(parameter) for name, parameter in model.named_parameters()},
            "gradients": gradients(model, accelerator),
            "predictions": predictions(model),
            "again": gradients(model, accelerator),
        }
        model.get_base_model().activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        found[kind]["checkpointed"] = gradients(model, accelerator)
        if accelerator.is_main_process:  # nothing may wait here for the others
            save_adapter(model, AutoTokenizer.from_pretrained(base), folder / kind)
    alone = load(base, "float32")
    shard_base(alone, accelerator)
    with torch.no_grad():
        found["alone"] = predictive(alone, questions()[0])
    torch.save(found, folder / f"{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
