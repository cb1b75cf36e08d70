"""Answers drawn through vLLM's interface, with a stand-in for vLLM: it takes what vLLM takes, on the CPU."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from app_models import adapter_folders
from conftest import tiny_tokenizer
from peft import PeftModel
from recipe_runs import launch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from toolkit.confidence.samples import draw_samples
from toolkit.confidence.vllm_samples import load_vllm, vllm_rank
from toolkit.errors import CalibrantError
from toolkit.evaluation.grading import GRADERS
from toolkit.evaluation.open_ended import Asking, Model, answer_open
from toolkit.models.adapters import load_adapter
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import load_model
from toolkit.models.generation import Decoding, end_ids
from toolkit.questions.question import OpenEnded, QuestionSet

PROMPTS, IDS = [[40, 41, 42], [50], [60, 61, 62, 63]], ["a", "b", "c"]


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    seed: int | None = None
    logprobs: int | None = None


class LLM:
    def __init__(self, model: str, **keys: Any) -> None:
        known = {"revision", "dtype", "max_model_len", "trust_remote_code", "gpu_memory_utilization"}
        assert set(keys) <= {*known, "enable_lora", "max_lora_rank"}
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.keys, self.adapter = keys, ""

    def generate(self, prompts, sampling_params, *, lora_request=None, use_tqdm=True):
        if lora_request and self.adapter != lora_request.lora_path:
            assert self.keys["enable_lora"]
            self.adapter = lora_request.lora_path
            self.model = PeftModel.from_pretrained(self.model, self.adapter).eval()
        return [
            SimpleNamespace(outputs=[self.one(prompt["prompt_token_ids"], asked)])
            for prompt, asked in zip(prompts, sampling_params, strict=True)
        ]

    @torch.no_grad()
    def one(self, ids: list[int], asked: SamplingParams):
        assert asked.seed is not None
        random, tokenizer = torch.Generator().manual_seed(asked.seed), tiny_tokenizer()
        said: list[int] = []
        total, text, reason = 0.0, "", "length"
        while len(said) < asked.max_tokens and reason == "length":
            logits = self.model(torch.tensor([[*ids, *said]])).logits[0, -1].float()
            if asked.temperature:
                token = int((logits / asked.temperature).softmax(-1).multinomial(1, generator=random))
            else:
                token = int(logits.argmax())
            said.append(token)
            total += float(logits.log_softmax(-1)[token])
            text = str(tokenizer.decode(said, skip_special_tokens=True))
            if token in asked.stop_token_ids or any(one in text for one in asked.stop):
                reason = "stop"
        for one in asked.stop:
            text = text.split(one)[0]
        return SimpleNamespace(text=text, token_ids=said, cumulative_logprob=total, finish_reason=reason)


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    whole, part = ModuleType("vllm"), ModuleType("vllm.lora.request")
    whole.LLM, whole.SamplingParams, part.LoRARequest = LLM, SamplingParams, LoRARequest  # type: ignore[attr-defined]
    for name, module in {
        "vllm": whole,
        "vllm.lora": ModuleType("vllm.lora"),
        "vllm.lora.request": part,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(scope="module")
def model(tiny_folder):
    return load_model(str(tiny_folder), dtype="float32")[0]


def load(model, folder, **keys):
    return load_vllm(str(folder), ends=end_ids(model, tiny_tokenizer()), max_length=64, **keys)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT
def test_a_greedy_answer_is_the_model_s_own(model, tiny_folder, tmp_path):
    decoding = Decoding(temperature=0.0, max_tokens=8, stop=("e",))
    (folder,) = adapter_folders(tmp_path, tiny_folder)[:1]
    adapted = load_adapter(load_model(str(tiny_folder), dtype="float32")[0], folder)
    seen = []
    for asked, keys in ((model, {}), (adapted, {"adapter": folder})):
        own = draw_samples(asked, tiny_tokenizer(), PROMPTS, IDS, n=2, decoding=decoding, seed=0)
        drawn = load(model, tiny_folder, **keys)(PROMPTS, IDS, n=2, decoding=decoding, seed=0)
        for (one, _), (other, again) in zip(own, drawn, strict=True):
            assert other == again and (other.ids, other.ended) == (one.ids, one.ended)
            assert other.text.rstrip("\ufffd") == one.text
            assert other.log_prob == pytest.approx(one.log_prob, abs=1e-4)
        seen.append([one.ids for one, _ in drawn])
    assert seen[0] != seen[1]


def test_answers_are_drawn_at_delta(model, tiny_folder):
    adjustment = Adjustment(torch.tensor(0.4), torch.tensor(0.0))
    sampler = load(model, tiny_folder, adjustment=adjustment)
    draw = {"n": 2000, "decoding": Decoding(max_tokens=1)}
    (drawn,) = sampler(PROMPTS[:1], IDS[:1], seed=0, **draw)
    logits = model(torch.tensor(PROMPTS[:1])).logits[0, -1].detach()
    expected = (0.4 * logits).double().softmax(-1).numpy() * 2000
    counts = np.bincount([one.ids[0] for one in drawn], minlength=len(expected))
    common = expected > 5
    seen, wanted = ([*one[common], one[~common].sum()] for one in (counts, expected))
    assert chisquare(seen, wanted).pvalue > 1e-3
    again, other = (sampler(PROMPTS[:1], IDS[:1], seed=seed, **draw)[0] for seed in (0, 1))
    assert again == drawn and other != drawn
    assert sampler(PROMPTS[::-1], IDS[::-1], n=3, decoding=draw["decoding"], seed=0)[2] == drawn[:3]


def test_an_evaluation_takes_its_samples_from_it(model, tiny_folder):
    data = QuestionSet("set", "test", tuple(OpenEnded(name, f"Is it {name}?", ("the",)) for name in IDS))
    asked = Model(model, tiny_tokenizer(), "plain", 256)
    asking = Asking(GRADERS["any"], max_tokens=4, samples=5, sampler=load(model, tiny_folder), p_true=False)
    mine, own = (
        answer_open(asked, data, asking),
        answer_open(asked, data, Asking(**{**vars(asking), "sampler": None})),
    )
    assert mine.answers == own.answers and mine.samples != own.samples
    assert [len(one) for one in mine.samples] == [5] * 3 and {"sem1", "sem2"} <= set(mine.confidence)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [({"adjustment": Adjustment(torch.ones(3), torch.zeros(()))}, "no place for one Δ per token"),
     ({"adjustment": Adjustment(torch.ones(()), torch.ones(()))}, "nor for ι")],
)  # fmt: skip
def test_what_vllm_has_no_place_for_is_refused(model, tiny_folder, keys, fault):
    with pytest.raises(CalibrantError, match=fault):
        load(model, tiny_folder, **keys)


def test_the_bundled_model_and_a_missing_vllm_are_said(model, tiny_folder, tmp_path):
    with pytest.raises(CalibrantError, match="cannot load the bundled model"):
        load(model, "bundled")
    done = launch(
        "evaluate.py", "--model", tiny_folder, "--data", "worldfacts/chemistry/open", "--limit", 2,
        "--sampler", "vllm", "--output_dir", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1 and "pip install 'calibrant[vllm]'" in done.stderr.splitlines()[-1]


def test_ranks():
    assert [vllm_rank(rank) for rank in (4, 8, 9, 64, 400)] == [8, 8, 16, 64, 512]
