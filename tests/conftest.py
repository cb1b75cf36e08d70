"""Models for the tests: a random one that fits in a test, and the bundled one."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: no test needs a network

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from toolkit.models.base import load_model

SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>")
MERGES = ("t h", "th e", "i n", "a n", "Ġ the", "Ġ a", "Ġ i", "o r", "e r", "an d", "Ġ and", "i s")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def bundled() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The bundled model in float32 on the CPU; shared by all tests, so leave it as it is."""
    return load_model("bundled", dtype="float32")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Llama of 2 layers with random weights; its tokenizer has a pad token and ChatML."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,  # large enough that options come out with different probabilities
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 271 tokens: specials, bytes, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    words = [*SPECIAL, *alphabet, *(left + right for left, right in merges)]
    bpe = models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|begin|>",
        eos_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
    )
