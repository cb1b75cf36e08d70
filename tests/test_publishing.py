"""What an adapter folder must be before it is published; each fault is one line."""

import json
import os
import shutil

import pytest
import torch
from finished_adapters import BASE, SCALAR, finish
from safetensors.torch import load_file, save_file

from toolkit.errors import CalibrantError
from toolkit.publishing.checks import ALLOWED, NEEDED, check_folder
from toolkit.publishing.markdown import code, one_line, plain


@pytest.fixture(scope="module")
def original(tmp_path_factory, tiny_folder):
    return finish(tmp_path_factory.mktemp("adapters") / "mine", tiny_folder, SCALAR)


@pytest.fixture
def folder(original, tmp_path):
    """A copy that a test may spoil."""
    shutil.copytree(original, tmp_path / "mine")
    return tmp_path / "mine"


def fault(folder) -> str:
    with pytest.raises(CalibrantError) as caught:
        check_folder(folder)
    assert "\n" not in str(caught.value) and "; " in str(caught.value)
    return str(caught.value)


def edit(folder, name, **changes):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file({key: change(key, value) for key, value in load_file(path).items()}, path)


def test_a_finished_folder_passes(folder):
    (folder / "README.md").write_text("an older card")
    subject, warnings = check_folder(folder, "me/mine")
    assert (subject.name, subject.base, subject.rank, subject.adjusted) == ("me/mine", BASE, 4, True)
    assert subject.alpha is not None and subject.alpha.delta == SCALAR.delta
    # the tiny model is a folder of this machine, and config.yaml names it
    assert len(warnings) == 1 and "paths of this machine" in warnings[0]
    assert check_folder(folder)[0].name == "mine"


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert f"lacks {name};" in fault(folder)


@pytest.mark.parametrize(
    "name", [".env", ".lock", "adapter_model.bin", "optimizer.pt", "training.log", "notes.md", "a.partial"]
)
def test_a_file_that_is_no_part_of_an_adapter_is_refused(folder, name):
    (folder / name).write_text("secret")
    assert name in fault(folder) and name not in ALLOWED


def test_folders_and_links_are_refused(folder, tmp_path):
    (folder / "checkpoints").mkdir()
    assert "(checkpoints)" in fault(folder)
    (folder / "checkpoints").rmdir()
    (tmp_path / "outside").write_text("secret")
    os.symlink(tmp_path / "outside", folder / "vocab.json")
    assert "holds links (vocab.json)" in fault(folder)
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").mkdir()  # a name that is allowed, of a file
    assert "(merges.txt)" in fault(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, value):
    def spoil(key, tensor):
        if "layers.1.mlp.up_proj.lora_A" in key:
            tensor[0, 0] = value
        return tensor

    weights(folder, spoil)
    assert "lora_A" in (said := fault(folder)) and "not finite" in said


def test_an_adapter_that_does_nothing_is_refused(folder):
    weights(folder, lambda key, tensor: torch.zeros_like(tensor) if "lora_B" in key else tensor)
    assert "every B" in fault(folder)


def test_one_layer_that_moved_is_enough(folder):
    weights(
        folder,
        lambda key, tensor: tensor if "layers.0.mlp.up_proj" in key else torch.zeros_like(tensor),
    )
    assert "about other weights" in fault(folder)  # which comes after the check of B


def test_an_alpha_that_is_not_finite_is_refused(folder):
    save_file(
        {"delta": torch.tensor(float("nan")), "iota": torch.tensor(0.0)}, folder / "calibration.safetensors"
    )
    assert "delta" in fault(folder)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "calibration.safetensors"])
def test_damaged_tensors_are_one_line(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-3])
    assert f"{name} cannot be read" in fault(folder)


def test_a_report_about_other_weights_is_refused(folder):
    weights(folder, lambda _, tensor: tensor * 1.01)
    assert "about other weights" in fault(folder)


def test_a_report_that_names_no_weights_is_warned_of(folder):
    path = folder / "report.json"
    about = json.loads(path.read_text())
    del about["adapter_sha256"]
    path.write_text(json.dumps(about))
    _, warnings = check_folder(folder)
    assert "does not say which weights" in warnings[0]


def test_a_report_of_another_kind_is_refused(folder):
    edit(folder, "report.json", schema="calibrant.report/9")
    assert "calibrant.report/9" in fault(folder)
    (folder / "report.json").write_text("{")
    assert "not JSON" in fault(folder)


@pytest.mark.parametrize("base", ["/models/llama", "./llama", "~/llama", "llama", "a/b/c", None])
def test_a_base_that_is_no_hub_id_is_refused(folder, base):
    edit(folder, "adapter_config.json", base_model_name_or_path=base)
    edit(folder, "report.json", model="llama", base={"name": "llama", "revision": None})
    assert "base" in (said := fault(folder)) and ("local folder" in said or base is None)


def test_a_base_whose_id_is_a_folder_here_is_refused(folder, monkeypatch, tmp_path):
    (tmp_path / BASE).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "local folder" in fault(folder)


def test_a_base_by_an_old_id_passes_where_its_commit_is_known(folder):
    edit(folder, "adapter_config.json", base_model_name_or_path="gpt2")
    edit(folder, "report.json", model="gpt2")
    assert check_folder(folder)[0].base == "gpt2"


def test_a_base_without_commit_is_warned_of(folder):
    edit(folder, "report.json", model="tiny", base={"name": "tiny", "revision": None, "dtype": "float32"})
    subject, warnings = check_folder(folder)
    assert subject.base == BASE and any("commit is not known" in warning for warning in warnings)


def test_another_base_than_the_reports_is_refused(folder):
    edit(folder, "adapter_config.json", base_model_name_or_path="me/other")
    assert "names me/other" in fault(folder)


def test_a_template_that_was_trained_with_must_be_there(folder):
    (folder / "chat_template.jinja").unlink()
    _, warnings = check_folder(folder)
    assert any("no chat template" in warning for warning in warnings)
    edit(folder, "report.json", prompt={"form": "cloze", "style": "chat", "score": "token"})
    assert "chat_template.jinja" in fault(folder)
    edit(folder, "tokenizer_config.json", chat_template="{{ messages }}")
    check_folder(folder)


def test_paths_of_this_machine_are_warned_of(folder):
    (folder / "config.yaml").write_text('data: {train: ["hub/mmlu", "/srv/secret/questions.jsonl"]}')
    _, warnings = check_folder(folder)
    assert [warning.partition(": ")[2] for warning in warnings] == ["/srv/secret/questions.jsonl"]


def test_text_is_escaped_but_plain_names_are_not():
    assert plain("smollm2-135m.v1") == "smollm2-135m.v1"
    assert plain("<b> [x](y) *a* _c_") == r"\<b\> \[x\](y) \*a\* \_c\_"
    assert code("a`b|c\n\x00d") == "`ab/c d`" and code("`") == "`?`"
    assert one_line(" a\u202e\n\tb ") == "a b"
