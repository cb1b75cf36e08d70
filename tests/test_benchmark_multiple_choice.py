import json
import sys
from functools import partial
from statistics import median

import multiple_choice
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.confidence.options import OptionConfidence
from toolkit.models.base import load_model
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.predictive import collate
from toolkit.questions.question import MultipleChoice
from toolkit.questions.sources import load_questions

pytest.importorskip("lm_eval")

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
QUESTION = MultipleChoice("sky", "Which colour?", ("blue", "red|ish"), 0)


@pytest.fixture(scope="module")
def tiny(tiny_folder) -> Loaded:
    """The tiny model and its tokenizer."""
    return load_model(str(tiny_folder), dtype="float32")


def sample(count: int, seed: int = 0) -> list[MultipleChoice]:
    """Questions as the benchmark draws them."""
    data = load_questions("worldfacts", "test").sample(count, seed)
    return [question for question in data if isinstance(question, MultipleChoice)]


def fault(capsys, arguments: list[str]) -> str:
    """The one line on stderr with which the benchmark refuses to run."""
    with pytest.raises(SystemExit) as caught:
        multiple_choice.main(arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err


def test_measures_both_sides_on_the_same_questions(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(multiple_choice, "benchmark", partial(multiple_choice.benchmark, sizes=(2, 8)))
    folder = tmp_path / "out"
    arguments = ["--model", str(tiny_folder), "--questions", "6", "--repeats", "3", "--seed", "7"]
    multiple_choice.main([*arguments, "--output_dir", str(folder)])
    result = json.loads((folder / "multiple_choice.json").read_text())
    data = load_questions("worldfacts", "test").sample(6, 7)
    assert result["data"] == {"name": "worldfacts", "split": "test", "count": 6, "sha256": data.sha256}
    assert (result["seed"], result["threads"]) == (7, torch.get_num_threads())
    assert result["model"]["dtype"] == "float32" and "lm_eval" in result["versions"]
    for form in ("cloze", "letter"):
        found = result["forms"][form]
        ours, theirs = found["sides"]["ours"], found["sides"]["lm_eval"]
        pairs = [b / a for a, b in zip(ours["seconds"], theirs["seconds"], strict=True)]
        assert len(pairs) == 3 and found["ratio"] == pytest.approx(median(pairs))
        assert ours["median_seconds"] == median(ours["seconds"])
        assert ours["questions_per_second"] == pytest.approx(6 / ours["median_seconds"])
        assert ours["batch_size"] in (2, 8)
        assert found["layout"] == "tree" and found["agree"] and found["differing"] == []
        assert found["same_choice"] == 6 and found["largest_difference"] < 1e-3
    printed = capsys.readouterr()
    assert printed.out == (folder / "multiple_choice.md").read_text()
    rows = [line.split("|")[1].strip() for line in printed.out.splitlines() if line.startswith("|")]
    assert rows == [
        "", "---", "cloze, Calibrant", "cloze, lm-eval", "letter, Calibrant", "letter, lm-eval",
    ]  # fmt: skip
    assert data.sha256[:12] in printed.out and "the same option of 6 of 6 questions" in printed.out
    assert str(tmp_path) not in (folder / "multiple_choice.json").read_text()
    assert "timing both, letter" in printed.err
    assert "lm_eval" not in printed.err and "loglikelihood" not in printed.err


@pytest.mark.parametrize("form", multiple_choice.FORMS)
def test_counts_the_tokens_that_each_side_gives_the_model(form, tiny):
    model, tokenizer = tiny
    case = multiple_choice.Case(model, tokenizer, form)
    questions = sample(4)
    encoded = encode_questions(questions, tokenizer, form=form, style="plain", max_length=512)
    tokens = [multiple_choice.count_tokens(model, side(questions, 1)) for side in (case.ours, case.lm_eval)]
    trees = [collate([question], layout="tree").input_ids.numel() for question in encoded]
    rows = {(*question.prompt, *option[:-1]) for question in encoded for option in question.options}
    assert tokens == [sum(trees), sum(map(len, rows))]


def test_lists_each_question_that_differs(tiny, monkeypatch):
    def backwards(*arguments, **keywords) -> OptionConfidence:
        found = score(*arguments, **keywords)
        return OptionConfidence(found.log_probs[:, ::-1], found.answers, found.mass)

    score = multiple_choice.option_confidence
    monkeypatch.setattr(multiple_choice, "option_confidence", backwards)
    model, tokenizer = tiny
    identity = {"name": "x", "dtype": "y"}
    result = multiple_choice.benchmark(model, tokenizer, identity, count=3, repeats=1, seed=0, sizes=[4])
    questions = sample(3)
    printed = multiple_choice.table(result)
    for found in result["forms"].values():
        assert not found["agree"] and found["same_choice"] == 0
        assert [one["id"] for one in found["differing"]] == [question.id for question in questions]
        for one, question in zip(found["differing"], questions, strict=True):
            ours, theirs = one["log_likelihoods"]
            assert ours == pytest.approx(theirs, abs=1e-3)  # the scores behind the reversed ones
            best = int(np.argmax(theirs))
            assert one["chosen"] == [question.choices[3 - best], question.choices[best]]
            assert one["reason"] == "more than rounding" and one["id"] in printed
    assert printed.count("DO NOT AGREE") == 2 and "| more than rounding |" in printed


def compared(tiny, monkeypatch, ours: list[float], theirs: list[float]) -> dict:
    """Compares made-up log-likelihoods of one question."""
    model, tokenizer = tiny
    case = multiple_choice.Case(model, tokenizer, "cloze")
    monkeypatch.setattr(case, "log_likelihoods", lambda *_: np.array([ours]))
    log_probs = np.array([ours]) - np.logaddexp(ours[0], ours[1])
    confidence = OptionConfidence(log_probs, np.zeros(1, int), np.ones(1))
    answers = [(value, False) for value in theirs]
    return multiple_choice.agreement(case, confidence, answers, [QUESTION], 1)


def test_tells_a_tie_from_a_difference(tiny, monkeypatch):
    tie = compared(tiny, monkeypatch, [-1.0, -1.00001], [-1.00001, -1.0])
    assert tie["differing"][0]["reason"] == "a tie within rounding"
    assert tie["same_choice"] == 0 and tie["largest_difference"] == pytest.approx(1e-5)
    assert not tie["agree"]  # one question of one is more than .2 %
    apart = compared(tiny, monkeypatch, [-1.0, -2.0], [-1.0, -2.002])
    assert apart["differing"][0]["reason"] == "more than rounding"
    assert apart["same_choice"] == 1 and not apart["agree"]
    assert apart["differing"][0]["log_likelihoods"] == [[-1.0, -2.0], [-1.0, -2.002]]
    rounding = compared(tiny, monkeypatch, [-1.0, -2.0], [-1.0, -2.0005])
    assert rounding["agree"] and rounding["differing"] == []
    said = multiple_choice.said("cloze", apart, 1)
    assert "| sky | blue | blue | [-1.0, -2.0] | [-1.0, -2.002] | more than rounding |" in said


def test_knows_a_token_across_the_end_of_the_prompt(tiny, monkeypatch):
    model, tokenizer = tiny
    case = multiple_choice.Case(model, tokenizer, "cloze")
    assert case.reason(QUESTION, 1.0, 1e-3) == "more than rounding"
    short = EncodedQuestion("sky", [1, 2], [[3], [4]], 0, [1, 1])
    monkeypatch.setattr(case, "encode", lambda _: ([short], "tree"))
    assert "spans the end of the prompt" in case.reason(QUESTION, 1.0, 1e-3)


def test_chooses_the_fastest_batch_size(monkeypatch):
    ran: list[int] = []
    times = {"1": [3.0, 3.0], "2": [9.0, 1.0], "4": [2.0, 2.0]}
    monkeypatch.setattr(multiple_choice, "in_turn", lambda tasks, *_: {name: times[name] for name in tasks})
    assert multiple_choice.fastest(lambda size: partial(ran.append, size), (1, 2, 4), "") == 2
    assert ran == [4]  # to warm up


def test_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    assert "pip install 'calibrant[benchmarks]'" in fault(capsys, [])


def test_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "multiple_choice.md").write_text("mine")
    assert "already holds a benchmark" in fault(capsys, ["--output_dir", str(tmp_path)])
    assert (tmp_path / "multiple_choice.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--question", "4"], "--question"),
        (["--nothing", "4"], "unrecognized arguments: --nothing 4"),
        (["--questions", "0"], "--questions"),
        (["--repeats", "few"], "--repeats"),
        (["--model", "./nowhere"], "no folder ./nowhere"),
    ],
)
def test_refuses_in_one_line(arguments, said, capsys):
    assert said in fault(capsys, arguments)
