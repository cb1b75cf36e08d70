"""P(True): the probability that a model gives to "True" when shown its own answer (arXiv 2207.05221)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerBase

from toolkit.confidence.options import option_confidence
from toolkit.models.encoding import encode_questions
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout
from toolkit.questions.prompts import Style
from toolkit.questions.question import MultipleChoice, OpenEnded

SHOWN = 5
"""How many different samples are shown, at most: the first ones drawn."""


def true_or_false(question: OpenEnded, answer: str, samples: Sequence[str] = ()) -> MultipleChoice:
    """Returns the question whether an answer is true, with "True" as its first option.

    Args:
        question: What was asked.
        answer: The model's answer.
        samples: Other answers of the model, shown before it; repeated and empty ones are left out.
    """
    ideas = list(dict.fromkeys(sample.strip() for sample in samples if sample.strip()))[:SHOWN]
    lines = [
        question.text,
        *(["Some possible answers:", *ideas] if ideas else []),
        f"Proposed answer: {answer.strip() or '(none)'}",
        "Is the proposed answer true or false?",
    ]
    return MultipleChoice(question.id, "\n".join(lines), ("True", "False"), 0)


def p_true(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[OpenEnded],
    answers: Sequence[str],
    *,
    samples: Sequence[Sequence[str]] | None = None,
    style: Style,
    max_length: int,
    layout: Layout = "tree",
    **passes: Any,
) -> NDArray[np.float64]:
    """Returns the probability of "True" against "False" for each answer, shape (N,).

    Args:
        model: A causal language model, the one that gave the answers.
        tokenizer: Its tokenizer.
        questions: N questions.
        answers: An answer to each.
        samples: Other answers of the model to each, to be shown.
        style: Plain text, or the chat template.
        max_length: The model's context, in tokens.
        layout: See `toolkit.models.layout.choose_layout`.
        passes: Further arguments of `toolkit.confidence.options.option_confidence`.

    Raises:
        CalibrantError: A question cannot be encoded; see `toolkit.models.encoding.encode_question`.
    """
    others = samples or [()] * len(questions)
    asked = [true_or_false(*one) for one in zip(questions, answers, others, strict=True)]
    encoded = encode_questions(asked, tokenizer, form="cloze", style=style, max_length=max_length)
    pad = tokenizer.pad_token_id or 0
    found = option_confidence(model, encoded, layout=layout_for(model, encoded, layout), pad_id=pad, **passes)
    return np.exp(found.log_probs[:, 0])
