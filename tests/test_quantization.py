"""4-bit bases, on the CPU with the real bitsandbytes."""

from typing import Any

import pytest
import torch
from random_models import ragged
from transformers import BitsAndBytesConfig

from toolkit.calibration.losses import Bounds, initial_alpha
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.errors import CalibrantError
from toolkit.models import quantization
from toolkit.models.adapters import adapter_parameters, add_copy, attach_lora, load_adapter, save_adapter
from toolkit.models.base import load_model, model_identity
from toolkit.models.layout import choose_layout, packing_error
from toolkit.models.predictive import collate, predictive
from toolkit.models.quantization import compute_dtype, describe, nf4_config, prepare, weight_bytes

TEXT = torch.tensor([[5, 6, 7, 8, 9, 10]])


def load(folder, dtype="float32", quantized=True):
    return load_model(str(folder), dtype=dtype, quantization="nf4" if quantized else None)[0]


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return predictive(model, collate(ragged(3)))


def test_the_bundled_model_takes_a_third_of_the_memory(bundled):
    model, _ = load_model("bundled", dtype="float32", quantization="nf4")
    small, whole = model_identity("bundled", model), model_identity("bundled", bundled[0])
    assert small["bytes"] <= 0.45 * whole["bytes"]
    assert small["parameters"] == whole["parameters"]
    assert small["quantization"] == {
        "method": "nf4", "double_quantization": True, "compute_dtype": "float32",
    }  # fmt: skip
    assert whole["quantization"] is None
    questions = ragged(4)
    with torch.no_grad():
        near, exact = (predictive(m, collate(questions)).log_softmax(-1) for m in (model, bundled[0]))
    assert 0.01 < (near.exp() - exact.exp()).abs().sum(-1).mean() < 1  # another model, and a like one
    assert choose_layout(model, model.config.vocab_size) == "tree"
    assert packing_error(model, model.config.vocab_size) < 1e-3


def test_the_logits_are_those_of_the_weights_that_the_four_bits_stand_for(tiny_folder):
    from bitsandbytes.functional import dequantize_4bit

    model, plain = load(tiny_folder), load(tiny_folder, quantized=False)
    layers = dict(model.named_modules())
    replaced = 0
    for name, module in plain.named_modules():
        weight: Any = getattr(layers[name], "weight", None)
        if hasattr(weight, "quant_state"):
            module.weight.data = dequantize_4bit(weight.data, weight.quant_state)
            replaced += 1
    assert replaced == 14  # 7 layers in 2 blocks, and not the vocabulary projection
    assert torch.allclose(logits(model), logits(plain), atol=1e-4)


def test_only_a_quantized_base_is_prepared(tiny_folder):
    plain = load(tiny_folder, "bfloat16", quantized=False)
    assert {weight.dtype for weight in plain.parameters()} == {torch.bfloat16}
    model = load(tiny_folder, "bfloat16")
    for dtype, expected in (("bfloat16", torch.bfloat16), ("float16", torch.float32)):
        other = load(tiny_folder, dtype)
        kept = {weight.dtype for weight in other.parameters() if not hasattr(weight, "quant_state")}
        assert kept == {expected} and compute_dtype(other) == getattr(torch, dtype)
    assert not any(weight.requires_grad for one in (plain, model) for weight in one.parameters())
    assert prepare(plain) is plain and describe(plain) is None
    found = describe(model)
    assert found is not None and found["compute_dtype"] == "bfloat16"


def test_a_sixteen_bit_compute_dtype_is_used_throughout(tiny_folder):
    model, exact = load(tiny_folder, "bfloat16"), load(tiny_folder)
    seen: list[torch.dtype] = []
    model.get_output_embeddings().register_forward_hook(lambda *call: seen.append(call[2].dtype))
    found, expected = logits(model), logits(exact)
    assert seen == [torch.bfloat16] and found.dtype == torch.float32
    assert 0 < (found - expected).abs().mean() < 0.2


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradient_checkpointing_gives_the_same_gradients(tiny_folder, quantized, dropout):
    found = []
    for checkpointing in (False, True):
        base = load(tiny_folder, quantized=quantized)
        model = attach_lora(base, rank=2, alpha=4, dropout=dropout, base_name="t")
        if checkpointing:
            base.activation_checkpointing_enable({"use_reentrant": False})
        logits(model.eval())  # a pass in evaluation mode, as validation does, changes nothing
        model.train()
        theta = adapter_parameters(model)
        with torch.no_grad():
            for place, weight in enumerate(theta):
                weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(place)))
        computed: list[int] = []
        mlp = model.get_submodule("base_model.model.model.layers.0.mlp")
        mlp.register_forward_pre_hook(lambda *call, computed=computed: computed.append(1))
        torch.manual_seed(0)
        problem = CalibrationProblem(model, ("default",), Bounds(), *OBJECTIVES["entropy"])
        alpha = initial_alpha("vector", model.config.vocab_size)
        gradient = problem.lower([collate(ragged(4))])(theta, alpha)
        assert len(computed) == (2 if checkpointing else 1)  # once more in the backward pass
        found.append([*gradient.theta, *gradient.alpha])
    assert all(g.any() for g in found[1])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_two_adapters_share_one_quantized_base_and_load_again(tiny_folder, tmp_path, bundled):
    base = load(tiny_folder)
    weights = weight_bytes(base)
    model = attach_lora(base, rank=2, alpha=4, base_name=str(tiny_folder))
    add_copy(model, "hat")
    adapters = sum(w.numel() * 4 for name in ("default", "hat") for w in adapter_parameters(model, name))
    assert weight_bytes(model) == weights + adapters
    with torch.no_grad():
        for weight in adapter_parameters(model):
            weight.add_(0.1)
    _, tokenizer = load_model(str(tiny_folder))
    save_adapter(model, tokenizer, tmp_path / "adapter")
    again = load_adapter(load(tiny_folder), tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model.eval()))


def test_a_model_that_is_quantized_already_stays_as_it_is(tiny_folder, tmp_path):
    load(tiny_folder).save_pretrained(tmp_path / "saved")
    _, tokenizer = load_model(str(tiny_folder))
    tokenizer.save_pretrained(tmp_path / "saved")
    for quantized in (False, True):
        model = load(tmp_path / "saved", quantized=quantized)
        found = describe(model)
        assert found is not None and found["method"] == "nf4"
        assert torch.equal(logits(model), logits(load(tiny_folder)))


def test_the_config_is_that_of_qlora():
    config = nf4_config(torch.bfloat16, torch.float32)
    assert isinstance(config, BitsAndBytesConfig)
    assert (config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant) == ("nf4", True)
    assert (config.bnb_4bit_compute_dtype, config.bnb_4bit_quant_storage) == (torch.bfloat16, torch.float32)


def test_says_what_to_install(tiny_folder, monkeypatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    with pytest.raises(CalibrantError, match=r"bitsandbytes; run: pip install 'calibrant\[quantization\]'"):
        load(tiny_folder)
