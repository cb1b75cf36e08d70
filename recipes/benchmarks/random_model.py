"""Llama-shaped models with random weights: a model's speed and size do not depend on its weights."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.quantizers import AutoHfQuantizer

from toolkit.errors import CalibrantError
from toolkit.models.base import default_device, load_model, model_identity, parse_dtype
from toolkit.models.bundled import bundled_model
from toolkit.models.quantization import Quantization, nf4_config, prepare

PREFIX = "random:"
"""What the name of a random model begins with, before its shape."""

Device = torch.device | str


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama.

    Attributes:
        hidden: Width of the hidden states.
        inner: Width inside the MLP.
        layers: Number of layers.
        heads: Attention heads.
        groups: Heads of keys and values.
        vocabulary: Least number of token ids; no fewer than the tokenizer's are taken.
        tied: Whether the vocabulary projection is the embedding.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int = 0
    tied: bool = True


SHAPES = {
    "tiny": Shape(hidden=64, inner=128, layers=2, heads=4, groups=2),
    "10m": Shape(hidden=128, inner=384, layers=19, heads=4, groups=2),
    "50m": Shape(hidden=384, inner=1024, layers=20, heads=6, groups=2),
    "100m": Shape(hidden=576, inner=1536, layers=20, heads=9, groups=3),
    "500m": Shape(hidden=1280, inner=3456, layers=25, heads=20, groups=4),
    "8b": Shape(hidden=4096, inner=14336, layers=32, heads=32, groups=8, vocabulary=128_256, tied=False),
}
"""Shapes by name; but for `tiny` the name is the number of weights, with a vocabulary of 49152."""


@dataclass(frozen=True)
class Loaded:
    """A model, its tokenizer, and what a report says of it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: dict[str, Any]


def load(
    name: str,
    *,
    dtype: str = "auto",
    quantization: Quantization | None = None,
    device: Device = "cpu",
    seed: int = 0,
    prepared: bool = True,
) -> Loaded:
    """Loads or makes a model.

    Args:
        name: As for `load_model`, or `random:` and a shape of `SHAPES`.
        dtype: As for `load_model`.
        quantization: As for `load_model`.
        device: Where the model goes.
        seed: Seeds random weights.
        prepared: Prepare a quantized base as our recipes do; without, it is as transformers loads it.

    Raises:
        CalibrantError: There is no such model or shape.
    """
    if name.startswith(PREFIX):
        shape = find_shape(name.removeprefix(PREFIX))
        model: PreTrainedModel = random_model(
            shape, quantization=quantization, dtype=parse_dtype(dtype), device=device, seed=seed
        )
        tokenizer = bundled_tokenizer()
        model.config.pad_token_id = tokenizer.pad_token_id
        if prepared:
            model = prepare(model).eval()
    elif quantization is None or prepared:
        model, tokenizer = load_model(name, dtype=dtype, quantization=quantization, device=device)
    else:
        source = bundled_model() if name == "bundled" else name
        config = nf4_config(parse_dtype(dtype))
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=parse_dtype(dtype), quantization_config=config, device_map={"": device}
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(source)
    return Loaded(model, tokenizer, identity(name, model))


def this_device() -> torch.device:
    """Returns the device that Accelerate will take, by its index, as it wants to see a quantized model's."""
    device = default_device()
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


@cache
def bundled_tokenizer() -> PreTrainedTokenizerBase:
    """Returns the bundled model's tokenizer, which random models share."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(bundled_model())
    return tokenizer


def identity(name: str, model: PreTrainedModel) -> dict[str, Any]:
    """Describes a model for a report; see `model_identity`."""
    found = model_identity("bundled" if name.startswith(PREFIX) else name, model)
    return found | ({"name": name, "revision": None} if name.startswith(PREFIX) else {})


def find_shape(name: str) -> Shape:
    """Returns the shape of a name, or raises CalibrantError."""
    if name not in SHAPES:
        raise CalibrantError(f"no random model {name!r}; choose {', '.join(SHAPES)}")
    return SHAPES[name]


def random_model(
    shape: Shape,
    *,
    quantization: Quantization | None = None,
    dtype: torch.dtype = torch.float32,
    device: Device = "cpu",
    seed: int = 0,
) -> LlamaForCausalLM:
    """Makes a Llama with random weights on a device, one layer at a time.

    With `quantization` each layer is quantized before the next one is made, so that no more than one layer is
    ever held in full. What transformers leaves as it is, the embedding and the vocabulary projection, stays
    so here too.

    Args:
        shape: Sizes.
        quantization: Quantize the layers' weights.
        dtype: Of the weights, and what quantized ones compute in.
        device: Where the model is made.
        seed: Seeds the weights.
    """
    tokenizer = bundled_tokenizer()
    config = LlamaConfig(
        vocab_size=max(shape.vocabulary, len(tokenizer)),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=0,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=8192,
        tie_word_embeddings=shape.tied,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
        for index in range(shape.layers):
            layer = LlamaDecoderLayer(config, index).to(dtype)
            model.model.layers.append(_quantized(layer, dtype) if quantization else layer)
    config.num_hidden_layers = shape.layers
    if quantization:
        _mark_quantized(model, dtype)
    return model.eval()


def _quantized(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Replaces the linear layers of a layer by what transformers puts in their place."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    config = nf4_config(dtype)
    linear = [(name, module) for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    for name, module in linear:
        weight = module.weight
        options = {
            "compress_statistics": config.bnb_4bit_use_double_quant,
            "quant_type": config.bnb_4bit_quant_type,
            "quant_storage": config.bnb_4bit_quant_storage,
        }
        with torch.device("meta"):
            new = Linear4bit(
                module.in_features, module.out_features, bias=False, compute_dtype=dtype, **options
            )
        quantized: Any = Params4bit(weight.data, requires_grad=False, module=new, **options)
        new.weight = quantized.to(weight.device)
        layer.set_submodule(name, new)
    return layer


def _mark_quantized(model: LlamaForCausalLM, dtype: torch.dtype) -> None:
    """Says of a model what transformers says of one that it has quantized."""
    config = nf4_config(dtype)
    quantizer = AutoHfQuantizer.from_config(config)
    marks = {"is_loaded_in_4bit": True, "is_quantized": True, "hf_quantizer": quantizer}
    marks["quantization_method"] = config.quant_method
    for name, value in marks.items():
        setattr(model, name, value)
    model.config.quantization_config = config
