"""LoRA adapters over one frozen base: attach, copy, switch, save, load."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftConfig, PeftModel, PeftType, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError, first_line
from toolkit.models.base import explain

THETA = "default"
"""Name of the adapter that is trained; PEFT's own default, so a saved one loads anywhere."""

WEIGHTS = "adapter_model.safetensors"

logger = logging.getLogger(__name__)


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
        layers: Indices of the transformer layers to adapt; all by default. With "all-linear" they need a
            model whose layers are `nn.Linear`.
        base_name: Hub id or path that the saved adapter names as its base.
        seed: Seeds the adapter's initial weights.

    Raises:
        CalibrantError: The model has no such layers.
    """
    if layers is not None:
        count = model.config.num_hidden_layers
        if not layers or not set(layers) <= set(range(count)):
            raise CalibrantError(
                f"the model has layers 0 to {count - 1}; set --lora.layers to the first and the one past the "
                f"last to adapt, at most [0, {count}]"
            )
        if targets == "all-linear":  # PEFT takes layers only beside names
            targets = sorted(_linear_names(model))
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        layers_to_transform=None if layers is None else list(layers),
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(), _quiet_peft():
            torch.manual_seed(seed)
            peft_model = get_peft_model(model, config, adapter_name=THETA)
    except ValueError as error:
        raise CalibrantError(
            f"LoRA cannot be attached ({first_line(error)}); set --lora.targets to linear layers of the model"
        ) from error
    assert isinstance(peft_model, PeftModel)
    peft_model.peft_config[THETA].base_model_name_or_path = base_name
    return peft_model


def _linear_names(model: PreTrainedModel) -> set[str]:
    """Returns the last parts of the names of all linear layers but the vocabulary projection."""
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
    }


def add_copy(model: PeftModel, name: str) -> None:
    """Adds a second adapter with the shape and weights of the trained one, over the same base."""
    with torch.random.fork_rng(), _quiet_peft():  # PEFT draws weights, which are then replaced
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


def check_moved(model: PeftModel, name: str = THETA) -> list[str]:
    """Checks that the layers of an adapter have been trained: that no B is still zero, as at its start.

    Returns:
        The layers whose B is zero, which then do nothing; with a warning where there are any. Experts that no
        token was sent to are such layers, and targets that take no part in the forward pass.

    Raises:
        CalibrantError: That holds for all of them.
    """
    layers = {
        key.partition(".lora_B.")[0]: bool(parameter.any())
        for key, parameter in model.named_parameters()
        if f".lora_B.{name}." in key
    }
    unmoved = [layer for layer, moved in layers.items() if not moved]
    if len(unmoved) == len(layers):
        raise CalibrantError(
            "training has changed no layer of the adapter; set --training.learning_rate above 0, or "
            "--lora.targets to layers that take part in the forward pass"
        )
    if unmoved:
        logger.warning("%d of %d adapted layers were never trained: %s", len(unmoved), len(layers), unmoved)
    return unmoved


def activate(model: PeftModel, name: str) -> None:
    """Makes one adapter the one that acts and the only one that takes gradients."""
    if model.active_adapter != name:
        model.set_adapter(name)


def detach(model: PeftModel) -> None:
    """Takes all adapters off the base, which is then as it was before the first."""
    base = model.unload()
    assert isinstance(base, PreTrainedModel)
    base.activation_checkpointing_disable()


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
    """Writes weights, PEFT's config, and the tokenizer with its chat template, but no model card.

    Raises:
        CalibrantError: They cannot be written.
    """
    weights = {key: value for key, value in model.named_parameters() if ".lora_" in key}
    try:
        model.save_pretrained(
            str(folder), selected_adapters=[THETA], save_embedding_layers=False, state_dict=weights
        )
        (folder / "README.md").unlink()  # PEFT's form of a card, not filled in
        tokenizer.save_pretrained(str(folder))
    except (OSError, SafetensorError) as error:
        raise CalibrantError(
            f"the adapter cannot be written to {folder} ({first_line(error)}); free some space and run the "
            "same command again"
        ) from error


def adapter_folder(adapter: str | Path) -> Path:
    """Finds an adapter on this machine, or else on the Hub, from where only data files are fetched.

    Args:
        adapter: A folder, or a Hub id.

    Raises:
        CalibrantError: There is no such adapter, or its weights are pickled.
    """
    folder, name = Path(adapter), str(adapter)
    if not folder.exists():
        if name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise CalibrantError(f"no adapter folder {name}; give the folder of a finished run, or a Hub id")
        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.yaml"]))
        except (OSError, ValueError) as error:
            raise CalibrantError(f"cannot load the adapter {name}: {explain(error, None)}") from error
    if not (folder / WEIGHTS).is_file():
        raise CalibrantError(
            f"{name} holds no {WEIGHTS}, and pickled weights are not loaded, for they can run code; give the "
            "folder of a finished run, or a Hub id"
        )
    return folder


def load_adapter(model: PreTrainedModel, adapter: str | Path) -> PeftModel:
    """Puts a saved adapter on its base, in evaluation mode.

    Args:
        model: The base; the adapter goes to its device.
        adapter: A folder, or a Hub id.

    Raises:
        CalibrantError: There is no such adapter, its weights are damaged or pickled, it is no LoRA adapter,
            or it was trained on another base.
    """
    folder = adapter_folder(adapter)
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrantError(
            f"the config of the adapter {adapter} cannot be read ({first_line(error)}); train or fetch the "
            "adapter again"
        ) from error
    if config.peft_type != PeftType.LORA:
        raise CalibrantError(f"{adapter} is no LoRA adapter but {config.peft_type}; give a LoRA adapter")
    unfit = CalibrantError(
        f"the adapter {adapter} was trained on {config.base_model_name_or_path} and does not fit this model; "
        "give that model as --model"
    )
    try:
        with _quiet_peft():
            peft_model = PeftModel.from_pretrained(model, str(folder), torch_device=str(model.device))
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            stored = set(weights.keys())
    except SafetensorError as error:
        raise CalibrantError(
            f"the weights of the adapter {adapter} are damaged ({first_line(error)}); train or fetch the "
            "adapter again"
        ) from error
    except (ValueError, RuntimeError, TypeError) as error:  # no such layers, or layers of another size
        raise unfit from error
    named = str(config.base_model_name_or_path)
    if Path(named).name != Path(str(model.config.name_or_path)).name:
        logger.warning(
            "%s was trained on %s, and this base is %s: the figures of its report need not hold",
            adapter,
            named,
            model.config.name_or_path,
        )
    expected = set(get_peft_model_state_dict(peft_model, save_embedding_layers=False))
    if expected - stored or any(".lora_" in key for key in stored - expected):
        raise unfit  # PEFT leaves out what has no counterpart
    return peft_model.eval()


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Keeps back PEFT's warnings: of deprecated calls of its own, and of what is checked here anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield
