"""Frozen layers that do not run again: the same scores and gradients, in any company."""

from typing import Any

import pytest
import torch
from random_models import MODELS, VOCABULARY, ragged, tiny
from recipe_runs import config, launch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from toolkit.models.adapters import (
    THETA,
    activate,
    adapter_parameters,
    add_copy,
    attach_lora,
    base_only,
    detach,
)
from toolkit.models.layout import choose_prefix
from toolkit.models.predictive import collate, option_scores, predictive
from toolkit.models.prefix import FrozenPrefix, frozen_layers

LIMIT = 1 << 20


@pytest.fixture(params=sorted(MODELS.keys() - {"gpt2"}))  # which has dropout
def model(request):
    """A tiny model with adapters for θ and θ̂, which are not zero, on the second of its two layers."""
    base = tiny(request.param)
    peft_model = attach_lora(base, rank=2, alpha=4, layers=[1], base_name="tiny")
    add_copy(peft_model, "hat")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name in (THETA, "hat"):
            for tensor in adapter_parameters(peft_model, name):
                tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
    activate(peft_model, THETA)
    yield peft_model
    detach(peft_model)  # the base is shared by all tests


def prefix_of(model) -> FrozenPrefix:
    [layer] = frozen_layers(model)
    return FrozenPrefix([layer], LIMIT)


@pytest.mark.parametrize("layout", ["packed", "tree", "separate"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_and_gradients_are_those_of_the_whole_model(model, layout, side):
    prefix = prefix_of(model)
    batch = collate(ragged(7), layout=layout, padding_side=side, row_length=48)
    for name in (THETA, "hat"):  # the second adapter begins where the first one has been
        activate(model, name)
        theta = adapter_parameters(model, name)
        results = []
        for used in (None, prefix, prefix):
            scores = option_scores(predictive(model, batch, used), batch)
            real = scores[scores.isfinite()]
            results.append((real, torch.autograd.grad(real.square().mean(), theta)))
        (plain, slopes), *others = results
        for scores, gradients in others:
            assert torch.allclose(scores, plain, atol=1e-4, rtol=1e-4)
            for one, other in zip(gradients, slopes, strict=True):
                assert (one - other).norm() <= 1e-4 * other.norm()  # small entries lose digits to large ones
    with base_only(model), torch.no_grad():
        plain, kept = (option_scores(predictive(model, batch, used), batch) for used in (None, prefix))
    assert torch.allclose(plain[plain.isfinite()], kept[kept.isfinite()], atol=1e-4, rtol=1e-4)


def test_a_text_that_is_known_does_not_go_through_the_frozen_layers(model):
    prefix, ran = prefix_of(model), []
    [layer] = prefix.layers
    inner = next(module for module in layer.modules() if "Norm" in type(module).__name__)
    handle = inner.register_forward_hook(lambda *_: ran.append(1))
    try:
        for questions, expected in ((ragged(4), 4), (ragged(4), 0), (ragged(6), 2)):
            ran.clear()
            predictive(model, collate(questions), prefix)
            assert len(ran) == expected
    finally:
        handle.remove()
    assert "forward" not in layer.__dict__


def test_a_row_is_the_same_to_the_last_bit_in_any_company(model):
    questions = ragged(6)
    alone, together = prefix_of(model), prefix_of(model)
    for question in questions:
        predictive(model, collate([question]), alone)
    predictive(model, collate(questions[::-1], padding_side="left"), together)
    assert alone._known.keys() == together._known.keys() and alone.taken == together.taken > 0
    assert all(torch.equal(alone._known[key], together._known[key]) for key in alone._known)


def test_what_does_not_fit_is_computed_each_time(model):
    [layer] = frozen_layers(model)
    small = FrozenPrefix([layer], 3000)
    batch = collate(ragged(7))
    for _ in range(3):
        assert torch.equal(predictive(model, batch, small), predictive(model, batch))
    assert 0 < len(small._known) < 7


def test_a_failure_leaves_the_layers_as_they_were(model):
    prefix = prefix_of(model)
    batch = collate(ragged(2))
    predictive(model, batch, prefix)
    hidden = prefix.hidden(batch.input_ids, batch.position_ids, batch.spans, lambda row: None)
    with pytest.raises(RuntimeError, match="broken"), prefix.replaced(hidden):
        raise RuntimeError("broken")
    assert all("forward" not in layer.__dict__ for layer in prefix.layers)


def test_the_choice_is_none_where_nothing_is_frozen_or_something_is_dropped():
    def adapted(chance, layers):
        keys: Any = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        keys |= dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), chance)
        with torch.random.fork_rng():
            base: Any = GPT2LMHeadModel(GPT2Config(**keys, bos_token_id=1, eos_token_id=2))
        return attach_lora(
            base, rank=2, alpha=4, dropout=0.5, targets=["c_attn"], layers=layers, base_name="x"
        )

    def chosen(model, limit=LIMIT):
        model.train()
        found = choose_prefix(model, VOCABULARY, "packed", limit)
        assert model.training
        return found

    assert len(chosen(adapted(0.0, [1])).layers) == 1  # dropout of the adapter itself does not matter
    assert chosen(adapted(0.1, [1])) is None
    assert chosen(adapted(0.0, [0, 1])) is None
    assert chosen(adapted(0.0, [1]), limit=0) is None


@pytest.mark.parametrize("more", [(), ("--model.quantization=nf4", "--training.gradient_checkpointing=true")])
def test_a_run_ends_with_the_same_weights(tiny_folder, tmp_path, more):
    settings = config(tmp_path, tiny_folder)
    found = []
    for size in (0, 16):
        command = (
            "--config", settings, "--output_dir", tmp_path / str(size), "--lora.layers=[1,2]",
            f"--training.prefix_cache={size}", *more,
        )  # fmt: skip
        done = launch("calibrate.py", *command)
        assert done.returncode == 0, done.stderr
        found.append(load_file(tmp_path / str(size) / "adapter_model.safetensors"))
    assert all("layers.1." in key for key in found[0])
    for key, value in found[0].items():
        assert torch.allclose(found[1][key], value, atol=5e-4), key
