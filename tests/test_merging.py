"""One model instead of base, adapter and α, against plain arithmetic on the adapter's logits."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from random_models import GROUPED, MODELS, SIZE, VOCABULARY, tiny
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from toolkit.errors import CalibrantError
from toolkit.models.adapters import adapter_parameters, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.merging import fold, merge, save_merged

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*tie_word_embeddings.*:UserWarning")

ONE_NUMBER = Adjustment(torch.tensor(0.37), torch.tensor(0.0))
ROWS = Adjustment(torch.linspace(0.5, 2, VOCABULARY), torch.zeros(VOCABULARY))
SHIFTED = Adjustment(torch.linspace(0.5, 2, VOCABULARY), torch.linspace(-1, 1, VOCABULARY))
TOKENS = torch.randint(VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(0))

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gemma": (GemmaForCausalLM, GemmaConfig, GROUPED | {"head_dim": 8}),
    "phi": (PhiForCausalLM, PhiConfig, SIZE),  # its output projection has a bias
    **{name: MODELS[name] for name in ("llama", "qwen2", "gpt2", "gpt_neox")},
}


def model_of(name: str, tied: bool):
    architecture, config, keys = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = architecture(config(**keys, initializer_range=0.3, tie_word_embeddings=tied))
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "norm" in key or "ln_" in key:  # as trained ones are: neither 0 nor 1
                    value.add_(torch.randn(value.shape) * 0.2)
                if key == "lm_head.bias":
                    value.copy_(torch.randn(value.shape))
    return model.eval()


def adapted(model):
    """The model with an adapter that does something."""
    lora = attach_lora(model, rank=2, alpha=4.0, base_name="tiny")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in adapter_parameters(lora):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
    return lora.eval()


@torch.no_grad()
def expected(model, adjustment: Adjustment | None) -> torch.Tensor:
    logits = model(TOKENS).logits
    if adjustment is not None:
        logits = logits * adjustment.delta + adjustment.iota
    return logits.log_softmax(-1)


@pytest.mark.parametrize(
    ("name", "tied", "adjustment"),
    [
        *((name, tied, ONE_NUMBER) for name in CASES for tied in (False, True)),
        *((name, False, ROWS) for name in CASES),
        ("phi", False, SHIFTED),
        ("llama", True, None),
        ("gemma", True, None),
    ],
)
def test_what_is_saved_is_the_adapter_with_its_alpha(name, tied, adjustment, tmp_path, tiny_folder):
    lora = adapted(model_of(name, tied))
    wanted = expected(lora, adjustment)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    folder = tmp_path / "merged"
    error = save_merged(lora, tokenizer, folder, adjustment)
    saved: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        found = saved(TOKENS).logits.log_softmax(-1)
        plain = model_of(name, tied)(TOKENS).logits.log_softmax(-1)
    assert (found - wanted).abs().max() < 1e-4 and error < 1e-4
    assert (plain - wanted).abs().max() > 0.1  # the adapter and α do something
    tied_after = saved.get_output_embeddings().weight is saved.get_input_embeddings().weight
    assert tied_after == tied
    assert AutoTokenizer.from_pretrained(folder).chat_template == tokenizer.chat_template
    assert {path.suffix for path in folder.iterdir()} <= {".safetensors", ".json", ".jinja"}
    assert str(tiny_folder) not in (folder / "config.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


@pytest.mark.parametrize(
    ("name", "tied", "adjustment", "reason"),
    [
        ("llama", True, ROWS, "its output projection is its input embedding too"),
        ("qwen2", True, ROWS, "its output projection is its input embedding too"),
        ("llama", False, SHIFTED, "no bias"),
        ("gemma", True, SHIFTED, "no bias"),
        ("llama", False, Adjustment(ROWS.delta[1:], ROWS.iota[1:]), "97 logits and α has 96 entries"),
    ],
)
def test_an_alpha_without_a_place_is_refused_and_the_model_stays(name, tied, adjustment, reason):
    model = model_of(name, tied)
    before = deepcopy(model.state_dict())
    with pytest.raises(CalibrantError, match=reason) as caught:
        fold(model, adjustment)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_softly_capped_logits_are_refused():
    with pytest.raises(CalibrantError, match="caps its logits"):
        fold(deepcopy(tiny("gemma2")), ONE_NUMBER)


def test_an_iota_that_is_the_same_for_all_tokens_needs_no_place():
    model = model_of("llama", False)
    adjustment = Adjustment(ROWS.delta, torch.full((VOCABULARY,), 0.3))
    wanted = expected(model, adjustment)
    fold(model, adjustment)
    assert (expected(model, None) - wanted).abs().max() < 1e-5


def test_a_quantized_base_is_refused():
    lora = adapted(model_of("llama", False))
    lora.get_base_model().is_quantized = True
    with pytest.raises(CalibrantError, match="full precision"):
        merge(lora)


def test_weights_that_are_not_finite_are_refused():
    lora = adapted(model_of("llama", False))
    with torch.no_grad():
        adapter_parameters(lora)[1][0, 0] = float("nan")
    with pytest.raises(CalibrantError, match="cannot be merged"):
        merge(lora)


def test_a_folder_in_use_stays_as_it_is(tmp_path, tiny_folder):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CalibrantError, match="there already"):
        save_merged(adapted(model_of("llama", False)), AutoTokenizer.from_pretrained(tiny_folder), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_model_that_differs_is_not_left_behind(tmp_path, tiny_folder, monkeypatch):
    def wrong(model, adjustment):
        merged = model.merge_and_unload()
        merged.get_output_embeddings().weight.data *= 1.1
        return merged

    monkeypatch.setattr("toolkit.models.merging.merge", wrong)
    lora = adapted(model_of("llama", False))
    with pytest.raises(CalibrantError, match="nats from the adapter's"):
        save_merged(lora, AutoTokenizer.from_pretrained(tiny_folder), tmp_path / "merged")
    assert not list(tmp_path.iterdir())
