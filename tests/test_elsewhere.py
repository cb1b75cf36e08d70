"""An adapter where there is no code of ours: downloaded from a Hub by PEFT, in lm-eval, and merged."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from finished_adapters import SCALAR, finish
from hub_server import TOKEN, hub_server
from parsing import calibrate_settings
from peft import PeftModel
from recipe_runs import ROOT, contents
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError
from toolkit.models.adapters import load_adapter
from toolkit.models.adjustment import load_adjustment
from toolkit.models.base import load_model
from toolkit.models.bundled import bundled_model
from toolkit.models.encoding import encode_question, encode_questions
from toolkit.models.merging import save_merged
from toolkit.publishing.usage import EXAMPLE
from toolkit.questions.prompts import answer_texts, plain_prompt
from toolkit.questions.question import MultipleChoice
from toolkit.questions.sources import load_questions

FOLDERS = sorted(path.parent for path in (ROOT / "adapters").glob("*/adapter_config.json"))
COUNT = 40

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_pushed_and_downloaded_it_is_the_same_to_the_bit(tiny_folder, tmp_path):
    with hub_server() as hub:
        base = hub.add("me/tiny", contents(tiny_folder), private=True)
        folder = finish(tmp_path / "mine", tiny_folder, SCALAR, revision=base.head[0])
        online = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        online |= {"HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "cache")}
        done = run("recipes/publish.py", folder, "me/mine", **online)
        repository = hub.repositories["me/mine"]
        assert done.stdout.strip() == f"{hub.address}/me/mine/commit/{repository.head[0]}"
        assert TOKEN not in done.stdout + done.stderr
        assert repository.contents().items() >= contents(folder).items()
        script = tmp_path / "snippet.py"
        snippet = repository.contents()["README.md"].decode().split("```python\n")[1].split("\n```")[0]
        script.write_text(
            f"{snippet}\nfrom peft import get_peft_model_state_dict\n"
            "from safetensors.torch import save_file\n"
            "save_file(get_peft_model_state_dict(model), 'weights.safetensors')\n"
            "with torch.no_grad():\n"
            "    save_file({'logits': model(torch.arange(20)[None]).logits}, 'logits.safetensors')\n"
        )
        printed = subprocess.run(
            [sys.executable, script],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | online,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert printed.returncode == 0, printed.stderr
    there, here = (load_file(path / name) for path, name in (
        (tmp_path, "weights.safetensors"), (folder, "adapter_model.safetensors")
    ))  # fmt: skip
    assert there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here)
    plain = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        logits = PeftModel.from_pretrained(plain, str(folder)).eval()(torch.arange(20)[None]).logits
    assert torch.equal(load_file(tmp_path / "logits.safetensors")["logits"], logits)
    model, tokenizer = load_model(str(tiny_folder), dtype="float32")
    encoded = encode_question(EXAMPLE, tokenizer, form="cloze", style="plain", max_length=512)
    found = [float(line.rpartition(": ")[2]) for line in printed.stdout.splitlines()]
    ours = option_confidence(load_adapter(model, folder), [encoded], adjustment=SCALAR, score="token")
    assert found == pytest.approx(np.exp(ours.log_probs[0]).tolist(), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_lm_eval_gives_our_accuracy(folder, tmp_path):
    pytest.importorskip("lm_eval")
    data = load_questions("worldfacts/chemistry", "test").sample(COUNT, 0)
    questions = [question for question in data if isinstance(question, MultipleChoice)]
    form = calibrate_settings(folder / "config.yaml", {}).prompt.form
    rows = [
        {"prompt": plain_prompt(one, form), "choices": answer_texts(one, form), "answer": one.answer}
        for one in questions
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "worldfacts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "questions.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "prompt",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "worldfacts.yaml").write_text(yaml.safe_dump(task))
    base = bundled_model()
    run(
        "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={base},peft={folder},dtype=float32",
        "--tasks", "worldfacts", "--include_path", tmp_path, "--device", "cpu", "--batch_size", "16",
        "--output_path", tmp_path / "out", "--log_samples",
        HF_DATASETS_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    [results] = (tmp_path / "out").rglob("results_*.json")
    theirs = json.loads(results.read_text())["results"]["worldfacts"]["acc,none"]
    model, tokenizer = load_model("bundled", dtype="float32")
    encoded = encode_questions(questions, tokenizer, form=form, style="plain", max_length=2048)
    ours = option_confidence(load_adapter(model, folder), encoded, score="sum")  # as lm-eval scores
    [samples] = (tmp_path / "out").rglob("samples_*.jsonl")
    answers = [json.loads(line) for line in samples.read_text().splitlines()]
    scores = [[float(one[0]) for one in each["filtered_resps"]] for each in answers]
    order = [each["doc_id"] for each in answers]
    log_probs = ours.log_probs[order]
    chosen = log_probs.argmax(1)
    assert np.mean(chosen == ours.answers[order]) == pytest.approx(theirs, abs=1e-9)
    wanted = torch.tensor(scores).log_softmax(1).numpy()
    assert np.abs(log_probs - wanted).max() < 1e-3
    with_base = option_confidence(load_model("bundled", dtype="float32")[0], encoded, score="sum")
    assert np.abs(with_base.log_probs - ours.log_probs).max() > 0.1  # the adapter has a say


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_merged_into_the_bundled_model_it_answers_as_before(folder, tmp_path):
    model, tokenizer = load_model("bundled", dtype="float32")
    prompt = calibrate_settings(folder / "config.yaml", {}).prompt
    questions = load_questions("worldfacts/chemistry", "test").questions[:24]
    keys: dict[str, Any] = {"form": prompt.form, "style": prompt.style, "max_length": 2048}
    adjustment = load_adjustment(folder)
    adapted = load_adapter(model, folder)
    if adjustment is not None and adjustment.delta.numel() > 1:  # the model's embeddings are tied
        with pytest.raises(CalibrantError, match="cannot be built into"):
            save_merged(adapted, tokenizer, tmp_path / "merged", adjustment)
        return
    encoded = encode_questions(questions, tokenizer, **keys)
    before = option_confidence(adapted, encoded, adjustment=adjustment, score=prompt.score, batch_size=8)
    error = save_merged(adapted, tokenizer, tmp_path / "merged", adjustment)
    assert error < 1e-3
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    encoded = encode_questions(questions, AutoTokenizer.from_pretrained(tmp_path / "merged"), **keys)
    after = option_confidence(merged, encoded, score=prompt.score, batch_size=8)
    assert np.abs(np.exp(after.log_probs) - np.exp(before.log_probs)).max() < 1e-3
