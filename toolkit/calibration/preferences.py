"""Direct preference optimisation as a lower level: what is preferred to what, against a reference model."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import logsigmoid
from tqdm import tqdm

from toolkit.models.adapters import base_only
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, Score, collate, option_scores, predictive
from toolkit.models.prefix import FrozenPrefix


def dpo(log_probs: Tensor, answers: Tensor, reference: Tensor | None, beta: float) -> Tensor:
    """Returns the DPO loss of the answer against every other option, the mean over them (arXiv 2305.18290).

    −log σ(β [(log p_y − log p_k) − (r_y − r_k)]), the mean over the other present options k: of two options
    it is DPO, of more DPO on each pair of the right option and a wrong one. A constant added to a row of
    either drops out, so log-probabilities that are normalised over the options serve as well.

    Args:
        log_probs: Of N questions' options, at least two each, shape (N, K), nats; -inf for absent options.
        answers: Index of the preferred option, shape (N,).
        reference: The reference model's r, shape (N, K), nats; of the same score as `log_probs`.
        beta: β, how strongly a policy is held to the reference, in 1 / nat.

    Returns:
        Shape (N,), nats; log 2 where the policy is the reference.

    Raises:
        ValueError: There is no reference; see `with_reference`.
    """
    if reference is None:
        raise ValueError("DPO needs the scores of a reference model; see `with_reference`")
    present = ~log_probs.isneginf()
    gain = torch.where(present, log_probs, 0.0) - reference  # keeps the gradient of absent options finite
    margin = gain.gather(1, answers[:, None]) - gain
    others = present.scatter(1, answers[:, None], False)
    return -torch.where(others, logsigmoid(beta * margin), 0.0).sum(1) / others.sum(1)


@torch.no_grad()  # inference mode would make tensors of a sharded base unfit for training
def with_reference(
    questions: Sequence[EncodedQuestion],
    model: PeftModel,
    *,
    score: Score = "sum",
    layout: Layout = "packed",
    batch_size: int = 16,
    pad_id: int = 0,
    description: str | None = None,
    prefix: FrozenPrefix | None = None,
) -> list[EncodedQuestion]:
    """Scores all options once under the base, its adapters off, and notes that as their reference.

    Every process scores all questions, most tokens first.

    Args:
        questions: The encoded questions.
        model: The base with its adapters; scored in evaluation mode.
        score: How an option's tokens make its score, the same for the loss. With "sum" the loss is DPO's own,
            with "token" it is normalised by length.
        layout: See `toolkit.models.predictive.collate`; the one of training, so that rounding is the same.
        batch_size: Questions a forward pass.
        pad_id: Fills the rows.
        description: Label of a progress bar; no bar without one.
        prefix: The model's frozen layers, which need not run again on texts that they know.

    Returns:
        The same questions, in the order given, each with its `reference`.
    """
    device = next(model.parameters()).device
    order = sorted(range(len(questions)), key=lambda i: -questions[i].packed_length)
    chunks = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    found = list(questions)
    was_training = model.training
    model.eval()
    try:
        with base_only(model):
            for chunk in tqdm(chunks, desc=description, unit="batch", disable=description is None):
                batch = collate([found[i] for i in chunk], layout=layout, pad_id=pad_id).to(device)
                scores = option_scores(predictive(model, batch, prefix), batch, score=score).tolist()
                for i, row in zip(chunk, scores, strict=True):
                    found[i] = replace(found[i], reference=row[: len(found[i].options)])
    finally:
        model.train(was_training)
    return found
