"""Running a model to generate: tests of `toolkit/models/generation.py`."""

import gc
import weakref
from itertools import islice

import pytest
import torch
from conftest import tiny_tokenizer
from random_models import MODELS, VOCABULARY, tiny

from toolkit.errors import CalibrantError
from toolkit.models.adapters import activate, adapter_parameters, add_copy, attach_lora, base_only
from toolkit.models.adjustment import Adjustment
from toolkit.models.generation import (
    Decoding,
    advance,
    begin,
    end_ids,
    given_logits,
    stream,
)

PROMPT = [5, 6, 7, 8]
GREEDY = Decoding(temperature=0, max_tokens=12)


def run(model, decoding=GREEDY, prompt=PROMPT, **options):
    return list(stream(model, prompt, decoding, **{"seed": 0, "end_ids": (), **options}))


def chosen(*arguments, **options) -> list[int]:
    return [step.id for step in run(*arguments, **options)]


@torch.no_grad()
def plain_logits(model, text: list[int]) -> torch.Tensor:
    """Raw logits after each token of a text, shape (L, V), from one pass without a cache."""
    return model(input_ids=torch.tensor([text])).logits[0].float()


def adapted():
    """A model with two adapters that do something, `default` at work."""
    architecture, config, keys = MODELS["llama"]
    model = attach_lora(architecture(config(**keys)), rank=2, alpha=8, base_name="tiny")
    add_copy(model, "other")
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for name in ("default", "other"):
            for weight in adapter_parameters(model, name):
                weight.normal_(std=0.3)
    return model.eval()


class Watch:
    """Counts a model's passes, and remembers the last cache and the places that the head saw."""

    def __init__(self, model):
        self.passes, self.places, self.cache = 0, [], None
        self.handles = [
            model.register_forward_pre_hook(self.on_pass, with_kwargs=True),
            model.get_output_embeddings().register_forward_hook(self.on_head),
        ]

    def on_pass(self, _, __, keys):
        self.passes += 1
        self.cache = weakref.ref(keys["cache"]) if keys["use_cache"] else None

    def on_head(self, _, inputs, __):
        self.places.append(inputs[0].shape[:-1].numel())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_that_of_transformers(name):
    model = tiny(name)
    expected = model.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0
    )
    assert chosen(model) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("forced", [[], [9, 10, 11]])
def test_logits_are_the_raw_ones_of_a_pass_without_cache(name, forced):
    model = tiny(name)
    steps = run(model, Decoding(temperature=2, top_p=0.7, max_tokens=8), forced=forced)
    ids = [step.id for step in steps]
    assert ids[: len(forced)] == forced and len(ids) == 8
    expected = plain_logits(model, PROMPT + ids)[len(PROMPT) - 1 : -1]
    torch.testing.assert_close(torch.stack([step.logits for step in steps]), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(given_logits(model, PROMPT, ids), expected, atol=1e-4, rtol=0)
    for step in steps[len(forced) :]:
        assert step.kept.isneginf().any() and step.kept[step.id].isfinite()


def test_sixteen_bits_give_float32():
    architecture, config, keys = MODELS["llama"]
    model = architecture(config(**keys)).to(torch.bfloat16).eval()
    steps = run(model)
    assert {step.logits.dtype for step in steps} == {step.kept.dtype for step in steps} == {torch.float32}
    assert steps[0].kept.exp().sum() == pytest.approx(1, abs=1e-6)
    assert given_logits(model, PROMPT, [1, 2]).dtype == torch.float32


def test_raw_logits_are_after_the_adjustment():
    generator = torch.Generator().manual_seed(5)
    adjustment = Adjustment(
        torch.rand(VOCABULARY, generator=generator) + 0.5, torch.randn(VOCABULARY, generator=generator)
    )
    model = tiny()
    steps = run(model, adjustment=adjustment)
    ids = [step.id for step in steps]
    raw = plain_logits(model, PROMPT + ids)[len(PROMPT) - 1 : -1]
    expected = adjustment.delta * raw + adjustment.iota
    torch.testing.assert_close(torch.stack([step.logits for step in steps]), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(given_logits(model, PROMPT, ids, adjustment=adjustment), expected)
    assert ids == expected.argmax(-1).tolist() != raw.argmax(-1).tolist()


def test_draws_are_a_function_of_the_seed():
    model, decoding = tiny(), Decoding(temperature=2, max_tokens=12)
    one = chosen(model, decoding, seed=3)
    torch.manual_seed(0)
    assert chosen(model, decoding, seed=3) == one
    assert len({tuple(chosen(model, decoding, seed=seed)) for seed in range(5)}) == 5


def test_an_answer_whose_beginning_is_given_goes_on_as_before():
    model, decoding = tiny(), Decoding(temperature=2, max_tokens=12)
    whole = chosen(model, decoding)
    for given in (1, 5, 12):
        assert chosen(model, decoding, forced=whole[:given]) == whole
    other = [(whole[0] + 1) % VOCABULARY]
    assert chosen(model, decoding, forced=other)[:1] == other


def test_what_is_given_is_read_in_one_pass():
    model = tiny()
    with Watch(model) as watch:
        assert len(run(model, forced=[9] * 5)) == 12
    assert watch.passes == 7
    assert watch.places == [6] + [1] * 6  # after the given tokens and the prompt, then after each other


def test_ends_with_an_end_token_or_at_the_most_tokens():
    model = tiny()
    whole = chosen(model)
    end = whole[4]
    assert chosen(model, end_ids={end}) == whole[: whole.index(end) + 1]
    assert chosen(model, end_ids={end}, forced=[1, end, 3]) == [1, end]
    with Watch(model) as watch:
        assert len(run(model, Decoding(temperature=0, max_tokens=3))) == 3
    assert watch.passes == 3


def test_closing_it_frees_the_cache_and_ends_the_work():
    model = tiny()
    with Watch(model) as watch:
        steps = stream(model, PROMPT, GREEDY, seed=0, end_ids=())
        assert watch.passes == 0
        next(steps)
        next(steps)
        assert watch.passes == 2
        gc.disable()
        try:
            assert watch.cache() is not None
            steps.close()
            assert watch.cache() is None
        finally:
            gc.enable()
        assert watch.passes == 2 and next(steps, None) is None


def test_only_the_last_place_is_projected_on_the_vocabulary():
    model = tiny()
    with Watch(model) as watch:
        run(model, prompt=[3] * 40)
        given_logits(model, [3] * 40, [4, 5])
    assert watch.places == [1] * 12 + [2]
    assert len(model.get_output_embeddings()._forward_pre_hooks) == 0


def test_mode_and_gradients_are_as_before_between_the_steps():
    model = adapted().train()
    steps = stream(model, PROMPT, GREEDY, seed=0, end_ids=())
    for step in islice(steps, 3):
        assert model.training and model.get_base_model().training and torch.is_grad_enabled()
        assert not step.logits.requires_grad
    given_logits(model, PROMPT, [1])
    assert model.training
    with pytest.raises(IndexError):
        run(model, prompt=[VOCABULARY])
    assert model.training
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, _ in model.named_parameters() if ".default." in name
    }


def test_dropout_is_off():
    architecture, config, keys = MODELS["llama"]
    model = attach_lora(architecture(config(**keys)), rank=2, alpha=8, dropout=0.5, base_name="tiny")
    for weight in adapter_parameters(model):
        torch.nn.init.constant_(weight, 0.2)
    for one, two in zip(run(model.train()), run(model.eval()), strict=True):
        torch.testing.assert_close(one.logits, two.logits, atol=0, rtol=0)


def test_base_and_adapters_take_turns():
    """Steps of three answers interleaved, each under its own adapter, are those of each alone."""
    model = adapted()
    expected: dict[str | None, list[int]] = {"other": [], "default": [], None: []}
    for name, ids in expected.items():
        if name is None:
            with base_only(model):
                ids += chosen(model)
        else:
            activate(model, name)
            ids += chosen(model)
    assert len({tuple(ids) for ids in expected.values()}) == 3
    streams = {name: stream(model, PROMPT, GREEDY, seed=0, end_ids=()) for name in expected}
    found: dict[str | None, list[int]] = {name: [] for name in expected}
    for _ in range(GREEDY.max_tokens):
        for name, steps in streams.items():
            if name is None:
                with base_only(model):
                    found[name].append(next(steps).id)
            else:
                activate(model, name)
                found[name].append(next(steps).id)
    assert found == expected


def test_inference_mode_may_be_around_each_step():
    model, found = tiny(), []
    steps = stream(model, PROMPT, GREEDY, seed=0, end_ids=())
    while True:
        with torch.inference_mode():
            step = next(steps, None)
        if step is None:
            break
        found.append(step.id)
    assert found == chosen(model)


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_other_lengths_and_rows_that_leave_change_nothing(name):
    model = tiny(name)
    prompts = [[7, 8], [5, 6, 7, 8, 9], [3]]
    if name == "mistral":
        prompts.append([n % 90 + 3 for n in range(150)])  # longer than its attention window of 128
    lines = [0, 2, 1, 0, len(prompts) - 1]
    answers = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41, 42, 43, 44], [51, 52, 53, 54]]
    logits, state = begin(model, prompts)
    for prompt, row in zip(prompts, logits, strict=True):
        torch.testing.assert_close(row[0], plain_logits(model, prompt)[-1], atol=1e-4, rtol=0)
    state.select(lines)
    going = list(range(5))
    for number in range(4):
        found = advance(model, state, torch.tensor([answers[row][number] for row in going]))
        for row, line in zip(found, going, strict=True):
            text = prompts[lines[line]] + answers[line][: number + 1]
            torch.testing.assert_close(row, plain_logits(model, text)[-1], atol=1e-4, rtol=0)
        left = [place for place in range(len(going)) if place != number % 2]
        state.select(left)
        going = [going[place] for place in left]


def test_end_ids_are_those_of_model_tokenizer_and_template(bundled, tiny_folder):
    tokenizer = tiny_tokenizer()
    model = type(tiny()).from_pretrained(tiny_folder)
    end = tokenizer.eos_token_id
    assert end_ids(model, tokenizer) == {end}
    model.generation_config.eos_token_id = [3, 4]
    tokenizer.eos_token = "<|pad|>"  # not what its template writes
    assert end_ids(model, tokenizer) == {end, 3, 4, tokenizer.pad_token_id}
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert end_ids(model, tokenizer) == {end, 3, 4, tokenizer.pad_token_id}  # the model's config has it
    tokenizer.chat_template = None
    assert end_ids(tiny(), tokenizer) == {2, tokenizer.pad_token_id}
    assert end_ids(*bundled) == {bundled[1].convert_tokens_to_ids("<|im_end|>")}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"top_k": 0}, "top_k 0"),
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"stop": ("\n", "")}, "stop text"),
    ],
)
def test_decoding_refuses_in_one_line(keys, said):
    with pytest.raises(CalibrantError, match=said) as caught:
        Decoding(**keys)
    assert "\n" not in str(caught.value)


def test_refuses_what_does_not_fit():
    with pytest.raises(CalibrantError, match="empty"):
        run(tiny(), prompt=[])
    with pytest.raises(CalibrantError, match="empty"):
        given_logits(tiny(), PROMPT, [])
    with pytest.raises(CalibrantError, match="13 tokens are given, 12 allowed"):
        run(tiny(), forced=[1] * 13)
    short = tiny("gpt2")  # a context of 64
    assert len(run(short, prompt=[3] * 52)) == 12
    with pytest.raises(CalibrantError, match="53 tokens and an answer of 12 do not fit"):
        run(short, prompt=[3] * 53)
    with pytest.raises(CalibrantError, match="do not fit"):
        given_logits(short, [3] * 60, [4] * 5)
