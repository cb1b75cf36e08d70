"""`recipes/publish.py` as a user runs it."""

import json

import pytest
import torch
from finished_adapters import SCALAR, finish, vector
from parsing import PublishSettings, parse_publish
from peft import PeftModel
from publish import merge
from transformers import AutoModelForCausalLM

from toolkit.errors import CalibrantError


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_folder):
    return finish(tmp_path_factory.mktemp("adapters") / "mine", tiny_folder, SCALAR)


def test_the_command_line():
    assert parse_publish(["a"]) == PublishSettings("a")
    assert parse_publish(["a", "me/b", "--dry_run", "--private"]) == PublishSettings("a", "me/b", True, True)
    found = parse_publish(["a", "--merged", "c", "--model", "bundled", "--dtype", "bfloat16"])
    assert found == PublishSettings("a", merged="c", model="bundled", dtype="bfloat16")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT
def test_merged_writes_one_model(folder, tiny_folder, tmp_path):
    merged = tmp_path / "merged"
    said = merge(PublishSettings(str(folder), merged=str(merged)))
    assert "α built in (learnt on options: draw text at temperature 0.600" in said and str(merged) in said
    tokens = torch.randint(271, (3, 17), generator=torch.Generator().manual_seed(0))
    adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_folder), str(folder)).eval()
    with torch.no_grad():
        wanted = (0.6 * adapter(tokens).logits).log_softmax(-1)
        found = AutoModelForCausalLM.from_pretrained(merged)(tokens).logits.log_softmax(-1)
    assert (found - wanted).abs().max() < 1e-4
    with pytest.raises(CalibrantError, match="there already"):
        merge(PublishSettings(str(folder), merged=str(merged)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_alpha_without_a_place_leaves_no_folder(tiny_folder, tmp_path):
    folder = finish(tmp_path / "mine", tiny_folder, vector(271))
    with pytest.raises(CalibrantError, match="no bias"):
        merge(PublishSettings(str(folder), merged=str(tmp_path / "merged")))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_of_a_4_bit_base_is_merged_with_a_warning(tiny_folder, tmp_path, capsys):
    folder = finish(tmp_path / "mine", tiny_folder)
    settings = {"model": {"name": "elsewhere", "quantization": "nf4"}}
    (folder / "config.yaml").write_text(json.dumps(settings))
    merge(PublishSettings(str(folder), merged=str(tmp_path / "merged"), model=str(tiny_folder)))
    assert "trained over a 4-bit base" in capsys.readouterr().err


def test_merging_pushes_nothing_and_needs_a_base(folder, tmp_path):
    merged = str(tmp_path / "merged")
    for keys in ({"repo": "me/mine"}, {"private": True}, {"dry_run": True}):
        with pytest.raises(CalibrantError, match="pushes nothing"):
            merge(PublishSettings(str(folder), merged=merged, **keys))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (bare / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CalibrantError, match="give it as --model"):
        merge(PublishSettings(str(bare), merged=merged))
