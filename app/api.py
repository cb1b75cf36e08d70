"""The page's functions for programs: what `gradio_client` can call by name."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import gradio as gr

from app.answers import KINDS, Answer, Form
from app.asking import answers, further, token_figure
from app.choosing import choose, read_question
from app.models import Models
from app.pages.parts import MODEL, shown_faults
from toolkit.errors import CalibrantError
from toolkit.questions.prompts import Style


def add_api(models: Models) -> None:
    """Adds `/models`, `/ask`, `/confidence` and `/choose` to the page that is being built."""

    def names() -> list[str]:
        """Returns the names of the models: the base, then the adapters."""
        return list(models.names)

    def ask(
        question: str,
        model: str,
        style: str = "chat",
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 48,
        seed: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Answers a question; streams the answer so far, with probability, rank and entropy of each token."""
        with shown_faults():
            form = _form(
                question,
                model,
                style,
                temperature=temperature,
                top_p=top_p,
                max_tokens=max_tokens,
                seed=seed,
            )
            answer = Answer(model)
            for _, answer in answers(models, form, (0,), ((),)):
                yield described(answer)
            yield described(token_figure(answer, form.measure))

    def confidence(question: str, model: str, style: str = "chat", samples: int = 8) -> dict[str, Any]:
        """Answers a question and finds every kind of confidence in the answer."""
        with shown_faults():
            form = _form(question, model, style, samples=samples)
            answer = Answer(model)
            for _, so_far in answers(models, form, (0,), ((),)):
                answer = so_far
            answer = token_figure(answer, form.measure)
            for kind in KINDS:
                if kind != "token" and answer.tokens:
                    answer = further(models, form, answer, kind)
            return described(answer)

    def choice(
        question: str,
        options: list[str],
        model: str,
        form: str = "cloze",
        style: str = "plain",
        score: str = "token",
    ) -> dict[str, Any]:
        """Returns the probability that a model gives to each option, and to all their texts together."""
        with shown_faults():
            asked = read_question(question, "\n".join(options), None)
            found = choose(models, model, asked, form=form, style=style, score=score)  # type: ignore[arg-type]
        return {"model": model, "probabilities": list(found.probabilities), "mass": found.mass}

    run: dict[str, Any] = {"concurrency_id": MODEL, "concurrency_limit": 1}
    gr.api(names, api_name="models")
    gr.api(ask, api_name="ask", **run)
    gr.api(confidence, api_name="confidence", **run)
    gr.api(choice, api_name="choose", **run)


def described(answer: Answer) -> dict[str, Any]:
    """Returns an answer as JSON has it: probabilities as shares of 1, entropies in nats."""
    return {
        "model": answer.model,
        "text": answer.text,
        "ended": answer.ended,
        "tokens": [
            {
                "id": token.id,
                "text": token.text,
                "probability": math.exp(token.log_prob),
                "rank": token.rank,
                "entropy": token.entropy,
            }
            for token in answer.tokens
        ],
        "confidence": {figure.kind: figure.value for figure in answer.figures},
        "samples": list(answer.samples),
    }


def _form(question: str, model: str, style: str, **others: Any) -> Form:
    if style not in get_args(Style):
        raise CalibrantError(f"{style!r} is not offered; choose one of {', '.join(get_args(Style))}")
    return Form(question, model, model, style, kinds=tuple(KINDS), **others)  # type: ignore[arg-type]
