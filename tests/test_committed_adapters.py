"""The adapters that come with the repository: whole, small, and as good as their reports say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from parsing import calibrate_settings

from toolkit.confidence.options import option_confidence
from toolkit.evaluation.metrics import metrics
from toolkit.models.adapters import base_only, load_adapter
from toolkit.models.adjustment import load_adjustment
from toolkit.models.bundled import HUB_ID
from toolkit.models.encoding import encode_questions
from toolkit.publishing.checks import file_sha256
from toolkit.questions.question import MultipleChoice
from toolkit.questions.sources import load_questions

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in (ROOT / "adapters").glob("*/adapter_config.json"))
WITH_PREDICTIONS = [folder for folder in FOLDERS if (folder / "predictions.parquet").exists()]
"""Those on questions whose texts may be handed on here."""
MEGABYTE = 1_000_000


def test_there_is_an_adapter():
    assert WITH_PREDICTIONS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_small_names_its_base_and_has_settings_that_resolve(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12 * MEGABYTE
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == HUB_ID
    settings = calibrate_settings(folder / "config.yaml", {})
    report = json.loads((folder / "report.json").read_text())
    assert (report["method"], report["adapter"]) == (settings.method, folder.name)
    assert f"# {folder.name}" in (folder / "README.md").read_text()
    assert report["adapter_sha256"] == file_sha256(folder / "adapter_model.safetensors")
    for result in report["results"]:
        if not result["data"]["name"].startswith("worldfacts/"):
            continue  # from a file that the repository has not
        data = load_questions(result["data"]["name"], "test")
        limit = settings.data.test_limit
        sample = data if limit is None else data.sample(limit, settings.data.seed)
        assert sample.sha256 == result["data"]["sha256"]


@pytest.mark.parametrize("folder", WITH_PREDICTIONS, ids=lambda folder: folder.name)
def test_its_report_follows_from_its_predictions(folder):
    report = json.loads((folder / "report.json").read_text())
    rows = pd.read_parquet(folder / "predictions.parquet")
    for result in report["results"]:
        mine = rows[(rows["source"] == result["data"]["name"]) & (rows["split"] == "test")]
        assert len(mine) == result["data"]["count"]
        log_probs = np.log(np.stack(list(mine["probabilities"])))
        values = metrics(log_probs, mine["answer"].to_numpy(), result["binning"]["bins"])
        for name, value in values.items():
            assert result[name]["value"] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("name", ["comparison", "training_step", "multiple_choice"])
def test_the_readme_shows_the_committed_tables(name):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = sorted((ROOT / "recipes" / "results").glob(f"*/{name}.md"))
    assert tables
    for table in tables:
        assert table.read_text(encoding="utf-8").strip() in readme, table.parent.name


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT
@pytest.mark.parametrize("folder", WITH_PREDICTIONS, ids=lambda folder: folder.name)
def test_the_bundled_model_with_it_answers_as_in_its_predictions(folder, bundled):
    base, tokenizer = bundled
    prompt = calibrate_settings(folder / "config.yaml", {}).prompt
    rows = pd.read_parquet(folder / "predictions.parquet")
    rows = rows[(rows["source"] == "worldfacts/chemistry") & (rows["split"] == "test")].head(24)
    known = {question.id: question for question in load_questions("worldfacts/chemistry", "test")}
    questions = [known[name] for name in rows["id"]]
    assert all(isinstance(question, MultipleChoice) for question in questions)
    encoded = encode_questions(questions, tokenizer, form=prompt.form, style=prompt.style, max_length=2048)
    model = load_adapter(base, folder)
    keys: dict[str, Any] = {"score": prompt.score, "batch_size": 8}
    try:
        found = option_confidence(model, encoded, adjustment=load_adjustment(folder), **keys)
        with base_only(model):
            before = option_confidence(model, encoded, **keys)
    finally:
        model.unload()  # the base is shared by all tests
    expected = np.stack(list(rows["probabilities"]))
    assert np.abs(np.exp(found.log_probs) - expected).max() < 1e-3
    assert np.abs(np.exp(before.log_probs) - expected).max() > 0.1
