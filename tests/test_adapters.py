import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import tiny_tokenizer
from peft import IA3Config, PeftModel, get_peft_model
from random_models import GROUPED, MODELS, ragged
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from toolkit.errors import CalibrantError
from toolkit.models import adapters
from toolkit.models.adapters import (
    THETA,
    activate,
    adapter_parameters,
    add_copy,
    attach_lora,
    base_only,
    load_adapter,
    save_adapter,
)
from toolkit.models.adjustment import Adjustment, adjust, load_adjustment, save_adjustment
from toolkit.models.predictive import collate, predictive

TEXT = torch.tensor([[5, 6, 7, 8]])


def base(name="llama", **keys):
    """A base of 2 layers, or as `keys` say, with the same random weights each time."""
    architecture, config, usual = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return architecture(config(**usual | keys, initializer_range=0.3)).eval()


def attach(model, seed=0) -> PeftModel:
    return attach_lora(model, rank=4, alpha=8, base_name="some/base", seed=seed).eval()


def train(model: PeftModel, name=THETA) -> None:
    """Gives an adapter weights that change what the model says."""
    generator = torch.Generator().manual_seed(len(name))
    for weight in adapter_parameters(model, name):
        torch.nn.init.normal_(weight, std=0.2, generator=generator)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(input_ids=TEXT).logits


@pytest.fixture(scope="module")
def trained() -> PeftModel:
    model = attach(base())
    train(model)
    return model


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """A saved adapter that a test may spoil."""
    save_adapter(trained, tiny_tokenizer(), tmp_path / "adapter")
    return tmp_path / "adapter"


def refusal(adapter, model=None) -> str:
    """The message with which an adapter is refused: one line."""
    with pytest.raises(CalibrantError) as caught:
        load_adapter(model or base(), adapter)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_attached_adapter_changes_nothing_yet_and_alone_takes_gradients():
    model = base()
    before = logits(model)
    peft_model = attach(model)
    assert torch.equal(logits(peft_model), before)
    taking = {name for name, weight in peft_model.named_parameters() if weight.requires_grad}
    assert taking == {name for name, _ in peft_model.named_parameters() if ".lora_" in name}
    assert len(taking) == len(adapter_parameters(peft_model)) == 28  # A and B of 7 layers in 2 blocks


def test_the_seed_decides_the_first_weights_and_nothing_else():
    state = torch.random.get_rng_state()
    one, same, other = (adapter_parameters(attach(base(), seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_layers_and_targets():
    model = attach_lora(base(), rank=2, alpha=2, targets=["q_proj"], layers=[1], base_name="base")
    names = [name for name, _ in model.named_parameters() if ".lora_" in name]
    assert len(names) == 2 and all("layers.1.self_attn.q_proj" in name for name in names)


def test_all_linear_layers_of_some_layers():
    model = attach_lora(base(), rank=2, alpha=4, layers=[1], base_name="b")
    everywhere = attach_lora(base(), rank=2, alpha=4, base_name="b")
    names = {name for name, _ in everywhere.named_parameters() if ".lora_" in name and ".layers.1." in name}
    assert {name for name, _ in model.named_parameters() if ".lora_" in name} == names
    for layers in ([], [2], [-1], range(0, 99)):
        with pytest.raises(CalibrantError, match=r"layers 0 to 1; .*--lora.layers"):
            attach_lora(base(), rank=2, alpha=4, layers=layers, base_name="b")


def test_gpt2_takes_an_adapter_too():
    assert adapter_parameters(attach(base("gpt2")))


def test_refuses_layers_that_are_not_there():
    with pytest.raises(CalibrantError, match=r"^LoRA cannot be attached .*--lora.targets") as caught:
        attach_lora(base(), rank=2, alpha=2, targets=["nothing"], base_name="base")
    assert "\n" not in str(caught.value)


def test_a_copy_shares_the_base_and_no_weight():
    model = attach(base())
    train(model)
    with_one = {weight.data_ptr() for weight in model.parameters()}
    expected = logits(model)
    state = torch.random.get_rng_state()
    add_copy(model, "copy")
    assert torch.equal(torch.random.get_rng_state(), state)
    copies = adapter_parameters(model, "copy")
    added = {weight.data_ptr() for weight in model.parameters()} - with_one
    assert added == {weight.data_ptr() for weight in copies}  # the base is there once
    for copy, original in zip(copies, adapter_parameters(model), strict=True):
        assert torch.equal(copy, original) and copy.data_ptr() != original.data_ptr()
    activate(model, "copy")
    assert torch.equal(logits(model), expected)


def test_the_active_adapter_alone_acts_and_takes_gradients():
    model = attach(base())
    train(model)
    add_copy(model, "copy")
    train(model, "copy")
    said: dict[str, torch.Tensor] = {}
    for name, other in ((THETA, "copy"), ("copy", THETA), (THETA, "copy")):
        activate(model, name)
        assert all(weight.requires_grad for weight in adapter_parameters(model, name))
        assert not any(weight.requires_grad for weight in adapter_parameters(model, other))
        found = logits(model)
        assert torch.equal(said.setdefault(name, found), found)
    assert not torch.allclose(said[THETA], said["copy"])


def test_the_base_alone_and_everything_back_afterwards():
    model = base()
    before = logits(model)
    model = attach(model)
    train(model)
    add_copy(model, "copy")
    activate(model, "copy")
    adapted = logits(model)
    flags = [weight.requires_grad for weight in model.parameters()]
    with pytest.raises(KeyError), base_only(model):
        assert torch.equal(logits(model), before)
        raise KeyError
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert model.active_adapter == "copy"
    assert torch.equal(logits(model), adapted)


def test_a_frozen_adapter_stays_frozen_after_the_base_alone(folder):
    model = load_adapter(base(), folder)
    adapted = logits(model)
    with base_only(model):
        assert not torch.allclose(logits(model), adapted)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_plain_peft_loads_what_was_saved(trained, folder):
    expected = logits(trained)
    ours = load_adapter(base(), folder)
    with adapters._quiet_peft():
        peft = PeftModel.from_pretrained(base(), folder).eval()
    assert torch.equal(logits(ours), expected)
    assert torch.equal(logits(peft), logits(ours))
    batch = collate(ragged(4))
    with torch.no_grad():
        assert torch.equal(predictive(ours, batch), predictive(peft, batch))
    assert not ours.training and not any(weight.requires_grad for weight in ours.parameters())


def test_only_the_trained_adapter_is_saved(tmp_path):
    model = attach(base())
    train(model)
    expected = logits(model)
    add_copy(model, "copy")
    train(model, "copy")
    activate(model, "copy")
    save_adapter(model, tiny_tokenizer(), tmp_path / "adapter")
    assert torch.equal(logits(load_adapter(base(), tmp_path / "adapter")), expected)
    assert not any(path.is_dir() for path in (tmp_path / "adapter").iterdir())


def test_what_a_saved_folder_holds(folder):
    weights = {"adapter_model.safetensors", "adapter_config.json"}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {path.name for path in folder.iterdir()} == weights | tokenizer  # and no README.md of PEFT
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some/base"
    assert (folder / "chat_template.jinja").read_text() == tiny_tokenizer().chat_template
    assert all(".lora_" in key for key in load_file(folder / "adapter_model.safetensors"))


def test_a_full_disk_is_one_line(trained, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trained, "save_pretrained", refuse)
    with pytest.raises(CalibrantError, match="No space left on device.*free some space"):
        save_adapter(trained, tiny_tokenizer(), tmp_path)
    monkeypatch.setattr("toolkit.models.adjustment.save", refuse)
    with pytest.raises(CalibrantError, match="No space left on device.*free some space"):
        save_adjustment(
            Adjustment(torch.tensor(1.0), torch.tensor(0.0)), tmp_path, predictive="raw", level="tokens"
        )


@pytest.mark.parametrize(
    "other",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**GROUPED | {"hidden_size": 64})),
        lambda: base(num_hidden_layers=1),
        lambda: base("gpt2"),
    ],
    ids=["another hidden size", "fewer layers", "another architecture"],
)
def test_refuses_the_adapter_of_another_base(folder, other):
    message = refusal(folder, other())
    assert message.endswith("some/base and does not fit this model; give that model as --model")


@pytest.mark.parametrize("name", ["other/base", "some/other"])
def test_says_so_where_the_base_bears_another_name(folder, caplog, name):
    model = base()
    model.config.name_or_path = name
    load_adapter(model, folder)
    said = [record.message for record in caplog.records]
    assert len(said) == (name == "some/other")
    assert all("some/base" in line and "some/other" in line for line in said)


def test_refuses_what_is_no_adapter_folder(tmp_path):
    assert "no adapter folder" in refusal(tmp_path / "nowhere")
    assert "no adapter folder nowhere;" in refusal("nowhere")
    assert "nobody/nothing" in refusal("nobody/nothing")  # a Hub id, and the Hub is out of reach
    assert "holds no adapter_model.safetensors" in refusal(tmp_path)


def test_refuses_pickled_weights_and_does_not_read_them(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(weights, folder / "adapter_model.bin")
    assert "pickled weights are not loaded" in refusal(folder)


def test_only_data_files_are_fetched_from_the_hub(folder, monkeypatch):
    asked = {}

    def fetch(name, allow_patterns):
        asked[name] = allow_patterns
        return str(folder)

    monkeypatch.setattr(adapters, "snapshot_download", fetch)
    load_adapter(base(), "some/adapter")
    assert asked == {"some/adapter": ["*.safetensors", "*.json", "*.yaml"]}


def test_refuses_damaged_weights(folder):
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "are damaged" in refusal(folder)
    weights.write_bytes(b"not safetensors")
    assert "are damaged" in refusal(folder)


def test_refuses_weights_that_are_not_all_there(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, folder / "adapter_model.safetensors")
    assert "does not fit" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "{}", '{"peft_type": "NEW"}'])
def test_refuses_a_damaged_config(folder, content):
    (folder / "adapter_config.json").write_text(content)
    assert str(folder) in refusal(folder)


def test_refuses_a_folder_without_config(folder):
    (folder / "adapter_config.json").unlink()
    assert "config of the adapter" in refusal(folder)


def test_refuses_an_adapter_that_is_no_lora(tmp_path):
    with adapters._quiet_peft():
        model = get_peft_model(base(), IA3Config(task_type="CAUSAL_LM"))
        model.save_pretrained(tmp_path)
    assert "is no LoRA adapter" in refusal(tmp_path)


@pytest.mark.parametrize("size", [(), (97,)])
def test_an_adjustment_comes_back_as_it_was_saved(tmp_path, size):
    adjustment = Adjustment(torch.rand(size), torch.randn(size).requires_grad_())
    save_adjustment(adjustment, tmp_path, predictive="adjusted", level="tokens")
    found = load_adjustment(tmp_path)
    assert found is not None
    assert torch.equal(found.delta, adjustment.delta) and torch.equal(found.iota, adjustment.iota)
    stored = load_file(tmp_path / "calibration.safetensors")
    assert {name: tensor.shape for name, tensor in stored.items()} == {"delta": size, "iota": size}
    z = torch.randn(5, 97)
    assert torch.equal(adjust(z, found), adjustment.delta * z + adjustment.iota)


def test_the_same_adjustment_is_the_same_bytes(tmp_path):
    contents = set()
    for _ in range(30):
        adjustment = Adjustment(torch.ones(97), torch.zeros(97))
        save_adjustment(adjustment, tmp_path, predictive="adjusted", level="options")
        contents.add((tmp_path / "calibration.safetensors").read_bytes())
    assert len(contents) == 1


def test_an_adjustment_of_options_is_not_for_text(tmp_path):
    adjustment = Adjustment(torch.tensor(0.2), torch.tensor(0.0))
    save_adjustment(adjustment, tmp_path, predictive="adjusted", level="options")
    assert load_adjustment(tmp_path) == load_adjustment(tmp_path, "options") == adjustment
    assert load_adjustment(tmp_path, "tokens") is None
    save_adjustment(adjustment, tmp_path, predictive="adjusted", level="tokens")
    assert load_adjustment(tmp_path, "options") == load_adjustment(tmp_path, "tokens") == adjustment


def test_a_raw_adapter_applies_no_adjustment(tmp_path):
    assert load_adjustment(tmp_path) is None
    save_adjustment(
        Adjustment(torch.tensor(2.0), torch.tensor(0.0)), tmp_path, predictive="raw", level="tokens"
    )
    assert load_adjustment(tmp_path) is None
    z = torch.randn(5, 97)
    assert adjust(z, None) is z


def test_refuses_a_damaged_adjustment(tmp_path):
    file = tmp_path / "calibration.safetensors"
    save_adjustment(
        Adjustment(torch.rand(97), torch.rand(97)), tmp_path, predictive="adjusted", level="tokens"
    )
    whole = file.read_bytes()
    save_file({"delta": torch.rand(97)}, tmp_path / "half", metadata={"predictive": "adjusted"})
    for damaged in (whole[:-10], b"", b"{}", (tmp_path / "half").read_bytes()):
        file.write_bytes(damaged)
        with pytest.raises(CalibrantError, match="cannot be read .*train the adapter again") as caught:
            load_adjustment(tmp_path)
        assert "\n" not in str(caught.value)


def test_an_adapter_stays_usable_where_it_is_moved(folder, trained, tmp_path):
    moved = shutil.move(folder, tmp_path / "elsewhere")
    assert torch.equal(logits(load_adapter(base(), moved)), logits(trained))
