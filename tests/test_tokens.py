"""Confidence at every token: tests of `toolkit/confidence/tokens.py`."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from conftest import tiny_tokenizer
from scipy.special import log_softmax
from scipy.stats import entropy

from toolkit.confidence.tokens import (
    SEQUENCE,
    TokenConfidence,
    generated_confidence,
    given_confidence,
    stopped,
)
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import load_model
from toolkit.models.decoding import kept_log_probs
from toolkit.models.generation import Decoding
from toolkit.models.spans import token_spans

PROMPT = [40, 41, 42]


@pytest.fixture(scope="module")
def model(tiny_folder):
    return load_model(str(tiny_folder), dtype="float32")[0]


def generate(model, decoding, tokenizer=None, **options):
    options = {"seed": 0, **options}
    return list(generated_confidence(model, tokenizer or tiny_tokenizer(), PROMPT, decoding, **options))


@torch.no_grad()
def naive(model, ids, delta=1.0, iota=0.0):
    """Log-probabilities of the whole vocabulary before each token, one pass each, in float64."""
    rows = []
    for place in range(len(ids)):
        logits = model(input_ids=torch.tensor([PROMPT + ids[:place]])).logits[0, -1]
        rows.append(log_softmax((delta * logits + iota).double().numpy()))
    return rows


def assert_naive(tokens, rows, decoding, top=10):
    for token, row in zip(tokens, rows, strict=True):
        assert token.log_prob == pytest.approx(row[token.id], abs=1e-4)
        assert token.rank == 1 + sum(other > row[token.id] for other in row)
        assert token.entropy == pytest.approx(entropy(np.exp(row)), abs=1e-4)
        best = sorted(range(len(row)), key=lambda one: -row[one])[:top]
        assert [one.id for one in token.alternatives] == best
        options = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": decoding.top_k}
        kept = kept_log_probs(torch.from_numpy(row), **options).tolist()
        assert token.kept_log_prob == pytest.approx(kept[token.id], abs=1e-4)
        for one in token.alternatives:
            assert one.log_prob == pytest.approx(row[one.id], abs=1e-4)
            assert one.kept_log_prob == pytest.approx(kept[one.id], abs=1e-4)


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(temperature=1.5, max_tokens=8),
        Decoding(temperature=2.0, top_p=0.8, top_k=50, max_tokens=8),
        Decoding(temperature=0.0, max_tokens=8),
    ],
)
def test_generated_and_given_agree_with_the_full_softmax_of_plain_passes(model, decoding):
    tokens = generate(model, decoding)
    ids = [token.id for token in tokens]
    rows = naive(model, ids)
    assert_naive(tokens, rows, decoding)
    given = given_confidence(model, tiny_tokenizer(), PROMPT, ids, decoding=decoding)
    assert_naive(given, rows, decoding)
    assert [(t.text, t.start, t.end) for t in given] == [(t.text, t.start, t.end) for t in tokens]


def test_adjustment_number_of_alternatives_and_given_without_decoding(model):
    generator = torch.Generator().manual_seed(0)
    delta = torch.rand(271, generator=generator) + 0.5
    iota = torch.randn(271, generator=generator)
    decoding = Decoding(max_tokens=5)
    adjustment = Adjustment(delta, iota)
    tokens = generate(model, decoding, adjustment=adjustment, top=3)
    ids = [token.id for token in tokens]
    rows = naive(model, ids, delta, iota)
    assert_naive(tokens, rows, decoding, top=3)
    given = given_confidence(model, tiny_tokenizer(), PROMPT, ids, adjustment=adjustment, top=3)
    assert_naive(given, rows, decoding, top=3)
    assert all(token.kept_log_prob == pytest.approx(token.log_prob, abs=1e-5) for token in given)
    everything = given_confidence(model, tiny_tokenizer(), PROMPT, ids, top=10**6)
    assert all(len(token.alternatives) == 271 for token in everything)


def test_the_bundled_model_gives_the_same_generated_and_given(bundled):
    model, tokenizer = bundled
    turns = [{"role": "user", "content": "Say 'hello' in Japanese."}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    decoding = Decoding(temperature=1.0, top_p=0.9, max_tokens=16)
    tokens = list(generated_confidence(model, tokenizer, prompt, decoding, seed=1))
    ids = [token.id for token in tokens]
    given = given_confidence(model, tokenizer, prompt, ids, decoding=decoding)
    for one, two in zip(tokens, given, strict=True):
        assert one.log_prob == pytest.approx(two.log_prob, abs=1e-4)
        assert one.entropy == pytest.approx(two.entropy, abs=1e-4)
        assert one.kept_log_prob == pytest.approx(two.kept_log_prob, abs=1e-4) and one.rank == two.rank
    text, spans = token_spans(tokenizer, ids)
    assert [(token.start, token.end) for token in tokens] == spans
    assert "".join(token.text for token in tokens) == text


def test_equals_share_the_better_rank_and_the_head_may_rule_tokens_out(model):
    """Of five tokens, two have no probability and two the same."""
    iota = torch.full((271,), -math.inf)
    iota[[7, 9]] = math.log(0.25)
    iota[8] = math.log(0.5)
    adjustment = Adjustment(torch.zeros(271), iota)
    tokens = given_confidence(model, tiny_tokenizer(), PROMPT, [7, 9, 8, 5], adjustment=adjustment, top=4)
    assert [token.rank for token in tokens] == [2, 2, 1, 4]
    assert [math.exp(token.log_prob) for token in tokens] == pytest.approx([0.25, 0.25, 0.5, 0])
    assert [token.entropy for token in tokens] == pytest.approx([1.5 * math.log(2)] * 4)
    assert [one.log_prob for one in tokens[0].alternatives][3] == -math.inf


def test_a_given_token_may_be_cut_off(model):
    tokens = generate(model, Decoding(temperature=0, max_tokens=3), forced=[50, 51])
    assert [token.id for token in tokens[:2]] == [50, 51]
    assert tokens[0].kept_log_prob == -math.inf and math.isfinite(tokens[0].log_prob)
    assert tokens[2].kept_log_prob == 0 and tokens[2].rank == 1


def test_texts_of_tokens_and_of_alternatives_continue_the_answer(model):
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("the あ", add_special_tokens=False)
    tokens = given_confidence(model, tokenizer, PROMPT, [*ids, tokenizer.eos_token_id], top=271)
    assert [token.text for token in tokens] == ["the", " ", "", "", "あ", "<|end|>"]
    assert [(token.start, token.end) for token in tokens] == [(0, 3), (3, 4), (4, 4), (4, 4), (4, 5), (5, 12)]
    for token in tokens:
        assert {one.id: one.text for one in token.alternatives}[token.id] == token.text


def test_ends_at_an_end_token_at_a_stop_text_or_at_the_most_tokens(model):
    tokenizer = tiny_tokenizer()
    whole = generate(model, Decoding(max_tokens=30), tokenizer)
    end = tokenizer.eos_token_id
    forced = [*tokenizer.encode("the e", add_special_tokens=False), end, 50]
    assert [t.id for t in generate(model, Decoding(), tokenizer, forced=forced)] == forced[:-1]
    text = "".join(token.text for token in whole)
    stop = text[4:7]
    first = text.index(stop) + len(stop)
    cut = generate(model, Decoding(max_tokens=30, stop=("nowhere", stop)), tokenizer)
    assert cut == whole[: len(cut)] and cut[-1].start < first <= cut[-1].end
    assert len(whole) == 30 or whole[-1].id == end


def test_stopped_looks_at_what_was_added():
    assert stopped("one\ntwo", 3, ("\n",)) and not stopped("one\ntwo", 4, ("\n",))
    assert stopped("a##b", 2, ("##",)) and stopped("a##", 1, ("##",)) and not stopped("a#", 1, ("##",))
    assert not stopped("abc", 0, ())


def test_closing_it_frees_the_cache(model):
    caches = []
    hook = lambda _, __, keys: caches.append(weakref.ref(keys["cache"]))  # noqa: E731
    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        tokens = generated_confidence(model, tiny_tokenizer(), PROMPT, Decoding(), seed=0)
        next(tokens)
        gc.disable()
        assert caches[-1]() is not None
        tokens.close()
        assert caches[-1]() is None and len(caches) == 1
    finally:
        gc.enable()
        handle.remove()


def test_all_confidence_of_a_token_leaves_the_device_at_once(model, monkeypatch):
    calls = []
    plain = torch.Tensor.tolist

    def counted(tensor):
        calls.append(tensor.shape)
        return plain(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    tokens = generate(model, Decoding(max_tokens=4), top=7)
    assert calls == [(1, 4 + 3 * 7)] * len(tokens)


def confident(*pairs: tuple[float, float]) -> list[TokenConfidence]:
    return [TokenConfidence(0, "", 0, 0, math.log(p), 1, spread, (), 0.0) for p, spread in pairs]


def test_sequence_confidence_in_closed_form():
    tokens = confident((0.5, math.log(2)), (0.25, math.log(8)), (1.0, 0.0))
    found = {name: confidence(tokens) for name, confidence in SEQUENCE.items()}
    assert found == pytest.approx(
        {
            "product": 0.125,
            "length_normalised": 0.5,
            "minimum": 0.25,
            "first_token": 0.5,
            "mean_entropy": 2 ** (-4 / 3),
        }
    )


def test_sequence_confidence_of_certain_and_of_single_tokens():
    for confidence in SEQUENCE.values():
        assert confidence(confident((1.0, 0.0), (1.0, 0.0))) == 1
    single = confident((0.3, 0.0))
    for name in ("product", "length_normalised", "minimum", "first_token"):
        assert SEQUENCE[name](single) == pytest.approx(0.3)
