"""A model as the judge of answers to open-ended questions, and how far graders agree.

A judge is shown the question, the accepted answers and the given one, and says yes or no. It need not be the
model that answered. Its grades are worth what `agreement` with grades by hand, or by `GRADERS`, says.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
from torch import nn
from transformers import PreTrainedTokenizerBase

from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError, first_line
from toolkit.evaluation.grading import Grader, short_answer
from toolkit.models.encoding import encode_questions
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout
from toolkit.questions.prompts import Style
from toolkit.questions.question import MultipleChoice, OpenEnded

SHOWN_ANSWERS = 10
"""How many accepted answers a judge is shown, at most: the first ones."""

SHOWN_CHARACTERS = 500
"""How much of each answer a judge is shown, at most."""

LONGEST_WAIT = 60.0
"""Longest wait before a request is sent again, in seconds."""

logger = logging.getLogger(__name__)


def yes_or_no(question: OpenEnded, answer: str) -> MultipleChoice:
    """Returns the question whether an answer is right, with "yes" as its first option."""
    accepted = "; ".join(_in_one_line(one) for one in question.answers[:SHOWN_ANSWERS])
    lines = [
        question.text,
        f"Accepted answers: {accepted}",
        f"Given answer: {_in_one_line(answer)}",
        "Does the given answer mean the same as an accepted answer? Reply with yes or no only.",
    ]
    return MultipleChoice(question.id, "\n".join(lines), ("yes", "no"), 0)


def local_judge(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    style: Style,
    max_length: int,
    layout: Layout = "tree",
    **passes: Any,
) -> Grader:
    """Returns a grader to which an answer is right where its model finds "yes" more probable than "no".

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        style: Plain text, or the chat template.
        max_length: The model's context, in tokens.
        layout: See `toolkit.models.layout.choose_layout`.
        passes: Further arguments of `toolkit.confidence.options.option_confidence`, such as `batch_size`.

    Returns:
        A grader that raises CalibrantError where a question cannot be encoded; see
        `toolkit.models.encoding.encode_question`.
    """

    def ask(asked: Sequence[MultipleChoice]) -> list[bool]:
        encoded = encode_questions(asked, tokenizer, form="cloze", style=style, max_length=max_length)
        pad = tokenizer.pad_token_id or 0
        found = option_confidence(
            model, encoded, layout=layout_for(model, encoded, layout), pad_id=pad, **passes
        )
        yes, no = found.log_probs.T
        return [bool(right) for right in yes > no]

    return _judge(ask)


def server_judge(
    base_url: str,
    model: str,
    *,
    api_key_variable: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
    retries: int = 4,
    wait: float = 1.0,
    at_once: int = 8,
) -> Grader:
    """Returns a grader that asks a model behind a server with an OpenAI-compatible interface.

    A reply that is neither yes nor no counts as no; how many there are is logged as a warning.

    Args:
        base_url: The address before `/chat/completions`, such as "http://127.0.0.1:8000/v1".
        model: The model's name on the server.
        api_key_variable: The environment variable with the key, read when answers are graded; without it,
            none is sent.
        timeout: How long the server may be silent, in seconds.
        retries: How often a request is sent again after a cut connection, a silence, or status 408, 429 or
            5xx.
        wait: Seconds before the first repetition, doubled before each further one, up to `LONGEST_WAIT`; a
            server's `Retry-After` goes before.
        at_once: Requests under way at a time.

    Returns:
        A grader that raises CalibrantError where the server cannot be reached, refuses, or replies in another
        form.
    """
    server = _Server(_endpoint(base_url), model, api_key_variable, timeout, retries, wait)

    def ask(asked: Sequence[MultipleChoice]) -> list[bool]:
        key = _key(api_key_variable)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with (
            httpx2.Client(headers=headers, timeout=timeout) as client,
            ThreadPoolExecutor(at_once) as threads,
        ):
            texts = [one.text for one in asked]
            verdicts = [_verdict(reply) for reply in threads.map(partial(_reply, client, server, key), texts)]
        odd = verdicts.count(None)
        if odd:
            logger.warning("%d of %d replies are neither yes nor no and count as no", odd, len(verdicts))
        return [verdict is True for verdict in verdicts]

    return _judge(ask)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:SHOWN_CHARACTERS]


def _judge(ask: Callable[[Sequence[MultipleChoice]], list[bool]]) -> Grader:
    """Returns a grader that asks about each different answer once, and never about an empty one."""

    def grade(questions: Sequence[OpenEnded], answers: Sequence[str]) -> list[bool]:
        pairs = zip(questions, answers, strict=True)
        asked = [yes_or_no(question, answer) if answer.strip() else None for question, answer in pairs]
        different = {one.text: one for one in asked if one is not None}
        said = dict(zip(different, ask(list(different.values())), strict=True)) if different else {}
        return [one is not None and said[one.text] for one in asked]

    return grade


@dataclass(frozen=True, slots=True)
class _Server:
    """Where and how a judge is asked; see `server_judge`."""

    endpoint: httpx2.URL
    model: str
    variable: str
    timeout: float
    retries: int
    wait: float

    def __str__(self) -> str:
        """Its address without the credentials and parameters that it may have."""
        return f"{self.endpoint.scheme}://{self.endpoint.netloc.decode()}{self.endpoint.path}"


def _endpoint(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise CalibrantError("the judge's address is no URL; give one such as http://127.0.0.1:8000/v1")
    return url.copy_with(path=f"{url.path.rstrip('/')}/chat/completions")


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise CalibrantError(
            f"the environment variable {variable} has characters that no key has; set it again"
        )
    return key


def _reply(client: httpx2.Client, server: _Server, key: str, text: str) -> str:
    """Returns what the server's model says, and asks again after faults that may pass."""
    message = {"role": "user", "content": text}
    body = {"model": server.model, "messages": [message], "temperature": 0}
    for attempt in range(server.retries + 1):
        pause = min(server.wait * 2**attempt, LONGEST_WAIT)
        try:
            response = client.post(server.endpoint, json=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise CalibrantError(
                f"{server} cannot be reached ({first_line(error)}); start the server, or check the address"
            ) from None
        except httpx2.TimeoutException:
            fault = f"is silent for more than {server.timeout:g} s"
        except (httpx2.NetworkError, httpx2.RemoteProtocolError):
            fault = "cuts the connection"
        except httpx2.HTTPError as error:
            raise CalibrantError(
                f"{server} cannot be asked ({first_line(error)}); check the address"
            ) from None
        else:
            if response.status_code not in (408, 429) and response.status_code < 500:
                return _content(response, server, key)
            fault = f"replies with status {response.status_code}"
            after = response.headers.get("Retry-After", "")
            pause = min(float(after), LONGEST_WAIT) if after.isdecimal() else pause
        if attempt < server.retries:
            time.sleep(pause)
    raise CalibrantError(f"{server} {fault}, {server.retries + 1} times in a row; try again later")


def _content(response: httpx2.Response, server: _Server, key: str) -> str:
    """Returns what the model says in a response, "" where it says nothing."""
    status = response.status_code
    if status in (401, 403):
        raise CalibrantError(
            f"{server} refuses access (status {status}); set the environment variable {server.variable} to a "
            "key that it takes"
        )
    if status == 404:
        raise CalibrantError(
            f"{server} is not there, or has no model {server.model!r}; check the address and the model"
        )
    if status != 200:
        raise CalibrantError(
            f"{server} refuses the request (status {status}: {_message(response, key)}); mend what it names"
        )
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        content = 0
    if content is not None and not isinstance(content, str):
        raise CalibrantError(
            f"{server} replies in another form than chat completions have; check the address"
        )
    return content or ""


def _message(response: httpx2.Response, key: str) -> str:
    """Returns a server's error message without the key, which some servers repeat."""
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        said = response.text
    return _in_one_line(said.replace(key, "...") if key else said) or "no reason given"


def _verdict(reply: str) -> bool | None:
    """Returns whether a reply, thoughts aside, begins with yes or with no; None if neither."""
    words = re.findall(r"\w+", short_answer(reply.rpartition("</think>")[2]).casefold())
    return {"yes": True, "no": False}.get(words[0]) if words else None


@dataclass(frozen=True)
class Agreement:
    """How the grades of one grader agree with a reference.

    Attributes:
        share: Share of the answers that both grade the same.
        kappa: Cohen's kappa, the share beyond chance; NaN where both give one and the same grade throughout.
        false_positives: Answers that are right to the grader alone.
        false_negatives: Answers that are right to the reference alone.
    """

    share: float
    kappa: float
    false_positives: int
    false_negatives: int


def agreement(graded: Mapping[str, Sequence[bool]], reference: Sequence[bool]) -> dict[str, Agreement]:
    """Compares the grades of some graders, by name, with reference grades of the same answers.

    Raises:
        CalibrantError: There is no answer, or not one grade for each.
    """
    if not reference:
        raise CalibrantError("there are no grades to compare; give at least one")
    for name, grades in graded.items():
        if len(grades) != len(reference):
            raise CalibrantError(
                f"{len(grades)} grades by {name}, {len(reference)} by the reference; grade the same answers"
            )
    return {name: _agreement(grades, reference) for name, grades in graded.items()}


def _agreement(grades: Sequence[bool], reference: Sequence[bool]) -> Agreement:
    n, right, wanted = len(reference), sum(map(bool, grades)), sum(map(bool, reference))
    pairs = list(zip(grades, reference, strict=True))
    false_positives = sum(grade and not true for grade, true in pairs)
    false_negatives = sum(true and not grade for grade, true in pairs)
    share = 1 - (false_positives + false_negatives) / n
    chance = (right * wanted + (n - right) * (n - wanted)) / n**2
    kappa = (share - chance) / (1 - chance) if chance < 1 else float("nan")
    return Agreement(share, kappa, false_positives, false_negatives)
