"""Which layout suits a model and its questions: tests of `toolkit/models/layout.py`."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_tokenizer
from random_models import MODELS, SIZE, VOCABULARY, assert_naive, ours, ragged, tiny
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from toolkit.evaluation.evaluate import answer_sets
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.layout import choose_layout, layout_for, packing_error
from toolkit.models.predictive import attention_window
from toolkit.questions.question import MultipleChoice, QuestionSet


def random_model(architecture, config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return architecture(config).eval()


def mamba():
    """Has no attention, and refuses the mask."""
    config = MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.3
    )
    return random_model(MambaForCausalLM, config)


def jamba():
    """Takes the mask in one layer, and ignores it in the other, which is recurrent."""
    keys = SIZE | {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2}
    return random_model(JambaForCausalLM, JambaConfig(**keys, mamba_d_state=4, initializer_range=0.5))


def bloom():
    """Derives its position biases from an ordinary mask."""
    config = BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
    return random_model(BloomForCausalLM, config)


@pytest.mark.parametrize("name", MODELS)
def test_takes_packed_options(name):
    assert packing_error(tiny(name), VOCABULARY) < 1e-4
    assert choose_layout(tiny(name), VOCABULARY) == "tree"


@pytest.mark.parametrize("model", [mamba, jamba, bloom])
def test_falls_back_for_an_architecture_that_cannot_take_the_mask(model):
    model = model()
    assert choose_layout(model, VOCABULARY) == "separate"
    questions = ragged(4)
    assert_naive(model, questions, ours(model, questions, layout="separate"))


def test_falls_back_where_scores_are_no_numbers(monkeypatch):
    model = tiny()
    monkeypatch.setattr("toolkit.models.layout.option_scores", lambda *_: torch.tensor([float("nan")]))
    assert choose_layout(model, VOCABULARY) == "separate"


def test_a_fault_of_the_model_itself_is_not_taken_for_a_layout():
    with pytest.raises(IndexError):
        choose_layout(tiny(), 10 * VOCABULARY)  # draws ids that the model does not embed


@pytest.mark.parametrize(("dtype", "layout"), [(torch.bfloat16, "tree"), (torch.float32, "separate")])
def test_rounding_of_a_16_bit_type_is_no_reason_to_fall_back(monkeypatch, dtype, layout):
    model = random_model(MODELS["llama"][0], tiny().config).to(dtype)
    assert choose_layout(model, VOCABULARY) == "tree"
    monkeypatch.setattr("toolkit.models.layout.packing_error", lambda *_: 0.2)
    assert choose_layout(model, VOCABULARY) == layout


def test_questions_longer_than_the_attention_window_fall_back_and_say_so(caplog):
    """No probe of a few tokens sees a window of 128, so the questions are looked at too."""
    model = tiny("mistral")
    prompt = [token % VOCABULARY for token in range(120)]
    short = EncodedQuestion("short", prompt, [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]], 0, [1, 1])
    longer = EncodedQuestion("longer", prompt, [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]], 0, [1, 1])
    assert (short.packed_length, longer.packed_length) == (128, 129)
    assert choose_layout(model, VOCABULARY) == "tree"
    assert layout_for(model, [short], "packed") == layout_for(model, [short], "tree") == "packed"
    assert not caplog.records
    assert layout_for(model, [short, longer], "packed") == "separate"
    assert "129 tokens" in caplog.text and "the last 128" in caplog.text
    assert layout_for(model, [longer], "separate") == "separate"
    assert layout_for(tiny("llama"), [longer], "tree") == "tree"
    for question, layout in ((short, "packed"), (longer, "separate")):
        assert_naive(model, [question], ours(model, [question], layout=layout))


def test_a_window_that_counts_columns():
    """GPT-Neo's local layers count columns of the row, whatever the positions say."""
    config = GPTNeoConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        num_heads=4,
        window_size=16,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = random_model(GPTNeoForCausalLM, config)
    assert attention_window(model) == 16
    fits = EncodedQuestion("fits", [*range(3, 12)], [[*range(20, 25)], [*range(30, 34)]], 0, [1, 1])
    longer = EncodedQuestion("longer", [*range(3, 13)], [[*range(20, 25)], [*range(30, 34)]], 0, [1, 1])
    assert layout_for(model, [fits], choose_layout(model, VOCABULARY)) == "packed"
    assert_naive(model, [fits], ours(model, [fits]))
    assert layout_for(model, [longer], "packed") == "separate"


def test_an_evaluation_falls_back_by_itself(caplog):
    """A model with a window that some sets of questions outgrow gets the same numbers as without packing."""
    architecture, config, keys = MODELS["mistral"]
    tokenizer = tiny_tokenizer()
    keys = keys | {"vocab_size": len(tokenizer), "sliding_window": 48}
    model = random_model(architecture, config(**keys, initializer_range=0.3))
    short = MultipleChoice("short", "Why?", ("a", "b", "c"), 0)
    longer = MultipleChoice("longer", "Why is it, and for whom, and who says so?", ("the end", "b", "c"), 1)
    sets = [QuestionSet(question.id, "test", (question,)) for question in (short, longer)]
    options: dict[str, Any] = {"form": "cloze", "style": "plain", "score": "sum", "max_length": 512}
    with caplog.at_level(logging.WARNING):
        packed = answer_sets(model, tokenizer, sets, layout="tree", **options)
    assert len(caplog.records) == 1
    separate = answer_sets(model, tokenizer, sets, layout="separate", **options)
    for one, other in zip(packed, separate, strict=True):
        assert np.allclose(one.confidence.log_probs, other.confidence.log_probs, atol=1e-4)
