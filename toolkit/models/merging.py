"""One model instead of base, adapter and α, for servers that take whole models and run no code of ours."""

import random
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError, first_line
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import OptionBatch, collate, predictive, vocabulary_log_probs
from toolkit.models.quantization import is_quantized

TOLERANCE, TOLERANCE_16_BIT = 1e-3, 0.5
"""Largest difference of a log-probability that rounding explains, in nats."""


def save_merged(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    adjustment: Adjustment | None = None,
) -> float:
    """Merges an adapter into its base, saves that as a whole model, and compares what was saved.

    Args:
        model: The adapter on a base that is not quantized; the base is changed.
        tokenizer: The base's tokenizer, which is saved too, with its chat template.
        folder: Takes the model; must be new or empty. It appears when it is whole and checked.
        adjustment: α of an `adjusted` adapter, which is built into the weights.

    Returns:
        The largest difference between a log-probability of the saved model, loaded by transformers alone, and
        of base, adapter and α, in nats.

    Raises:
        CalibrantError: The base is quantized, the architecture has no place for α, the saved model differs by
            more than rounding explains, or the folder is in use or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CalibrantError(f"{folder} is there already; choose a new folder for the merged model")
    partial = folder.with_name(folder.name + ".partial")
    model.eval()
    expected = log_probs(model, adjustment)
    merged = merge(model, adjustment)
    try:
        if partial.exists():  # left by a process that was killed
            shutil.rmtree(partial)
        merged.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        saved: Any = AutoModelForCausalLM.from_pretrained(partial, dtype=merged.dtype)
        error = (log_probs(saved.to(merged.device).eval()) - expected).abs().max().item()
        tolerance = TOLERANCE if merged.dtype == torch.float32 else TOLERANCE_16_BIT
        if not error <= tolerance:
            raise CalibrantError(
                f"the merged model's log-probabilities are {error:.2g} nats from the adapter's, and rounding "
                f"explains {tolerance:g} of that; serve base and adapter instead"
            )
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except (OSError, SafetensorError) as error_:
        raise CalibrantError(
            f"the merged model cannot be written to {folder} ({first_line(error_)}); free some space or "
            "choose another folder"
        ) from error_
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return error


def merge(model: PeftModel, adjustment: Adjustment | None = None) -> PreTrainedModel:
    """Adds an adapter's updates to its base's weights, and builds α into them.

    Args:
        model: The adapter on its base, which is changed and is the model returned.
        adjustment: α, if the adapter applies it.

    Raises:
        CalibrantError: The base is quantized, a merged weight is not finite, or the architecture has no place
            for α; in the last case the base is merged without it.
    """
    base = model.get_base_model()
    if is_quantized(base):
        raise CalibrantError(
            "merging into a quantized base rounds the adapter away; load the base in full precision, without "
            "--quantization, or serve base and adapter instead"
        )
    try:
        merged = model.merge_and_unload(safe_merge=True)
    except ValueError as error:  # weights that are not finite
        raise CalibrantError(f"the adapter cannot be merged ({first_line(error)}); train it again") from error
    assert isinstance(merged, PreTrainedModel)
    if adjustment is not None:
        fold(merged, adjustment)
    return merged


@torch.no_grad()
def fold(model: PreTrainedModel, adjustment: Adjustment) -> None:
    """Builds α into a model: its softmax(z) is then what softmax(Δ ⊙ z + ι) was.

    An output projection W h + b of its own takes Δ in its rows, and ι where it has a bias. One whose weights
    are the input embeddings too cannot change; a single Δ then goes into the norm before it.

    Args:
        model: A causal language model, changed in place.
        adjustment: α; an ι that is the same for all tokens changes no softmax.

    Raises:
        CalibrantError: The architecture has no place for it; the model is then as it was.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise _refusal("it has no linear output projection")
    delta = adjustment.delta.to(head.weight.device, torch.float32)
    iota = adjustment.iota.to(head.weight.device, torch.float32)
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        raise _refusal("it caps its logits softly after its output projection")
    if delta.numel() > 1 and len(delta) != len(head.weight):
        raise _refusal(f"it has {len(head.weight)} logits and α has {len(delta)} entries")
    has_iota = iota.numel() > 1 and bool((iota != iota[0]).any())
    if has_iota and head.bias is None:
        raise _refusal("α shifts logits and its output projection has no bias to take that")
    if head.weight is not model.get_input_embeddings().weight:
        head.weight.copy_(delta.reshape(-1, 1) * head.weight)
    elif delta.numel() > 1:
        raise _refusal("α is one Δ for each token and its output projection is its input embedding too")
    else:
        _scale_norm(_module_before(model, head), delta)
    if head.bias is not None:
        head.bias.copy_(delta * head.bias + (iota if has_iota else 0))


@torch.no_grad()
def log_probs(model: nn.Module, adjustment: Adjustment | None = None) -> Tensor:
    """Returns a model's log-probabilities on a small random batch, shape (U, V), in nats."""
    batch = _random_batch(model)
    if adjustment is not None:
        adjustment = Adjustment(*(value.to(batch.input_ids.device) for value in adjustment))
    return vocabulary_log_probs(predictive(model, batch), adjustment)


def _random_batch(model: nn.Module) -> OptionBatch:
    """Returns a batch of three texts of 12 to 24 tokens."""
    vocabulary = model.config.get_text_config().vocab_size  # type: ignore[union-attr, operator]
    draw = random.Random(0)

    def tokens(size: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(size)]

    questions = [EncodedQuestion(str(size), tokens(size), [tokens(8)], 0, [1]) for size in (4, 8, 16)]
    return collate(questions, layout="separate").to(next(model.parameters()).device)


def _module_before(model: PreTrainedModel, head: nn.Module) -> nn.Module:
    """Returns the innermost module that ran last before the output projection."""
    last: list[nn.Module] = []
    handles = [
        module.register_forward_hook(lambda module, *_: last.append(module))
        for module in model.modules()
        if module is not head and not any(module.children())
    ]
    before: list[nn.Module] = []
    handles.append(head.register_forward_pre_hook(lambda *_: before.append(last[-1])))
    try:
        predictive(model, _random_batch(model))
    finally:
        for handle in handles:
            handle.remove()
    return before[-1]


def _scale_norm(norm: nn.Module, delta: Tensor) -> None:
    """Scales what a norm gives: its weight w by Δ, or 1 + w where it multiplies by that, and its bias."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        raise _refusal("its output projection is its input embedding too and no norm stands before it")
    zeros = {name: torch.zeros_like(value) for name, value in norm.named_parameters()}
    sample = torch.linspace(-1, 1, len(weight), device=weight.device, dtype=weight.dtype)[None]
    offset = 1.0 if functional_call(norm, zeros, (sample,)).any() else 0.0
    weight.copy_(delta * (weight + offset) - offset)
    if bias is not None:
        bias.copy_(delta * bias)


def _refusal(reason: str) -> CalibrantError:
    return CalibrantError(
        f"α cannot be built into this architecture, for {reason}; serve base and adapter, and apply α to the "
        "logits as the adapter's card shows"
    )
