import copy
import random
from dataclasses import fields, replace

import pytest
import torch
from random_models import MODELS, VOCABULARY, assert_naive, naive, ours, ragged, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from toolkit.errors import CalibrantError
from toolkit.models.adapters import adapter_parameters, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.predictive import (
    answer_tokens,
    attention_window,
    collate,
    option_log_probs,
    option_scores,
    predictive,
    vocabulary_log_probs,
)
from toolkit.questions.sources import load_questions


@pytest.mark.parametrize("layout", ["tree", "packed", "separate"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_one_option_in_one_pass(name, layout):
    model, questions = tiny(name), ragged(5)
    assert_naive(model, questions, ours(model, questions, layout=layout, row_length=64))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_eager_attention(name):
    model, questions = tiny(name, "eager"), ragged(5)
    assert model.config._attn_implementation == "eager"
    assert_naive(model, questions, ours(model, questions))


@pytest.mark.parametrize("layout", ["tree", "packed", "separate"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_batch_size_and_order_change_nothing(layout, side):
    model, questions = tiny(), ragged(10, seed=1)
    expected = {question.id: naive(model, question) for question in questions}
    for size in range(1, len(questions) + 1):
        random.Random(size).shuffle(questions)
        for start in range(0, len(questions), size):
            chunk = questions[start : start + size]
            for pad_id in (0, 5):
                found = ours(model, chunk, layout=layout, padding_side=side, pad_id=pad_id)
                for question, scores in zip(chunk, found, strict=True):
                    assert scores == pytest.approx(expected[question.id], abs=1e-4, rel=0)


def family(n: int = 12) -> list[EncodedQuestion]:
    """Questions of three kinds whose prompts begin alike, some of them whole beginnings of others."""
    draw = random.Random(5)
    questions = []
    for number in range(n):
        stem = [7 + number % 3] * 9
        prompt = stem[: 4 + number % 6] + [draw.randrange(2, 5) for _ in range(number % 4)]
        options = [[draw.randrange(2, 4) for _ in range(1 + option)] for option in range(2 + number % 3)]
        questions.append(EncodedQuestion(str(number), prompt, options, 0, [1] * len(options)))
    return questions


@pytest.mark.parametrize("row_length", [1, 20, 60, 1000])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_questions_that_begin_alike_share_a_row(name, row_length):
    model, questions = tiny(name), family()
    assert_naive(model, questions, ours(model, questions, layout="tree", row_length=row_length))


def test_a_tree_holds_each_beginning_once():
    questions = family()
    tree, packed = (collate(questions, layout=layout, row_length=1000) for layout in ("tree", "packed"))
    texts = {tuple((q.prompt + option[:-1])[: n + 1]) for q in questions
             for option in q.options for n in range(len(q.prompt) + len(option) - 1)}  # fmt: skip
    assert len(tree.input_ids) == 1  # neighbours share; a beginning comes again only behind another branch
    assert len(texts) <= tree.input_ids.numel() < 0.6 * sum(q.packed_length for q in questions)
    assert len(tree.target) == len(packed.target) == sum(len(o) for q in questions for o in q.options)
    assert len(tree.rows) < len(packed.rows)  # fewer places where logits are computed, too


def test_the_rows_of_a_tree_are_about_equally_long():
    questions = ragged(60, seed=4)
    batch = collate(questions, layout="tree", row_length=200)
    used = batch.attention_mask.squeeze(1).sum(-1).gt(1) | batch.position_ids.eq(0)
    longest = max(question.packed_length for question in questions)
    assert len(batch.input_ids) > 4
    assert all(batch.input_ids.shape[1] - int(row.sum()) <= longest for row in used)
    assert batch.input_ids.shape[1] <= 200 + longest


def test_no_token_of_a_packed_row_sees_nothing():
    """A softmax over nothing is NaN in some kernels, and padding is a token like any other there."""
    batch = collate(ragged(6))
    assert batch.attention_mask.any(dim=-1).all()


@pytest.mark.parametrize("layout", ["tree", "packed", "separate"])
@pytest.mark.parametrize("score", ["sum", "token", "byte"])
@pytest.mark.parametrize("adjusted", [False, True])
def test_every_score_with_and_without_adjustment(adjusted, score, layout):
    generator = torch.Generator().manual_seed(2)
    delta = torch.rand(VOCABULARY, generator=generator) + 0.5 if adjusted else torch.tensor(1.0)
    iota = torch.randn(VOCABULARY, generator=generator) if adjusted else torch.tensor(0.0)
    model, questions = tiny(), ragged(6, seed=3)
    adjustment = Adjustment(delta, iota) if adjusted else None
    found = ours(model, questions, adjustment, score, layout=layout)
    assert_naive(model, questions, found, delta=delta, iota=iota, score=score)


def test_scalar_adjustment_is_a_temperature():
    model, questions = tiny(), ragged(4)
    found = ours(model, questions, Adjustment(torch.tensor(1 / 2.5), torch.tensor(0.0)))
    assert_naive(model, questions, found, delta=1 / 2.5)


def test_log_probs_are_normalised_over_the_options():
    model, questions = tiny(), ragged(5)
    batch = collate(questions)
    with torch.no_grad():
        log_probs = option_log_probs(predictive(model, batch), batch)
    for row, question in zip(log_probs, questions, strict=True):
        expected = torch.tensor(naive(model, question), dtype=torch.float64).softmax(0)
        assert torch.allclose(row[: len(question.options)].exp().double(), expected, atol=1e-4)
        assert row.exp().sum().item() == pytest.approx(1)


def test_tokens_of_the_answers():
    model, questions = tiny(), ragged(5)
    batch = collate(questions)
    with torch.no_grad():
        logits = predictive(model, batch)
        found = logits.log_softmax(-1)[answer_tokens(batch)]
        expected = []
        for question in questions:
            text = question.prompt + question.options[question.answer]
            log_probs = model(input_ids=torch.tensor([text])).logits[0].log_softmax(-1)
            expected += [log_probs[i - 1, text[i]] for i in range(len(question.prompt), len(text))]
    assert torch.allclose(found, torch.stack(expected), atol=1e-4)
    distributions = vocabulary_log_probs(logits, Adjustment(torch.tensor(0.5), torch.tensor(0.0)))
    assert torch.allclose(distributions, (logits / 2).log_softmax(-1))


@pytest.mark.parametrize("layout", ["tree", "packed", "separate"])
def test_a_reference_is_a_table_in_the_order_of_the_questions(layout):
    questions = [
        replace(question, reference=[-1.5 * (i + 1) - k for k in range(len(question.options))])
        for i, question in enumerate(ragged(4))
    ]
    batch = collate(questions, layout=layout)
    assert batch.reference is not None and batch.reference.dtype == torch.float32
    assert batch.reference.tolist() == [
        [*(question.reference or []), *[0.0] * (5 - len(question.options))] for question in questions
    ]
    moved = batch.to("meta")
    assert {getattr(moved, field.name).device.type for field in fields(moved)} == {"meta"}


def test_without_a_reference_all_is_as_before():
    questions = ragged(4)
    plain = collate(questions)
    assert plain.reference is None and plain.to("meta").reference is None
    assert plain.to("meta").tokens.device.type == "meta"
    some = [replace(questions[0], reference=[0.0] * len(questions[0].options)), *questions[1:]]
    assert collate(some).reference is None
    every = [replace(question, reference=[-1.0] * len(question.options)) for question in questions]
    for field in fields(plain):
        if field.name != "reference":
            assert torch.equal(getattr(collate(every), field.name), getattr(plain, field.name))


def test_gradients_are_those_of_one_option_in_one_pass():
    model, questions = tiny(), ragged(4)
    batch = collate(questions)
    nll = -option_log_probs(predictive(model, batch), batch)[range(4), batch.answers].mean()
    weights = list(model.parameters())
    found = torch.autograd.grad(nll, weights)
    total = torch.tensor(0.0)
    for question in questions:
        scores = []
        for option in question.options:
            text = torch.tensor([question.prompt + option])
            log_probs = model(input_ids=text).logits[0, len(question.prompt) - 1 : -1].log_softmax(-1)
            scores.append(log_probs[range(len(option)), option].sum())
        total = total - torch.stack(scores).log_softmax(0)[question.answer] / 4
    for gradient, expected in zip(found, torch.autograd.grad(total, weights), strict=True):
        assert torch.allclose(gradient, expected, atol=1e-4 * expected.abs().max().item())


def test_a_peft_model(tiny_folder):
    base = LlamaForCausalLM.from_pretrained(tiny_folder).eval()
    questions = ragged(4)
    before = [naive(base, question) for question in questions]
    model = attach_lora(base, rank=4, alpha=8, base_name="tiny").eval()
    for weight in adapter_parameters(model):
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    found = ours(model, questions)
    assert found[0] != pytest.approx(before[0], abs=1e-2)
    assert_naive(model, questions, found)


def test_bfloat16_agrees_within_its_rounding():
    model = copy.deepcopy(tiny()).bfloat16()
    questions = ragged(5)
    batch = collate(questions)
    with torch.no_grad():
        assert predictive(model, batch).dtype == torch.float32
    assert_naive(model, questions, ours(model, questions), tolerance=0.5)  # sums of some -60 nats


class LargestProjection(TorchDispatchMode):
    """Notes the most rows of any tensor whose last dimension is the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (VOCABULARY,):
                self.rows = max(self.rows, tensor.numel() // VOCABULARY)
        return result


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma2"])
def test_the_vocabulary_is_projected_at_scored_places_only(name):
    model, questions = tiny(name), ragged(10)
    batch = collate(questions)
    places = sum(1 + sum(len(option) - 1 for option in question.options) for question in questions)
    head, shapes = model.get_output_embeddings(), []
    handle = head.register_forward_hook(lambda _, x, output: shapes.append((x[0].shape, output.shape)))
    try:
        with LargestProjection() as largest:
            option_scores(predictive(model, batch), batch).clamp(min=-1e3).sum().backward()
    finally:
        handle.remove()
        model.zero_grad()
    assert shapes == [((1, places, 32), (1, places, VOCABULARY))]
    assert largest.rows == places < batch.input_ids.numel()


def test_the_projection_is_whole_again_afterwards():
    model, questions = tiny(), ragged(2)
    text = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        before = model(input_ids=text).logits
        predictive(model, collate(questions))
        with pytest.raises(IndexError):
            predictive(model, collate([EncodedQuestion("id", [VOCABULARY], [[1], [2]], 0, [1, 1])]))
        assert torch.equal(model(input_ids=text).logits, before)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_refuses_a_packed_row_longer_than_the_attention_window(name):
    """The mask of a packed row would not slide, and nothing but the numbers would say so."""
    architecture, config, keys = MODELS[name]
    model = architecture(config(**keys | {"sliding_window": 16}, initializer_range=0.3)).eval()
    assert attention_window(model) == 16
    fits = EncodedQuestion("fits", [*range(3, 12)], [[*range(20, 25)], [*range(30, 34)]], 0, [1, 1])
    assert fits.packed_length == 16
    assert_naive(model, [fits], ours(model, [fits]))
    longer = EncodedQuestion("longer", [*range(3, 21)], [[*range(20, 25)], [*range(30, 34)]], 0, [1, 1])
    with pytest.raises(CalibrantError, match="attention window of 16"):
        ours(model, [longer])
    assert_naive(model, [longer], ours(model, [longer], layout="separate"))


def test_the_narrowest_window_counts():
    assert attention_window(tiny("llama")) is None
    assert attention_window(tiny("qwen2")) is None  # has a window, and does not use it
    assert attention_window(tiny("mistral")) == 128


@pytest.mark.parametrize("style", ["plain", "chat"])
def test_the_bundled_model_on_worldfacts(bundled, style):
    model, tokenizer = bundled
    asked = [load_questions(f"worldfacts/{name}", "test").questions[0] for name in ("chemistry", "cities")]
    questions = encode_questions(asked, tokenizer, style=style, max_length=8192)
    assert_naive(model, questions, ours(model, questions))
