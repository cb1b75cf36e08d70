"""Whether an answer implies another one, as a language model or an NLI model says it.

Both are ways to make a `toolkit.confidence.clusters.Entails`. The language model can be the one that gave the
answers. A small one is not up to it: the bundled model tells pairs apart no better than chance.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from toolkit.confidence.clusters import Entails
from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError, first_line
from toolkit.models.base import context_length, has_safetensors, read_config
from toolkit.models.encoding import encode_questions
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout
from toolkit.questions.prompts import Style
from toolkit.questions.question import MultipleChoice

ENTAILMENT = "entailment"
"""What NLI models call the class that is looked for, in any case."""


def implication(question: str, answer: str, other: str) -> MultipleChoice:
    """Returns the question whether an answer implies another one, with "Yes" as its first option."""
    lines = [
        question,
        f"Answer A: {answer}",
        f"Answer B: {other}",
        "If answer A is right, is answer B right too?",
    ]
    return MultipleChoice(question, "\n".join(lines), ("Yes", "No"), 0)


def by_language_model(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    style: Style,
    max_length: int,
    layout: Layout = "tree",
    **passes: Any,
) -> Entails:
    """Returns what asks a language model, and takes for an entailment where "Yes" has more than 1/2.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        style: Plain text, or the chat template.
        max_length: The model's context, in tokens.
        layout: See `toolkit.models.layout.choose_layout`.
        passes: Further arguments of `toolkit.confidence.options.option_confidence`.

    Returns:
        It raises a CalibrantError where a pair cannot be encoded; see `toolkit.models.encoding`.
    """

    def entails(question: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        asked = [implication(question, *pair) for pair in pairs]
        encoded = encode_questions(asked, tokenizer, form="cloze", style=style, max_length=max_length)
        rows = layout_for(model, encoded, layout)
        found = option_confidence(model, encoded, layout=rows, pad_id=tokenizer.pad_token_id or 0, **passes)
        yes, no = found.log_probs.T
        return (yes > no).tolist()

    return entails


def by_nli(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 32) -> Entails:
    """Returns what asks an NLI model, and takes for an entailment where that is the most probable class.

    The question stands before each of the two answers (arXiv 2302.09664).

    Args:
        model: A model for sequence classification, read in evaluation mode; see `load_nli`.
        tokenizer: Its tokenizer.
        batch_size: Pairs a forward pass.

    Returns:
        It raises a CalibrantError where a pair is longer than the model's context.

    Raises:
        CalibrantError: The model has no class called "entailment".
    """
    label = entailment_label(model.config)
    limit = min(context_length(model, tokenizer), tokenizer.model_max_length)

    @torch.no_grad()
    def entails(question: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(pairs), batch_size):
            texts = [
                [f"{question} {answer}" for answer in pair] for pair in pairs[start : start + batch_size]
            ]
            batch = tokenizer(*zip(*texts, strict=True), padding=True, verbose=False, return_tensors="pt")
            length = batch["input_ids"].shape[1]
            if length > limit:
                raise CalibrantError(
                    f"a question with two answers takes {length} tokens and the NLI model's context holds "
                    f"{limit}; shorten the answers, or choose another NLI model"
                )
            scores = model(**batch.to(model.device), return_dict=False)[0]
            found += (scores.argmax(dim=-1) == label).tolist()
        return found

    return entails


def entailment_label(config: PreTrainedConfig) -> int:
    """Returns the number of the class that is called "entailment".

    Args:
        config: The config of a model for sequence classification.

    Raises:
        CalibrantError: There is none.
    """
    labels = config.id2label or {}
    for number, name in labels.items():
        if name.casefold() == ENTAILMENT:
            return int(number)
    raise CalibrantError(
        f"the classes {', '.join(labels.values())} have no {ENTAILMENT!r} among them; choose an NLI model, "
        "or name the class so in its config.json"
    )


def load_nli(
    name: str, *, device: torch.device | str = "cpu", revision: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads an NLI model in evaluation mode and float32, with its tokenizer, from safetensors alone.

    Args:
        name: A Hub id or a local folder.
        device: Where the model goes.
        revision: A branch, tag or commit on the Hub; the main branch if None.

    Raises:
        CalibrantError: The model cannot be found, is no complete model for sequence classification in
            safetensors, or has no class called "entailment" or no pad token.
    """
    config = read_config(name, revision)
    if not has_safetensors(name, config, revision):
        raise CalibrantError(
            f"{name} has no safetensors weights, and pickled ones can run code when they are read; "
            "choose an NLI model that has"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            name, revision=revision, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # transformers fails in any way on a damaged folder
        raise CalibrantError(
            f"{name} does not load as a model for sequence classification with a tokenizer "
            f"({first_line(error)}); choose an NLI model"
        ) from error
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise CalibrantError(
            f"{name} lacks {len(missing)} weights of a model for sequence classification, {missing[0]} among "
            "them; choose an NLI model"
        )
    entailment_label(model.config)
    if tokenizer.pad_token_id is None:
        raise CalibrantError(f"the tokenizer of {name} has no pad token; choose an NLI model that has one")
    return model.to(device).eval(), tokenizer
