"""Post-hoc baselines: temperature, with its known optimum and its identity, and contextual calibration."""

import numpy as np
import pytest
import torch

from toolkit.calibration.baselines import contextual, fit_temperature, temper
from toolkit.evaluation.metrics import entropy, nll
from toolkit.questions.content_free import content_free
from toolkit.questions.prompts import answer_texts, question_text
from toolkit.questions.question import MultipleChoice, OpenEnded, QuestionSet


def simulated(temperature: float, n: int = 40_000, seed: int = 0):
    """Answers drawn from softmax(s), and the log-probabilities of softmax(s · temperature)."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(n, 4)) * 2
    answers = (scores + generator.gumbel(size=scores.shape)).argmax(1)
    return temper(scores, 1 / temperature), answers


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_temperature_is_found(temperature):
    log_probs, answers = simulated(temperature)
    assert fit_temperature(log_probs, answers) == pytest.approx(temperature, rel=0.03)


def test_another_optimiser_finds_the_same():
    log_probs, answers = simulated(2.5, n=500)
    scores, labels = torch.tensor(log_probs), torch.tensor(answers)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], max_iter=100, tolerance_grad=1e-10)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores / log_t.exp(), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert log_t.item() != 0
    assert fit_temperature(log_probs, answers) == pytest.approx(log_t.exp().item(), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.7, 4.0])
def test_mean_entropy_is_mean_nll_at_the_fitted_temperature(temperature):
    log_probs, answers = simulated(temperature, n=300)
    assert abs(entropy(log_probs) - nll(log_probs, answers)) > 0.05
    fitted = temper(log_probs, fit_temperature(log_probs, answers))
    assert entropy(fitted) == pytest.approx(nll(fitted, answers), abs=1e-5)


def test_absent_options_stay_absent_and_limits_hold():
    log_probs = np.array([[np.log(0.7), np.log(0.3), -np.inf], np.log([0.2, 0.5, 0.3])])
    assert temper(log_probs, 3.0)[0, 2] == -np.inf
    assert np.exp(temper(log_probs, 3.0)).sum(1) == pytest.approx([1, 1])
    # Always right: the NLL falls towards T = 0 and is 0 to the last bit well before the limit.
    assert 0.01 <= fit_temperature(log_probs, np.array([0, 1])) < 0.05
    assert fit_temperature(log_probs, np.array([1, 0])) == pytest.approx(100.0, rel=1e-3)


def test_contextual_calibration_divides_by_the_mean_of_content_free_prompts():
    probabilities = np.array([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]])
    leanings = np.array([[[0.2, 0.2, 0.6], [0.5, 0.5, 0.0]], [[0.4, 0.2, 0.4], [0.9, 0.1, 0.0]]])
    with np.errstate(divide="ignore"):
        found = np.exp(contextual(np.log(probabilities), [np.log(one) for one in leanings]))
    for row, p in enumerate(probabilities):
        divided = [
            value / np.mean([one[row][k] for one in leanings]) if value else 0 for k, value in enumerate(p)
        ]
        assert found[row] == pytest.approx(np.array(divided) / sum(divided))
    even = np.log(np.full((2, 3), 1 / 3))
    assert contextual(temper(even, 1.0), [even, even]) == pytest.approx(even)


def test_a_content_free_question_says_nothing_of_the_real_one():
    real = MultipleChoice("a", "What is the capital of France?", ("Paris", "Rome"), 0, "geography")
    data = QuestionSet("source", "test", (real, OpenEnded("b", "Why?", ("Because.",))))
    [cloze], [letter] = (content_free(data, form, "N/A") for form in ("cloze", "letter"))
    assert isinstance(cloze, MultipleChoice) and isinstance(letter, MultipleChoice)
    assert question_text(cloze, "cloze") == "N/A" and answer_texts(cloze, "cloze") == ("Paris", "Rome")
    assert question_text(letter, "letter") == "N/A\nA. N/A\nB. N/A"
    assert answer_texts(letter, "letter") == ("A", "B")
    assert cloze.id == letter.id == "a" and cloze.answer == 0
