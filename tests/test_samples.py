"""Many answers to each question: tests of `toolkit/confidence/samples.py`.

accelerate launch --config_file CONFIG tests/test_samples.py MODEL FOLDER writes what each process draws.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sampling
import torch
from accelerate import Accelerator
from conftest import tiny_tokenizer
from recipe_runs import ROOT
from scipy.stats import chisquare

from toolkit.confidence.samples import Sample, draw_samples
from toolkit.confidence.tokens import given_confidence
from toolkit.errors import CalibrantError
from toolkit.models.adapters import adapter_parameters, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import load_model
from toolkit.models.generation import Decoding, stream

PROMPTS = [[40, 41, 42], [50], [60, 61, 62, 63, 64, 65], [70, 71], [80] * 9]
IDS = ["a", "b", "c", "d", "e"]
DECODING = Decoding(temperature=1.5, max_tokens=10)


@pytest.fixture(scope="module")
def model(tiny_folder):
    return load_model(str(tiny_folder), dtype="float32")[0]


def draw(model, prompts=PROMPTS, ids=IDS, **options) -> list[list[Sample]]:
    options = {"n": 7, "decoding": DECODING, "seed": 0, **options}
    return draw_samples(model, tiny_tokenizer(), prompts, ids, **options)


def assert_same(one: list[list[Sample]], other: list[list[Sample]]) -> None:
    for samples, others in zip(one, other, strict=True):
        for sample, its in zip(samples, others, strict=True):
            assert (sample.text, sample.ids, sample.ended) == (its.text, its.ids, its.ended)
            assert sample.log_prob == pytest.approx(its.log_prob, abs=1e-4)


@pytest.fixture(scope="module")
def drawn(model):
    return draw(model)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 8, 14, 100])
def test_the_batch_changes_nothing(model, drawn, batch_size):
    assert_same(draw(model, batch_size=batch_size), drawn)


def test_other_questions_their_order_and_the_number_of_samples_change_nothing(model, drawn):
    assert_same(draw(model, PROMPTS[::-1], IDS[::-1])[::-1], drawn)
    assert_same(draw(model, PROMPTS[2:3], IDS[2:3]), drawn[2:3])
    assert_same([samples[:3] for samples in drawn], draw(model, n=3))


def test_seed_and_id_decide_the_draws(model, drawn):
    other_seed, other_ids = draw(model, seed=1), draw(model, ids=IDS[::-1])
    for other in (other_seed, other_ids):
        assert (
            sum(a.ids == b.ids for x, y in zip(drawn, other, strict=True) for a, b in zip(x, y, strict=True))
            < 9
        )
    torch.manual_seed(0)
    assert_same(draw(model), drawn)


def test_samples_of_a_question_are_draws_of_their_own(model):
    decoding = Decoding(temperature=2.0, max_tokens=10)
    [samples] = draw(model, PROMPTS[:1], IDS[:1], n=50, decoding=decoding)
    assert len({sample.ids for sample in samples}) == 50


def test_samples_have_the_models_probabilities(model):
    """Of all pairs of first tokens by their ids' halves, as often as the product of two softmaxes says."""
    n = 4000
    [samples] = draw(model, [[40]], ["q"], n=n, decoding=Decoding(max_tokens=2), batch_size=1000)
    with torch.no_grad():
        first = model(input_ids=torch.tensor([[40]])).logits[0, -1].double().softmax(-1)
        texts = torch.tensor([[40, token] for token in range(271)])
        second = model(input_ids=texts).logits[:, -1].double().softmax(-1)
    end = tiny_tokenizer().eos_token_id
    expected = np.zeros((3, 2))
    for token in range(271):
        halves = [second[token, :135].sum().item(), second[token, 135:].sum().item()]
        if token == end:
            expected[2, 0] += first[token].item()
        else:
            expected[token // 135 % 2] += first[token].item() * np.array(halves)
    found = np.zeros((3, 2))
    for sample in samples:
        if sample.ids[0] == end:
            found[2, 0] += 1
        else:
            found[sample.ids[0] // 135 % 2, int(sample.ids[1] >= 135)] += 1
    assert chisquare(found[expected > 0], n * expected[expected > 0]).pvalue > 1e-3


@pytest.mark.parametrize("decoding", [DECODING, Decoding(temperature=2, top_p=0.8, top_k=90, max_tokens=6)])
def test_log_prob_is_that_of_the_tokens_by_the_raw_logits(model, decoding):
    adjustment = Adjustment(torch.tensor(0.7), torch.randn(271, generator=torch.Generator().manual_seed(0)))
    samples = draw(model, decoding=decoding, adjustment=adjustment)
    assert samples != draw(model, decoding=decoding)
    for prompt, answers in zip(PROMPTS, samples, strict=True):
        for sample in answers:
            tokens = given_confidence(
                model, tiny_tokenizer(), prompt, sample.ids, decoding=decoding, adjustment=adjustment
            )
            assert sample.log_prob == pytest.approx(sum(token.log_prob for token in tokens), abs=1e-4)
            assert all(np.isfinite(token.kept_log_prob) for token in tokens)


def test_greedy_samples_are_all_the_greedy_answer(model):
    decoding = Decoding(temperature=0, max_tokens=6)
    end = {tiny_tokenizer().eos_token_id}
    for prompt, samples in zip(PROMPTS, draw(model, decoding=decoding), strict=True):
        greedy = tuple(step.id for step in stream(model, prompt, decoding, seed=0, end_ids=end))
        assert {sample.ids for sample in samples} == {greedy}


def test_where_answers_end(model):
    tokenizer = tiny_tokenizer()
    end = tokenizer.eos_token_id
    likely = torch.zeros(271)
    likely[end] = 4.0
    adjustment = Adjustment(torch.tensor(1.0), likely)
    samples = [sample for answers in draw(model, adjustment=adjustment) for sample in answers]
    assert 0 < sum(sample.ended for sample in samples) < len(samples)
    for sample in samples:
        assert sample.ended == (sample.ids[-1] == end) and end not in sample.ids[:-1]
        assert sample.ended or len(sample.ids) == DECODING.max_tokens
        read = str(tokenizer.decode(list(sample.ids), skip_special_tokens=True))
        assert read.removeprefix(sample.text) in ("", "\N{REPLACEMENT CHARACTER}")


def test_stop_texts_end_answers_and_are_no_part_of_them(model, drawn):
    stops = ("x", "y", "z", "a", "e", "q", "th")
    decoding = Decoding(temperature=1.5, max_tokens=10, stop=stops)
    shorter = 0
    for answers, cut in zip(drawn, draw(model, decoding=decoding), strict=True):
        for sample, one in zip(answers, cut, strict=True):
            assert sample.ids[: len(one.ids)] == one.ids
            places = [sample.text.find(stop) for stop in stops if stop in sample.text]
            assert one.text == sample.text[: min(places, default=None)]
            assert one.ended == (bool(places) or sample.ended)
            shorter += len(one.ids) < len(sample.ids)
    assert shorter > 3


def test_rows_leave_the_batch_when_they_end(model):
    likely = torch.zeros(271)
    likely[tiny_tokenizer().eos_token_id] = 5.0
    rows = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda _, x, __: rows.append(tuple(x[0].shape))
    )
    try:
        samples = draw(model, adjustment=Adjustment(torch.tensor(1.0), likely), batch_size=100)
    finally:
        handle.remove()
    lengths = [len(sample.ids) for answers in samples for sample in answers]
    still = [(sum(length > step for length in lengths), 1) for step in range(1, max(lengths))]
    assert rows == [(5, 9), *still]  # each prompt is read once, then rows that go on


def test_mode_gradients_and_adapters_stay_as_they_are(tiny_folder):
    model = attach_lora(load_model(str(tiny_folder))[0], rank=2, alpha=8, dropout=0.5, base_name="tiny")
    for weight in adapter_parameters(model):
        torch.nn.init.constant_(weight, 0.2)
    adapted = draw(model.train())
    assert model.training and torch.is_grad_enabled()
    assert_same(draw(model.eval()), adapted)
    with model.disable_adapter():
        base = draw(model)
    assert base != adapted
    assert_same(base, draw(load_model(str(tiny_folder))[0]))


def test_the_bundled_model_draws_the_same_in_any_batch(bundled):
    model, tokenizer = bundled
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)[
            "input_ids"
        ]
        for text in ("Name a colour.", "Which is the largest planet of all?")
    ]
    options: dict[str, Any] = {"n": 6, "decoding": Decoding(max_tokens=8), "seed": 0}
    one = draw_samples(model, tokenizer, prompts, ["p", "q"], batch_size=12, **options)
    other = draw_samples(model, tokenizer, prompts, ["p", "q"], batch_size=4, **options)
    assert_same(one, other)
    assert len({sample.ids for sample in one[0]}) == 6


def test_two_processes_draw_what_one_draws(drawn, tiny_folder, tmp_path):
    config = ROOT / "recipes/accelerate/cpu.yaml"
    paths = [ROOT, *(ROOT / folder for folder in ("tests", "recipes/benchmarks"))]
    command = ["-m", "accelerate.commands.launch", "--config_file", str(config), __file__]
    process = subprocess.run(
        [sys.executable, *command, str(tiny_folder), str(tmp_path)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
        | {"ACCELERATE_USE_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    for number in (0, 1):
        found = pickle.loads((tmp_path / str(number)).read_bytes())
        assert found["passes"] > 0 and found["processes"] == 2
        assert_same(found["samples"], drawn)


def test_a_bar_only_with_a_description(model, capfd):
    draw(model, n=1)
    assert capfd.readouterr().err == ""
    draw(model, n=1, description="drawing")
    assert "drawing" in capfd.readouterr().err


def test_refuses_in_one_line(model, monkeypatch):
    with pytest.raises(CalibrantError, match="2 prompts have 1 ids"):
        draw(model, PROMPTS[:2], ["a", "a"])
    with pytest.raises(CalibrantError, match="2 prompts have 3 ids"):
        draw(model, PROMPTS[:2], IDS[:3])
    with pytest.raises(CalibrantError, match="do not fit"):
        draw(model, [[40] * 510], ["a"])
    monkeypatch.setattr("toolkit.confidence.samples.is_sharded", lambda _: True)
    with pytest.raises(CalibrantError, match="sharded"):
        draw(model, accelerator=SimpleNamespace(process_index=0, num_processes=1))


def test_the_benchmark_measures_both_ways_and_writes_both_files(tiny_folder, tmp_path, capsys):
    options = ["--samples", "3", "--tokens", "5", "--repeats", "3", "--output_dir", str(tmp_path)]
    sampling.main(["--model", str(tiny_folder), *options])
    result = json.loads((tmp_path / "sampling.json").read_text())
    separate, together = result["samples"]["separate"], result["samples"]["together"]
    each = [
        (s / t) / (seconds / tokens)
        for s, t, seconds, tokens in zip(
            separate["seconds"], separate["tokens"], together["seconds"], together["tokens"], strict=True
        )
    ]
    assert together["times_as_fast"] == pytest.approx(sorted(each)[1]) and separate["times_as_fast"] == 1
    assert all(3 <= tokens <= 15 for tokens in separate["tokens"] + together["tokens"])
    plain, stream = result["streaming"]["generate"], result["streaming"]["stream"]
    assert plain["tokens"] == stream["tokens"] <= 5 and plain["speed"] == plain["first_token_ratio"] == 1
    first = zip(stream["first_token_seconds"], plain["first_token_seconds"], strict=True)
    assert stream["first_token_ratio"] == pytest.approx(sorted(a / b for a, b in first)[1])
    assert capsys.readouterr().out == (tmp_path / "sampling.md").read_text()


def main() -> None:
    accelerator = Accelerator()
    model, _ = load_model(sys.argv[1], dtype="float32")
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    samples = draw(model, batch_size=8, accelerator=accelerator)
    found = {"samples": samples, "passes": len(passes), "processes": accelerator.num_processes}
    (Path(sys.argv[2]) / str(accelerator.process_index)).write_bytes(pickle.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main()
