"""One step of each solver against autograd and the papers' formulas, what it costs and leaves alone."""

from functools import partial

import pytest
import torch
from bilevel_problems import DOUBLE, flat, normal, oracle, quadratic

from toolkit.calibration.bilevel import State
from toolkit.calibration.solvers import bome, descend, descend_alpha, finite_difference, iterate, penalty

BILEVEL = [bome, penalty, finite_difference, iterate]


def quartic(seed=0, n=4):
    """L = Σ (Aθ − Bα)⁴ / 4 + |θ|² / 2, whose mixed second derivative is no constant, and F of both.

    θ and α are two tensors each.
    """
    g = torch.Generator().manual_seed(seed)
    a, b = normal(g, n, n), normal(g, n, n)

    def lower(t, x):
        return 0.25 * (a @ flat(t) - b @ flat(x)).pow(4).sum() + 0.5 * flat(t).square().sum()

    def upper(t, x):
        return (flat(t) * flat(t).tanh()).sum() + 0.3 * (flat(t).flip(0) * flat(x)).sum()

    return lower, upper


def start(seed=1):
    """θ, α and a state whose θ̂ is elsewhere."""
    g = torch.Generator().manual_seed(seed)
    theta, alpha = [normal(g, 1, 2), normal(g, 2)], [normal(g, 3), normal(g, 1)]
    return theta, alpha, State([normal(g, 1, 2), normal(g, 2)])


def gradients(function, theta, alpha):
    """The value of a plain function and its gradients by θ and α, each as one vector."""
    t, a = ([x.clone().requires_grad_() for x in tensors] for tensors in (theta, alpha))
    value = function(t, a)
    found = torch.autograd.grad(value, [*t, *a], allow_unused=True)
    full = [torch.zeros_like(x) if g is None else g for x, g in zip([*t, *a], found, strict=True)]
    return value.detach(), flat(full[: len(t)]), flat(full[len(t) :])


def copies(tensors):
    return [tensor.clone() for tensor in tensors]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("barrier", ["gradient", "value"])
@pytest.mark.parametrize("inner_steps", [1, 5, 10])
@pytest.mark.parametrize("eta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("warm_start", [False, True])
def test_lambda_and_direction_are_bomes(eta, inner_steps, barrier, warm_start):
    lower, upper = quartic()
    theta, alpha, state = start()
    t_hat = copies(state.theta_hat if warm_start else theta)
    found = bome(
        oracle(lower), oracle(upper), theta, alpha, state, inner_steps=inner_steps, inner_lr=0.01, eta=eta,
        barrier=barrier, warm_start=warm_start,
    )  # fmt: skip

    for _ in range(inner_steps):
        t_hat = [t.requires_grad_() for t in t_hat]
        slope = torch.autograd.grad(lower(t_hat, alpha), t_hat)
        t_hat = [(t - 0.01 * g).detach() for t, g in zip(t_hat, slope, strict=True)]
    assert torch.allclose(flat(state.theta_hat), flat(t_hat))

    q, *gq = gradients(lambda t, a: lower(t, a) - lower(t_hat, a), theta, alpha)  # θ̂ is a constant
    value, *gf = gradients(upper, theta, alpha)
    gq, gf = torch.cat(gq), torch.cat(gf)
    phi = eta * (gq @ gq if barrier == "gradient" else q.clamp(min=0))
    weight = torch.clamp((phi - gf @ gq) / (gq @ gq + 1e-8), min=0)
    direction = flat([*found.theta, *found.alpha])
    assert found.record["lambda"] == pytest.approx(weight.item(), rel=1e-6)
    assert found.record["q"] == pytest.approx(q.item())
    assert found.record["upper"] == pytest.approx(value.item())
    assert found.record["grad_q"] == pytest.approx(gq.norm().item())
    assert found.record["cosine"] == pytest.approx(torch.cosine_similarity(gf, gq, 0).item())
    assert torch.allclose(direction, gf + weight * gq)
    assert direction @ gq >= phi - 1e-6
    assert found.theta_hat == []


@pytest.mark.parametrize(
    ("steps", "settings", "kappa"),
    [
        (0, {}, 3.0),
        (7, {}, 3.0),
        (0, {"growth": 0.5}, 3.0),
        (7, {"growth": 0.5}, 13.5),
        (7, {"growth": 0.5, "kappa_max": 10.0}, 10.0),
    ],
)
def test_kappa_and_directions_are_the_penaltys(steps, settings, kappa):
    lower, upper = quartic()
    theta, alpha, state = start()
    state.steps = steps
    found = penalty(oracle(lower), oracle(upper), theta, alpha, state, kappa=3.0, **settings)

    here, by_theta, by_alpha = gradients(lower, theta, alpha)
    there, hat_by_theta, hat_by_alpha = gradients(lower, state.theta_hat, alpha)
    value, f_by_theta, f_by_alpha = gradients(upper, theta, alpha)
    assert torch.allclose(flat(found.theta), f_by_theta + kappa * by_theta)
    assert torch.allclose(flat(found.alpha), f_by_alpha + kappa * (by_alpha - hat_by_alpha))
    assert torch.allclose(flat(found.theta_hat), kappa * hat_by_theta)
    grad_q, grad_f = torch.cat([by_theta, by_alpha - hat_by_alpha]), torch.cat([f_by_theta, f_by_alpha])
    assert found.record == pytest.approx(
        {
            "lower": here.item(),
            "upper": value.item(),
            "q": (here - there).item(),
            "kappa": kappa,
            "grad_q": grad_q.norm().item(),
            "cosine": torch.cosine_similarity(grad_f, grad_q, 0).item(),
        }
    )


def test_without_an_upper_level_the_penaltys_theta_and_theta_hat_keep_together_and_alpha_rests():
    """However far α has moved away from both: what they lag behind by is no reason to move α."""
    problem, *_ = quadratic()
    theta, _, state = problem.start()
    alpha = [a + 1 for a in problem.alpha]
    lower, upper = oracle(problem.lower), oracle(lambda t, a: 0 * (t[0].sum() + a[0].sum()))
    for _ in range(5):
        found = penalty(lower, upper, theta, alpha, state, kappa=10.0)
        assert found.theta[0].norm() > 1e-3 and not found.alpha[0].any()
        theta = [theta[0] - 0.03 * found.theta[0]]
        state.theta_hat[0] -= 0.03 * found.theta_hat[0]


@pytest.mark.parametrize("inner_lr", [0.0, 0.05, 0.7])
def test_a_finite_difference_is_the_mixed_second_derivative(inner_lr):
    lower, upper = quartic()
    theta, alpha, state = start()
    found = finite_difference(
        oracle(lower), oracle(upper), theta, alpha, state, inner_lr=inner_lr, epsilon=1e-4
    )
    value, v, direct = gradients(upper, theta, alpha)
    t, a = ([x.clone().requires_grad_() for x in tensors] for tensors in (theta, alpha))
    slope = flat(torch.autograd.grad(lower(t, a), t, create_graph=True))
    mixed = flat(torch.autograd.grad(slope @ v, a))  # ∂²_{αθ} L · v
    assert torch.allclose(flat(found.alpha), direct - inner_lr * mixed, rtol=1e-5)
    assert torch.allclose(flat(found.theta), slope.detach())
    assert found.record["grad_f"] == pytest.approx(v.norm().item())
    assert found.record["upper"] == pytest.approx(value.item())
    assert found.theta_hat == []


def test_iterate_takes_the_levels_in_turn():
    lower, upper = quartic()
    theta, alpha, state = start()
    first, second, third = (iterate(oracle(lower), oracle(upper), theta, alpha, state) for _ in range(3))
    here, by_theta, _ = gradients(lower, theta, alpha)
    value, f_by_theta, f_by_alpha = gradients(upper, theta, alpha)
    for found in (first, third):
        assert torch.allclose(flat(found.theta), by_theta) and found.alpha == []
        assert found.record == {"lower": here.item()}
    assert torch.allclose(flat(second.theta), f_by_theta)
    assert torch.allclose(flat(second.alpha), f_by_alpha)
    assert second.record == {"upper": value.item()}


def test_a_resumed_iterate_goes_on_with_the_level_whose_turn_it_is():
    lower, upper = quartic()
    theta, alpha, _ = start()
    found = iterate(oracle(lower), oracle(upper), theta, alpha, State(steps=3))
    assert list(found.record) == ["upper"]


@pytest.mark.parametrize("wrt", ["theta", "alpha"])
def test_the_descents_are_gradients_of_the_lower_level_and_leave_the_other_variable(wrt):
    lower, _ = quartic()
    theta, alpha, _ = start()
    asked: list[str] = []
    found = (descend if wrt == "theta" else descend_alpha)(oracle(lower, asked), theta, alpha)
    value, by_theta, by_alpha = gradients(lower, theta, alpha)
    moved, stays = (found.theta, found.alpha) if wrt == "theta" else (found.alpha, found.theta)
    assert torch.allclose(flat(moved), by_theta if wrt == "theta" else by_alpha)
    assert stays == [] and asked == [wrt]
    assert found.record == {"lower": value.item()}


@pytest.mark.parametrize(
    ("solve", "of_lower", "of_upper"),
    [
        (partial(bome, inner_steps=1), ["both", "alpha"], ["both"]),
        (partial(bome, inner_steps=3), ["both", "theta", "theta", "alpha"], ["both"]),
        (partial(bome, inner_steps=1, warm_start=True), ["both", "theta", "alpha"], ["both"]),
        (penalty, ["both", "both"], ["both"]),
        (finite_difference, ["theta", "alpha", "alpha"], ["both"]),
        (iterate, ["theta"], []),
    ],
)
def test_a_solver_asks_for_the_gradients_that_it_uses(solve, of_lower, of_upper):
    lower, upper = quartic()
    lowers: list[str] = []
    uppers: list[str] = []
    theta, alpha, state = start()
    solve(oracle(lower, lowers), oracle(upper, uppers), theta, alpha, state)
    assert lowers == of_lower and uppers == of_upper
    if solve is iterate:
        solve(oracle(lower, lowers), oracle(upper, uppers), theta, alpha, state)
        assert lowers == of_lower and uppers == ["both"]


@pytest.mark.parametrize("solve", BILEVEL)
def test_a_solver_counts_its_step_and_leaves_theta_and_alpha(solve):
    lower, upper = quartic()
    theta, alpha, state = start()
    before = [copies(tensors) for tensors in (theta, alpha, state.theta_hat)]
    for steps in (1, 2):
        solve(oracle(lower), oracle(upper), theta, alpha, state)
        assert equal(theta, before[0]) and equal(alpha, before[1])
        assert state.steps == steps
    assert equal(state.theta_hat, before[2]) == (solve in (penalty, iterate))


@pytest.mark.parametrize("solve", BILEVEL)
def test_the_history_gets_what_the_upper_level_saw(solve):
    lower, upper = quartic()
    theta, alpha, state = start()
    state.steps = 1  # iterate's upper level

    def seeing(theta, alpha, wrt="both"):
        found = oracle(upper)(theta, alpha, wrt)
        found.record["entropy"] = 0.5
        return found

    assert solve(oracle(lower), seeing, theta, alpha, state).record["entropy"] == 0.5


def test_lambda_stays_finite_where_grad_q_vanishes():
    problem, *_ = quadratic()
    lower, upper = oracle(problem.lower), oracle(problem.upper)
    theta, alpha, state = problem.start()  # at the lower level's solution q and ∇q are 0
    found = bome(lower, upper, theta, alpha, state, eta=0.5)
    assert torch.allclose(found.theta[0], upper(theta, alpha).theta[0], atol=1e-6)
    assert torch.isfinite(flat([*found.theta, *found.alpha])).all()
    theta = [theta[0] + 1e-5 * normal(torch.Generator().manual_seed(0), 4)]
    free = bome(lower, upper, theta, alpha, state, eta=0.5)
    capped = bome(lower, upper, theta, alpha, state, eta=0.5, lambda_max=2.0)
    assert free.record["lambda"] > 100 and capped.record["lambda"] == 2.0


def test_the_penalty_method_stays_finite_where_grad_q_vanishes():
    problem, *_ = quadratic()
    upper = oracle(problem.upper)
    theta, alpha, state = problem.start()
    found = penalty(oracle(problem.lower), upper, theta, alpha, state, kappa=1e3)
    objective = upper(theta, alpha)
    assert torch.allclose(found.theta[0], objective.theta[0])
    assert torch.allclose(found.alpha[0], objective.alpha[0])
    assert found.theta_hat[0].norm() < 1e-9
    assert torch.isfinite(torch.tensor(list(found.record.values()), dtype=DOUBLE)).all()


def test_a_finite_difference_of_nothing_is_nothing():
    lower, _ = quartic()
    theta, alpha, state = start()
    found = finite_difference(
        oracle(lower), oracle(lambda t, a: 0 * (flat(t).sum() + flat(a).sum())), theta, alpha, state
    )
    assert not flat(found.alpha).any() and torch.isfinite(flat(found.theta)).all()
