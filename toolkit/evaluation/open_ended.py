"""A model's answers to open-ended questions, with every confidence in them.

Each confidence has the answers that it is about:

- token confidence, P(True) and the stated confidence `two_stage` are about the greedy answer;
- `sem1`, `sem2` and `semantic_entropy` are about the first answer of the largest cluster of samples;
- the other stated confidences are about the answer that the same reply gives.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from toolkit.confidence.clusters import by_content
from toolkit.confidence.given import given_tokens, sequence_confidence
from toolkit.confidence.p_true import p_true
from toolkit.confidence.samples import Sample, draw_samples
from toolkit.confidence.semantic import modal, sem1, sem2, semantic_entropy
from toolkit.confidence.stated import Stated, stated
from toolkit.evaluation.grading import Grader, short_answer
from toolkit.evaluation.metrics import Bools, Floats
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion, encode_prompt, encode_turns
from toolkit.models.generation import Decoding
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout
from toolkit.questions.elicitation import ELICITATIONS
from toolkit.questions.prompts import Style, Turn
from toolkit.questions.question import OpenEnded, QuestionSet

REPLY_TOKENS, NUMBER_TOKENS = 96, 24
"""Most tokens of a reply to an elicitation, and of one that is to be a number alone."""

WRITTEN_TOGETHER = 4
"""Answers that are written together, as a multiple of the questions a forward pass: a step of writing gives
the model but one token of each."""

Sampler = Callable[..., list[list[Sample]]]
"""Draws answers as `draw_samples` does, called with prompts, ids, `n`, `decoding` and `seed`."""

Cluster = Callable[[OpenEnded, Sequence[str]], list[int]]
"""Says which of the sampled answers to a question mean the same; see `toolkit.confidence.clusters`."""


@dataclass(frozen=True)
class Model:
    """A model as it is asked.

    Attributes:
        model: A causal language model.
        tokenizer: Its tokenizer.
        style: How questions are put to it: plain text, or the chat template.
        max_length: Its context, in tokens.
        adjustment: α of an `adjusted` adapter, on the model's device.
        layout: See `toolkit.models.layout.choose_layout`.
        accelerator: The processes that share the questions; every one gets all answers.
        label: What progress bars call it; no bars without it.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    style: Style
    max_length: int
    adjustment: Adjustment | None = None
    layout: Layout = "tree"
    accelerator: Accelerator | None = None
    label: str | None = None


@dataclass(frozen=True)
class Asking:
    """What is asked of it, and how the answers are judged.

    Attributes:
        grade: Says which answers are right.
        max_tokens: Most tokens of an answer.
        samples: Sampled answers to a question; none for no semantic confidence.
        sampler: Draws them in the place of the model; see `toolkit.confidence.vllm_samples`.
        cluster: Which of them mean the same.
        elicitations: Ways to ask for stated confidence, of `toolkit.questions.elicitation.ELICITATIONS`.
        phrases: Probability of each phrase, fitted on other answers; `stated_linguistic_fitted` takes these
            in place of what people take a phrase for. None for no such confidence.
        p_true: Whether to ask for P(True).
        batch_size: Questions a forward pass; of answers being written, `WRITTEN_TOGETHER` times as many.
        seed: Seed of all draws.
    """

    grade: Grader
    max_tokens: int = 32
    samples: int = 50
    sampler: Sampler | None = None
    cluster: Cluster = lambda question, answers: by_content(question.text, answers)
    elicitations: Sequence[str] = ()
    phrases: Mapping[str, float] | None = None
    p_true: bool = True
    batch_size: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Confidence:
    """One kind of confidence in N answers.

    Attributes:
        value: The confidence, NaN where there is none, shape (N,).
        correct: Whether the answer that it is about is right, shape (N,).
    """

    value: Floats
    correct: Bools


@dataclass(frozen=True)
class OpenAnswers:
    """What a model made of a set of open-ended questions.

    Attributes:
        data: N questions.
        answers: The greedy answer to each.
        correct: Whether it is right, shape (N,).
        confidence: Each kind of confidence, by name.
        samples: Sampled answers to each question.
        clusters: Their clusters.
        replies: What the model said to each question, by elicitation.
    """

    data: QuestionSet
    answers: list[str]
    correct: Bools
    confidence: dict[str, Confidence] = field(default_factory=dict)
    samples: list[list[str]] = field(default_factory=list)
    clusters: list[list[int]] = field(default_factory=list)
    replies: dict[str, list[str]] = field(default_factory=dict)


def answer_open(asked: Model, data: QuestionSet, asking: Asking) -> OpenAnswers:
    """Lets a model answer open-ended questions, and asks how sure it is in every way that is wanted.

    Args:
        asked: The model.
        data: The questions.
        asking: What is asked of it.

    Raises:
        CalibrantError: A question cannot be encoded, or a grader fails.
    """
    questions = [question for question in data if isinstance(question, OpenEnded)]
    prompts = [_prompt(asked, question, asking) for question in questions]
    found = _draw(asked, data, prompts, asking, greedy=True)
    greedy = [one[0] for one in found]
    answers = [short_answer(one.text) for one in greedy]
    correct = np.array(asking.grade(questions, answers))
    confidence = {
        name: Confidence(value, correct) for name, value in _by_tokens(asked, prompts, greedy, asking).items()
    }
    result = OpenAnswers(data, answers, correct, confidence)
    if asking.samples:
        result = _with_samples(asked, result, prompts, asking)
    if asking.p_true:
        kinds = {"p_true": None} | ({"p_true_samples": result.samples} if result.samples else {})
        for name, samples in kinds.items():
            confidence[name] = Confidence(_p_true(asked, questions, answers, samples, asking), correct)
    for name in asking.elicitations:
        replies, stated = _stated(asked, data, answers, name, asking)
        result.replies[name] = replies
        own = np.array(asking.grade(questions, [one.answer or "" for one in stated]))
        confidence[f"stated_{name}"] = Confidence(_probabilities(stated), own)
        if name == "linguistic" and asking.phrases is not None:
            fitted = [
                replace(one, probability=asking.phrases[one.phrase]) if one.phrase else one for one in stated
            ]
            confidence["stated_linguistic_fitted"] = Confidence(_probabilities(fitted), own)
    return result


def _prompt(asked: Model, question: OpenEnded, asking: Asking) -> list[int]:
    room = asked.max_length - asking.max_tokens
    return encode_prompt(question, asked.tokenizer, style=asked.style, max_length=room)


def _draw(
    asked: Model, data: QuestionSet, prompts: Sequence[list[int]], asking: Asking, *, greedy: bool
) -> list[list[Sample]]:
    """Draws answers: one to each question, greedily, or as many as are asked for."""
    decoding = Decoding(
        temperature=0.0 if greedy else 1.0,
        max_tokens=asking.max_tokens,
        stop=("\n",) if asked.style == "plain" else (),
    )
    ids = [question.id for question in data]
    if asking.sampler is not None and not greedy:
        return asking.sampler(prompts, ids, n=asking.samples, decoding=decoding, seed=asking.seed)
    return draw_samples(
        asked.model,
        asked.tokenizer,
        prompts,
        ids,
        n=1 if greedy else asking.samples,
        decoding=decoding,
        seed=asking.seed,
        batch_size=max(WRITTEN_TOGETHER * asking.batch_size, 1 if greedy else asking.samples),
        accelerator=asked.accelerator,
        description=asked.label and f"{asked.label} {data.name} {'answers' if greedy else 'samples'}",
        adjustment=asked.adjustment,
    )


def _by_tokens(
    asked: Model, prompts: Sequence[list[int]], answers: Sequence[Sample], asking: Asking
) -> dict[str, Floats]:
    """Returns the sequence confidences of the greedy answers, NaN for one without a token.

    The token that ends an answer is no part of it.
    """
    said = [list(answer.ids[: len(answer.ids) - answer.ended]) for answer in answers]
    encoded = [
        EncodedQuestion(str(i), prompt, [ids], 0, [len(answer.text.encode())])
        for i, (prompt, ids, answer) in enumerate(zip(prompts, said, answers, strict=True))
        if ids
    ]
    if not encoded:
        return {}
    found = given_tokens(
        asked.model,
        encoded,
        adjustment=asked.adjustment,
        layout=layout_for(asked.model, encoded, asked.layout),
        batch_size=asking.batch_size,
        pad_id=asked.tokenizer.pad_token_id or 0,
        accelerator=asked.accelerator,
    )
    numbers = np.array([int(question.id) for question in encoded])
    return sequence_confidence(replace(found, question=numbers[found.question]), len(prompts))


def _with_samples(
    asked: Model, result: OpenAnswers, prompts: Sequence[list[int]], asking: Asking
) -> OpenAnswers:
    data = result.data
    questions = [question for question in data if isinstance(question, OpenEnded)]
    drawn = _draw(asked, data, prompts, asking, greedy=False)
    samples = [[short_answer(one.text) for one in own] for own in drawn]
    clusters = np.array([asking.cluster(*one) for one in zip(questions, samples, strict=True)])
    said = [own[place] for own, place in zip(samples, modal(clusters), strict=True)]
    correct = np.array(asking.grade(questions, said))
    values = {"sem1": sem1(clusters), "semantic_entropy": np.exp(-semantic_entropy(clusters))}
    if asking.samples > 1:
        values["sem2"] = sem2(clusters, [question.id for question in questions], seed=asking.seed)
    result.confidence.update({name: Confidence(value, correct) for name, value in values.items()})
    return replace(result, samples=samples, clusters=clusters.tolist())


def _p_true(
    asked: Model,
    questions: Sequence[OpenEnded],
    answers: Sequence[str],
    samples: Sequence[Sequence[str]] | None,
    asking: Asking,
) -> Floats:
    return p_true(
        asked.model,
        asked.tokenizer,
        questions,
        answers,
        samples=samples,
        style=asked.style,
        max_length=asked.max_length,
        layout=asked.layout,
        adjustment=asked.adjustment,
        batch_size=asking.batch_size,
        accelerator=asked.accelerator,
    )


def _stated(
    asked: Model, data: QuestionSet, answers: Sequence[str], name: str, asking: Asking
) -> tuple[list[str], list[Stated]]:
    """Returns the replies to an elicitation, those of its last stage, and what they state."""
    elicitation = ELICITATIONS[name]
    questions = [question for question in data if isinstance(question, OpenEnded)]
    stages = [list(answers)]
    if name != "two_stage":  # whose first stage asks for the answer that there is already
        turns = [elicitation.ask(question) for question in questions]
        stages = [_replies(asked, data, turns, name, asking, REPLY_TOKENS)]
    if elicitation.ask_again is not None:
        turns = [elicitation.ask_again(*one) for one in zip(questions, stages[0], strict=True)]
        stages.append(_replies(asked, data, turns, f"{name} again", asking, NUMBER_TOKENS))
    found = [_best(stated(elicitation, replies)) for replies in zip(*stages, strict=True)]
    if name == "two_stage":
        found = [replace(one, answer=answer) for one, answer in zip(found, answers, strict=True)]
    return stages[-1], found


def _probabilities(said: Sequence[Stated]) -> Floats:
    return np.array([np.nan if one.probability is None else one.probability for one in said])


def _best(guesses: Sequence[Stated]) -> Stated:
    """Returns the guess that the model finds most probable, the first of equals, or nothing of none."""
    sure = [guess for guess in guesses if guess.probability is not None]
    return max(sure or guesses, key=lambda guess: guess.probability or 0.0, default=Stated(None, None))


def _replies(
    asked: Model, data: QuestionSet, turns: Sequence[list[Turn]], name: str, asking: Asking, most: int
) -> list[str]:
    room = asked.max_length - most
    prompts = [
        encode_turns(own, asked.tokenizer, name=question.id, max_length=room)
        for own, question in zip(turns, data, strict=True)
    ]
    drawn = draw_samples(
        asked.model,
        asked.tokenizer,
        prompts,
        [question.id for question in data],
        n=1,
        decoding=Decoding(temperature=0.0, max_tokens=most),
        seed=asking.seed,
        batch_size=WRITTEN_TOGETHER * asking.batch_size,
        accelerator=asked.accelerator,
        description=asked.label and f"{asked.label} {data.name} {name}",
        adjustment=asked.adjustment,
    )
    return [own[0].text for own in drawn]
