"""One set of weights for all models: tests of `app/models.py`, `app/asking.py` and `app/choosing.py`."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from app_models import HOSTILE, adapter_folders

from app.answers import KINDS, Answer, Form
from app.asking import answers, further, token_figure
from app.choosing import choose, read_question
from app.models import Models, load_models
from toolkit.errors import CalibrantError
from toolkit.evaluation.evaluate import answer_sets
from toolkit.models.adapters import load_adapter
from toolkit.models.base import load_model
from toolkit.questions.question import MultipleChoice, QuestionSet

BAD: Any = {"form": "x", "style": "plain", "score": "sum"}
IDS = torch.tensor([[5, 9, 30, 7]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_folder):
    return adapter_folders(tmp_path_factory.mktemp("adapters"), tiny_folder)


@pytest.fixture(scope="module")
def models(folders, tiny_folder) -> Models:
    return load_models(str(tiny_folder), folders)


@torch.no_grad()
def expected(tiny_folder, folder=None) -> torch.Tensor:
    """Logits of the base, or of the base with one adapter as the toolkit loads it."""
    model, _ = load_model(str(tiny_folder))
    loaded = model if folder is None else load_adapter(model, folder)
    return loaded.eval()(IDS)["logits"]


def form(left: str, right: str, **changes) -> Form:
    return Form("What is it?", left, right, **{"max_tokens": 12} | changes)


def whole(models: Models, asked: Form) -> list[Answer]:
    found = {}
    for side, answer in answers(models, asked, (0, 1), ((), ())):
        found[side] = answer
    return [found[0], found[1]]


def test_each_name_is_that_model_in_any_order(models, folders, tiny_folder):
    logits = [expected(tiny_folder), *(expected(tiny_folder, folder) for folder in folders)]
    assert not torch.allclose(logits[1], logits[2], atol=0.1) and not torch.allclose(
        logits[0], logits[1], atol=0.1
    )
    for number in (0, 1, 2, 1, 0, 2, 0):
        with models.using(models.names[number]) as active:
            torch.testing.assert_close(active.model(IDS)["logits"], logits[number], atol=1e-4, rtol=1e-4)


def test_requests_at_once_never_get_each_others_numbers(models):
    expected = {name: whole(models, form(name, name))[0] for name in models.names}
    texts = {answer.text for answer in expected.values()}
    assert len(texts) == 3
    wrong: list[str] = []

    def request(number: int) -> None:
        name, other = models.names[number % 3], models.names[(number + 1) % 3]
        one, two = whole(models, form(name, other))
        if one != expected[name] or two != expected[other]:
            wrong.append(name)

    threads = [threading.Thread(target=request, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_abandoned_answer_holds_nothing(models):
    steps = answers(models, form(models.base, HOSTILE), (0, 1), ((), ()))
    next(steps)
    assert not models._lock.locked()
    del steps
    with models.using(models.base):
        pass


def test_branching_keeps_what_stands_before(models):
    (answer, _) = whole(models, form(models.base, models.base))
    alternative = answer.tokens[3].alternatives[1]
    begun = [*(token.id for token in answer.tokens[:3]), alternative.id]
    *_, (_, branched) = answers(models, form(models.base, models.base), (0,), (begun,))
    for one, other in zip(branched.tokens[:3], answer.tokens[:3], strict=True):
        assert one.id == other.id and one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
    assert branched.tokens[3].id == alternative.id
    assert branched.tokens[3].log_prob == pytest.approx(alternative.log_prob, abs=1e-4)


def test_every_kind_of_confidence_is_a_probability_or_missing(models):
    for elicitation in ("two_stage", "one_stage"):
        asked = form(models.base, HOSTILE, samples=3, elicitation=elicitation)
        for answer in whole(models, asked):
            answer = token_figure(answer, "minimum")
            for kind in KINDS:
                if kind != "token":
                    answer = further(models, asked, answer, kind)
                found = answer.figure(kind)
                assert found is not None and (found.value is None or 0 <= found.value <= 1)
            assert len(answer.samples) == 3


def test_options_have_the_evaluations_probabilities(models, folders, tiny_folder):
    draw = np.random.default_rng(0)
    words = ["the", "and", "inner", "order", "thin", "anther", "error", "is"]
    questions = tuple(
        MultipleChoice(str(n), f"{' '.join(draw.choice(words, 3))}?", tuple(draw.permutation(words)[:4]), 0)
        for n in range(20)
    )
    for name, folder in ((models.base, None), (HOSTILE, folders[1])):
        model, tokenizer = load_model(str(tiny_folder))
        loaded = model if folder is None else load_adapter(model, folder)
        asked: Any = {"form": "cloze", "style": "plain", "score": "token"}
        (found,) = answer_sets(
            loaded, tokenizer, [QuestionSet("x", "test", questions)], max_length=512, **asked
        )
        for question, row in zip(questions, found.confidence.log_probs, strict=True):
            assert choose(models, name, question, **asked).probabilities == pytest.approx(
                np.exp(row), abs=1e-4
            )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda models: form(models.base, models.base, max_tokens=10_000), "max_tokens"),
        (lambda models: Form(" ", models.base, models.base), "no question"),
        (lambda models: Form("x" * 3000, models.base, models.base), "characters"),
        (lambda models: whole(models, form("../../etc", models.base)), "no model"),
        (lambda models: read_question("q", "\n".join("abcdefghijkl"), None), "12 options"),
        (lambda models: read_question("q", "only one", None), "at least two"),
        (
            lambda models: choose(models, models.base, read_question("q", "a\nb", None), **BAD),
            "'x' is not offered",
        ),
    ],
)
def test_limits_are_refused_in_one_line(models, make, message):
    with pytest.raises(CalibrantError, match=message) as caught:
        make(models)
    assert "\n" not in str(caught.value)


def test_two_adapters_of_one_name_are_refused(folders, tiny_folder):
    with pytest.raises(CalibrantError, match="two models are called first"):
        load_models(str(tiny_folder), [folders[0], folders[0]])
