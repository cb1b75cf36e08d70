"""Confidence in options as arrays: tests of `toolkit/confidence/options.py`."""

import numpy as np
import pytest
import torch
from conftest import tiny_tokenizer
from random_models import VOCABULARY, naive, ragged, tiny
from scipy.special import log_softmax, logsumexp

from toolkit.confidence.options import option_confidence
from toolkit.models.adapters import adapter_parameters, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion, encode_question
from toolkit.questions.question import MultipleChoice


def expected_log_probs(model, questions, **options) -> np.ndarray:
    """Softmax of the naive scores over each question's options, in float64, -inf for absent ones."""
    width = max(len(question.options) for question in questions)
    rows = np.full((len(questions), width), -np.inf)
    for row, question in zip(rows, questions, strict=True):
        row[: len(question.options)] = log_softmax(naive(model, question, **options))
    return rows


@pytest.mark.parametrize("layout", ["tree", "packed", "separate"])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_log_probs_in_the_order_of_the_questions(layout, batch_size):
    model, questions = tiny(), ragged(8, seed=4)
    found = option_confidence(model, questions, layout=layout, batch_size=batch_size)
    assert found.log_probs.dtype == np.float64
    np.testing.assert_allclose(found.log_probs, expected_log_probs(model, questions), atol=1e-4)
    np.testing.assert_allclose(logsumexp(found.log_probs, axis=1), 0, atol=1e-12)
    assert found.answers.tolist() == [question.answer for question in questions]


@pytest.mark.parametrize("score", ["sum", "token", "byte"])
def test_scores_and_adjustment(score):
    generator = torch.Generator().manual_seed(5)
    delta = torch.rand(VOCABULARY, generator=generator) + 0.5
    iota = torch.randn(VOCABULARY, generator=generator)
    model, questions = tiny(), ragged(5)
    found = option_confidence(model, questions, adjustment=Adjustment(delta, iota), score=score)
    expected = expected_log_probs(model, questions, delta=delta, iota=iota, score=score)
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)
    mass = [np.exp(naive(model, question, delta=delta, iota=iota)).sum() for question in questions]
    np.testing.assert_allclose(found.mass, mass, rtol=1e-3)  # of the texts, however they are scored


def test_mass_is_what_the_options_hold_of_all_continuations():
    """A question whose options are all tokens there are has mass 1, one that has half of them the rest."""
    model = tiny()
    every = [[token] for token in range(VOCABULARY)]
    sizes = [1] * VOCABULARY
    questions = [
        EncodedQuestion("all", [5, 6], every, 0, sizes),
        EncodedQuestion("first", [5, 6], every[:40], 0, sizes[:40]),
        EncodedQuestion("second", [5, 6], every[40:], 0, sizes[40:]),
    ]
    mass = option_confidence(model, questions, layout="packed").mass
    assert mass[0] == pytest.approx(1, abs=1e-5)
    assert mass[1] + mass[2] == pytest.approx(1, abs=1e-5)
    by_hand = sum(np.exp(score) for score in naive(model, questions[1]))
    assert mass[1] == pytest.approx(by_hand, abs=1e-5)


def test_mass_of_longer_options():
    model, questions = tiny(), ragged(6, seed=6)
    found = option_confidence(model, questions, batch_size=2)
    expected = [sum(np.exp(score) for score in naive(model, question)) for question in questions]
    np.testing.assert_allclose(found.mass, expected, rtol=1e-3)


def test_very_improbable_options_keep_their_order():
    """Probabilities of some 10⁻⁵⁰ are nothing in float32, their logarithms are not."""
    model = tiny()
    options = [[3] * 30, [4] * 30, [3] * 40]
    question = EncodedQuestion("id", [5, 6], options, 0, [1, 1, 1])
    assert max(naive(model, question)) < -110
    found = option_confidence(model, [question])
    np.testing.assert_allclose(found.log_probs, expected_log_probs(model, [question]), atol=1e-3)
    assert np.isfinite(found.log_probs).all()


def test_dropout_is_off_and_the_mode_comes_back(tiny_folder):
    model = type(tiny()).from_pretrained(tiny_folder)
    model = attach_lora(model, rank=2, alpha=8, dropout=0.5, base_name="tiny")
    for weight in adapter_parameters(model):
        torch.nn.init.constant_(weight, 0.1)
    questions = ragged(3)
    model.train()
    one, two = (option_confidence(model, questions).log_probs for _ in range(2))
    assert model.training
    np.testing.assert_array_equal(one, two)
    model.eval()
    np.testing.assert_array_equal(one, option_confidence(model, questions).log_probs)
    assert not model.training


def test_the_mode_comes_back_after_a_fault():
    model = tiny().train()
    try:
        with pytest.raises(IndexError):
            option_confidence(model, [EncodedQuestion("id", [VOCABULARY], [[1], [2]], 0, [1, 1])])
        assert model.training
    finally:
        model.eval()


def test_no_graph_is_kept():
    model, questions = tiny(), ragged(2)
    option_confidence(model, questions)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_bar_only_with_a_description(capfd):
    model, questions = tiny(), ragged(3)
    option_confidence(model, questions)
    assert capfd.readouterr().err == ""
    option_confidence(model, questions, description="asking")
    assert "asking" in capfd.readouterr().err


def test_from_a_question_to_its_confidence(tiny_folder):
    model, tokenizer = type(tiny()).from_pretrained(tiny_folder).eval(), tiny_tokenizer()
    question = MultipleChoice("id", "Which is it?", ("the end", "the and", "an inn"), 2)
    encoded = encode_question(question, tokenizer, style="plain", max_length=512)
    found = option_confidence(model, [encoded], pad_id=tokenizer.pad_token_id)
    texts = [f"Question: Which is it?\nAnswer: {choice}" for choice in question.choices]
    prompt = len(tokenizer("Question: Which is it?\nAnswer:").input_ids)
    scores = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            log_probs = model(input_ids=ids).logits[0].log_softmax(-1)
        scores.append(sum(log_probs[i - 1, ids[0, i]].item() for i in range(prompt, ids.shape[1])))
    np.testing.assert_allclose(found.log_probs[0], log_softmax(scores), atol=1e-4)
