"""Random models and questions, and the scores of options as a plain model gives them."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import collate, option_scores, predictive

VOCABULARY = 97
SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SIZE | {"num_key_value_heads": 2}
SOFT_CAPPED = {"head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 4.0}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, GROUPED),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, GROUPED),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, SIZE),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        GROUPED | SOFT_CAPPED | {"final_logit_softcapping": 3.0, "sliding_window": 128},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, GROUPED | {"sliding_window": 128}),
}


@cache
def tiny(name: str = "llama", attention: str | None = None):
    """A model of 2 layers with random weights, large enough to tell tokens apart."""
    architecture, config, keys = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = architecture(config(**keys, initializer_range=0.3, attn_implementation=attention))
    return model.eval()


def ragged(n: int, seed: int = 0) -> list[EncodedQuestion]:
    """Questions with prompts of 1 to 9 tokens and 2 to 6 options of 1 to 12 tokens."""
    draw = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randint(least, most))]

    questions = []
    for number in range(n):
        options = [tokens(1, 12) for _ in range(2 + number % 5)]
        sizes = [draw.randint(1, 30) for _ in options]
        questions.append(
            EncodedQuestion(str(number), tokens(1, 9), options, draw.randrange(len(options)), sizes)
        )
    return questions


@torch.no_grad()
def naive(model, question: EncodedQuestion, delta=1.0, iota=0.0, score="sum") -> list[float]:
    """Log-probability of each option, from one plain pass over its whole text."""
    scores = []
    for option, size in zip(question.options, question.option_bytes, strict=True):
        text = question.prompt + option
        logits = model(input_ids=torch.tensor([text])).logits[0].float()
        log_probs = torch.log_softmax(delta * logits + iota, dim=-1)
        total = sum(
            log_probs[place - 1, text[place]].item() for place in range(len(question.prompt), len(text))
        )
        scores.append(total / {"sum": 1, "token": len(option), "byte": size}[score])
    return scores


@torch.no_grad()
def ours(model, questions, adjustment=None, score="sum", **layout) -> list[list[float]]:
    """The same in one pass for all questions, absent options left out."""
    batch = collate(questions, **layout)
    rows = option_scores(predictive(model, batch), batch, adjustment, score)
    for row, question in zip(rows, questions, strict=True):
        assert row[len(question.options) :].eq(float("-inf")).all()
    return [row[: len(q.options)].tolist() for row, q in zip(rows, questions, strict=True)]


def assert_naive(model, questions, found, tolerance=1e-4, **options) -> None:
    for question, scores in zip(questions, found, strict=True):
        assert scores == pytest.approx(naive(model, question, **options), abs=tolerance, rel=0)
