"""The fitted temperature: known optimum, another optimiser, and the identity that it stands for."""

import numpy as np
import pytest
import torch

from toolkit.calibration.baselines import fit_temperature, temper
from toolkit.evaluation.metrics import entropy, nll


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
