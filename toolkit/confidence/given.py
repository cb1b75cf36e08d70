"""What a model makes of the tokens of given answers, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from toolkit.confidence.passes import over_passes
from toolkit.confidence.tokens import SEQUENCE
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, OptionBatch, answer_tokens, vocabulary_log_probs
from toolkit.models.prefix import FrozenPrefix


@dataclass(frozen=True)
class GivenTokens:
    """The distribution over the vocabulary before each of N tokens of right answers, answer after answer.

    Attributes:
        question: Index of the question whose answer the token is in, shape (N,), ascending.
        log_prob: Log-probability of the token, shape (N,), in nats.
        entropy: Entropy of the distribution, shape (N,), in nats.
        confidence: Probability of the most probable token, shape (N,).
        correct: Whether that is the token, shape (N,).
    """

    question: NDArray[np.int64]
    log_prob: NDArray[np.float64]
    entropy: NDArray[np.float64]
    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]


def given_tokens(
    model: nn.Module,
    questions: Sequence[EncodedQuestion],
    *,
    adjustment: Adjustment | None = None,
    layout: Layout = "packed",
    batch_size: int = 16,
    pad_id: int = 0,
    accelerator: Accelerator | None = None,
    prefix: FrozenPrefix | None = None,
) -> GivenTokens:
    """Reads the right answers of many questions token by token, each after the tokens before it.

    Args:
        model: A causal language model; read in evaluation mode.
        questions: The encoded questions.
        adjustment: α of an `adjusted` adapter, on the model's device.
        layout: See `toolkit.models.predictive.collate`.
        batch_size: Questions a forward pass.
        pad_id: Fills the rows.
        accelerator: The processes that share the questions; every one gets the tokens of all.
        prefix: The model's frozen layers, which need not run again on texts that they know.
    """

    def find(logits: Tensor, batch: OptionBatch) -> NDArray[np.float64]:
        log_probs = vocabulary_log_probs(logits, adjustment)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        place, target = answer_tokens(batch)
        top, chosen = log_probs[place].max(-1)
        own = log_probs[place, target]
        columns = [batch.option, own, entropy[place], top.exp(), chosen == target]
        return np.stack([column.double().cpu().numpy() for column in columns])

    found = over_passes(
        model,
        [question.right_only() for question in questions],
        find,
        layout=layout,
        batch_size=batch_size,
        pad_id=pad_id,
        accelerator=accelerator,
        prefix=prefix,
    )
    rows = np.concatenate([[np.array(chunk)[row[0].astype(int)], *row[1:]] for chunk, row in found], axis=1)
    question, log_prob, entropy, confidence, correct = rows[:, rows[0].argsort(kind="stable")]
    return GivenTokens(question.astype(int), log_prob, entropy, confidence, correct.astype(bool))


class GivenToken(NamedTuple):
    """One of them as `SEQUENCE` looks at it: its log-probability and the entropy before it, in nats."""

    log_prob: float
    entropy: float


def sequence_confidence(found: GivenTokens, count: int) -> dict[str, NDArray[np.float64]]:
    """Returns the confidence in each of N answers as a whole, in every way of `SEQUENCE`, each of shape (N,).

    Args:
        found: The tokens of the answers.
        count: Number N of answers; one without a token has NaN.
    """
    answers: list[list[GivenToken]] = [[] for _ in range(count)]
    for question, *token in zip(found.question, found.log_prob, found.entropy, strict=True):
        answers[question].append(GivenToken(*token))
    return {
        name: np.array([confidence(tokens) if tokens else np.nan for tokens in answers])
        for name, confidence in SEQUENCE.items()
    }
