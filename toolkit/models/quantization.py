"""4-bit bases: NF4 with double quantization (QLoRA, arXiv 2305.14314), through bitsandbytes."""

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Literal

import torch
from peft import prepare_model_for_kbit_training
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from toolkit.errors import CalibrantError

Quantization = Literal["nf4"]
"""`nf4` stores each weight of the linear layers in 4 bits, and the scales of their blocks in 8."""


def nf4_config(compute: torch.dtype, storage: torch.dtype = torch.uint8) -> BitsAndBytesConfig:
    """Returns what transformers needs to quantize a model while loading it.

    Args:
        compute: What a layer's weights are turned back into and multiplied in; on a CPU without bf16
            instructions, float32 is more than ten times as fast as bfloat16.
        storage: What the 4-bit values are packed into; a sharded base needs a floating type.

    Raises:
        CalibrantError: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise CalibrantError(
            "4-bit weights need bitsandbytes; run: pip install 'calibrant[quantization]', or leave out "
            "--model.quantization"
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_quant_storage=storage,
    )


def is_quantized(model: nn.Module) -> bool:
    """Says whether a model's weights are quantized, by us or as they came."""
    return bool(getattr(model, "is_quantized", False))


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Freezes a base, for evaluation as for training, so that both see the same model.

    A base that is not quantized keeps its dtype. Of one that is, PEFT turns what is left in 16 bits, such as
    norms and embeddings, into float32. That keeps float16 from overflowing; bfloat16 has float32's range, and
    there it would cost memory only, 2 GB of an 8B model's weights.

    On a CPU with bf16 instructions bitsandbytes would repack the weights at the first pass in evaluation
    mode, for good: later passes round to bf16 whatever the compute dtype, and give no gradients.
    """
    if is_quantized(model):
        if compute_dtype(model) != torch.bfloat16:
            prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return model.requires_grad_(False)


def compute_dtype(model: nn.Module) -> torch.dtype:
    """Returns the dtype in which a model multiplies."""
    config = getattr(getattr(model, "config", None), "quantization_config", None)
    found = getattr(config, "bnb_4bit_compute_dtype", None)
    return found if isinstance(found, torch.dtype) else next(model.parameters()).dtype


def computing(model: nn.Module) -> AbstractContextManager[None]:
    """Runs a model's float32 parts, such as its adapters, in its compute dtype where that has 16 bits."""
    dtype = compute_dtype(model)
    if dtype not in (torch.bfloat16, torch.float16):
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, dtype)


def weight_bytes(model: nn.Module) -> int:
    """Returns the bytes that a model's weights take, the scales of quantized ones included."""
    total = 0
    for weight in model.parameters():
        total += weight.numel() * weight.element_size()
        state = getattr(weight, "quant_state", None)
        while state is not None:
            total += state.absmax.numel() * state.absmax.element_size()
            state = state.state2
    return total


def describe(model: PreTrainedModel) -> dict[str, Any] | None:
    """Returns the quantization of a model for a report, or None without one.

    Returns:
        `method` ("nf4", or the name of what quantized the model before), and for nf4 `double_quantization`
        and `compute_dtype`.
    """
    if not is_quantized(model):
        return None
    config: Any = model.config.quantization_config
    if getattr(config, "bnb_4bit_quant_type", None) is None or not config.load_in_4bit:
        return {"method": str(getattr(config.quant_method, "value", config.quant_method))}
    return {
        "method": config.bnb_4bit_quant_type,
        "double_quantization": config.bnb_4bit_use_double_quant,
        "compute_dtype": str(compute_dtype(model)).removeprefix("torch."),
    }
