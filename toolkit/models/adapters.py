"""LoRA adapters over one frozen base: attach, copy, switch, save, load."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError

THETA = "default"
"""Name of the adapter that is trained; PEFT's own default, so a saved one loads anywhere."""

WEIGHTS = "adapter_model.safetensors"


def attach_lora(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    targets: str | Sequence[str] = "all-linear",
    layers: Sequence[int] | None = None,
    base_name: str,
    seed: int = 0,
) -> PeftModel:
    """Freezes the base and adds a LoRA adapter (arXiv 2106.09685) that starts as no change at all.

    Args:
        model: The base.
        rank: Rank r of each update.
        alpha: Scale; the update is alpha / r · B A.
        dropout: Probability of dropping an input of the adapter in training.
        targets: Names of the linear layers to adapt, or "all-linear".
        layers: Indices of the transformer layers to adapt; all by default.
        base_name: Hub id or path that the saved adapter names as its base.
        seed: Seeds the adapter's initial weights.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        layers_to_transform=None if layers is None else list(layers),
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.manual_seed(seed)
            peft_model = get_peft_model(model, config, adapter_name=THETA)
    except ValueError as error:
        raise CalibrantError(
            f"LoRA cannot be attached ({str(error).splitlines()[0]}); set --lora.targets to linear layers "
            "of this model"
        ) from error
    assert isinstance(peft_model, PeftModel)
    peft_model.peft_config[THETA].base_model_name_or_path = base_name
    return peft_model


def add_copy(model: PeftModel, name: str) -> None:
    """Adds a second adapter with the shape and weights of the trained one, over the same base."""
    model.add_adapter(name, model.peft_config[THETA])
    with torch.no_grad():
        for copy, original in zip(adapter_parameters(model, name), adapter_parameters(model), strict=True):
            copy.copy_(original)
    activate(model, THETA)


def adapter_parameters(model: PeftModel, name: str = THETA) -> list[Tensor]:
    """Returns the LoRA weights of one adapter, in the order of the model's modules."""
    return [
        parameter for key, parameter in model.named_parameters() if ".lora_" in key and f".{name}." in key
    ]


def activate(model: PeftModel, name: str) -> None:
    """Makes one adapter the one that acts and the only one that takes gradients."""
    if model.active_adapter != name:
        model.set_adapter(name)


@contextmanager
def base_only(model: PeftModel) -> Iterator[None]:
    """Runs the base without any adapter; which weights take gradients is put back afterwards."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        with model.disable_adapter():
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def save_adapter(model: PeftModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes weights, PEFT's config, and the tokenizer with its chat template."""
    model.save_pretrained(str(folder), selected_adapters=[THETA], save_embedding_layers=False)
    tokenizer.save_pretrained(str(folder))


def load_adapter(model: PreTrainedModel, folder: str | Path) -> PeftModel:
    """Puts a saved adapter on its base.

    Args:
        model: The base; the adapter goes to its device.
        folder: A local adapter folder, or a Hub id.

    Raises:
        CalibrantError: There is no such adapter, its weights are damaged or pickled, or it was trained on
            another base.
    """
    local = Path(folder)
    if local.exists() and not (local / WEIGHTS).is_file():
        raise CalibrantError(f"{folder} holds no {WEIGHTS}; give the folder of a finished run")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found missing adapter keys")
            peft_model = PeftModel.from_pretrained(
                model, str(folder), torch_device=str(model.device), use_safetensors=True
            )
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        if "size mismatch" in str(error) or "Target modules" in str(error):
            raise CalibrantError(
                f"the adapter {folder} was trained on {_base_of(folder)} and does not fit this model; give "
                "that model as --model"
            ) from error
        raise CalibrantError(
            f"the adapter {folder} cannot be loaded ({first}); give an adapter folder or a Hub id"
        ) from error
    if local.exists():
        expected = set(get_peft_model_state_dict(peft_model))
        with safe_open(local / WEIGHTS, framework="pt") as weights:
            stored = set(weights.keys())
        if expected != stored:
            raise CalibrantError(
                f"the adapter {folder} was trained on {config.base_model_name_or_path} and does not fit "
                f"this model ({len(expected ^ stored)} weights without a counterpart); give that model as "
                "--model"
            )
    return peft_model.eval()


def _base_of(folder: str | Path) -> str:
    return str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path)
