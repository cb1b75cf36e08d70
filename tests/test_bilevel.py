"""Where the solvers' steps of α point, and where their runs end, on bilevel problems with a known answer."""

from functools import partial

import pytest
import torch
from bilevel_problems import DOUBLE, PROBLEMS, end, flat, normal, optimum, oracle, quadratic, ridge, run
from exact_hypergradient import exact

from toolkit.calibration.bilevel import State
from toolkit.calibration.solvers import bome, finite_difference, iterate, penalty


def hypergradient(problem, alpha, theta=None):
    theta = problem.solution(alpha) if theta is None else theta
    return flat(exact(oracle(problem.lower), oracle(problem.upper), theta, alpha, State()).alpha)


def moved(problem, seed, size=0.5):
    """The problem with another α to start from."""
    generator = torch.Generator().manual_seed(seed)
    for a in problem.alpha:
        a += size * normal(generator, *a.shape)
    return problem


def distances(name, alpha):
    """How far α is from the optimum, in α and in F(θ*(α), α), as shares of how far the start is."""
    (best, least), problem = optimum(name), PROBLEMS[name]()
    by_alpha = (flat(alpha) - flat(best)).norm() / (flat(problem.alpha) - flat(best)).norm()
    return float(by_alpha), (problem.outer(alpha) - least) / (problem.outer(problem.alpha) - least)


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_hypergradient_is_the_quadratics_closed_form(seed):
    problem, m, c, r = quadratic(seed)
    (alpha,) = problem.alpha
    found = hypergradient(problem, [alpha])
    assert torch.allclose(found, m.T @ (m @ alpha - c) + r * alpha, rtol=1e-8)


def test_the_exact_hypergradient_is_that_through_ridge_regressions_solution():
    problem = moved(ridge(), seed=3)
    alpha = [problem.alpha[0].clone().requires_grad_()]
    (through,) = torch.autograd.grad(problem.upper(problem.solution(alpha), alpha), alpha)
    assert torch.allclose(hypergradient(problem, problem.alpha), through, rtol=1e-6)


def test_the_exact_hypergradient_is_the_difference_of_logistic_regressions_solutions():
    problem = moved(PROBLEMS["logit_adjustment"](), seed=3)
    point, h = flat(problem.alpha), 1e-4

    def outer(vector):
        return problem.outer(list(vector.split([3, 3])))

    axes = h * torch.eye(len(point), dtype=DOUBLE)
    differences = [(outer(point + axis) - outer(point - axis)) / (2 * h) for axis in axes]
    assert torch.allclose(
        hypergradient(problem, problem.alpha), torch.tensor(differences, dtype=DOUBLE), rtol=1e-5
    )


def test_the_exact_solver_moves_theta_to_the_lower_levels_solution():
    problem, *_ = quadratic()
    theta = [t + 1 for t in problem.solution(problem.alpha)]
    found = exact(oracle(problem.lower), oracle(problem.upper), theta, problem.alpha, state := State())
    assert torch.allclose(theta[0] - found.theta[0], problem.solution(problem.alpha)[0], rtol=1e-8)
    assert state.steps == 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_hypergradient_vanishes_at_scipys_optimum(name):
    best, _ = optimum(name)
    assert hypergradient(PROBLEMS[name](), best).norm() < 1e-5


def of(solver, problem):
    """A solver with settings for this problem, and its step length of θ."""
    lr = problem.theta_lr
    return {
        "bome": (partial(bome, inner_steps=10, inner_lr=lr, eta=0.5), 0.02),
        "bome, eta 5": (partial(bome, inner_steps=10, inner_lr=lr, eta=5.0), 0.02),
        "penalty": (partial(penalty, kappa=10.0), lr / 10),
        "penalty, kappa 100": (partial(penalty, kappa=100.0), lr / 100),
        "finite_difference": (partial(finite_difference, inner_lr=2 * lr), lr),
    }[solver]


LEAST_COSINE = {
    "quadratic": {
        "bome": 0.97,
        "bome, eta 5": 0.998,
        "penalty": 0.998,
        "penalty, kappa 100": 0.9999,
        "finite_difference": 0.60,
    },
    "ridge": {
        "bome": 0.998,
        "bome, eta 5": 0.999,
        "penalty": 0.999,
        "penalty, kappa 100": 0.9999,
        "finite_difference": 0.96,
    },
    "logit_adjustment": {
        "bome": 0.99,
        "bome, eta 5": 0.999,
        "penalty": 0.97,
        "penalty, kappa 100": 0.999,
        "finite_difference": 0.92,
    },
}


@pytest.mark.parametrize("solver", LEAST_COSINE["ridge"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_step_of_alpha_points_along_the_exact_hypergradient(name, solver):
    """α is held at each of three places while θ and θ̂ settle; steps are averaged, since BOME's λ switches."""
    cosines = []
    for seed in range(3):
        problem = moved(PROBLEMS[name](), seed)
        solve, theta_lr = of(solver, problem)
        steps = [flat(found.alpha) for *_, found in run(problem, solve, 300, theta_lr, alpha_lr=0.0)]
        mean, true = torch.stack(steps[200:]).mean(0), hypergradient(problem, problem.alpha)
        cosines.append(float(torch.cosine_similarity(mean, true, 0)))
    assert min(cosines) > LEAST_COSINE[name][solver], cosines


FARTHEST = {  # in α and in F, as shares of the start's
    "quadratic": {"bome": (0.05, 0.003), "penalty": (0.015, 2e-4), "finite_difference": (0.05, 0.02)},
    "ridge": {"bome": (0.10, 0.007), "penalty": (0.025, 2e-4), "finite_difference": (0.26, 0.035)},
    "logit_adjustment": {"bome": (0.06, 0.004), "penalty": (0.02, 5e-4), "finite_difference": (0.06, 0.005)},
}


@pytest.mark.parametrize("solver", ["bome", "penalty", "finite_difference"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_ends_at_the_known_optimum(name, solver):
    problem = PROBLEMS[name]()
    lr = problem.theta_lr
    solve, theta_lr = {
        "bome": (partial(bome, inner_steps=5, inner_lr=lr), 0.1),
        "penalty": (partial(penalty, kappa=20.0), lr / 20),
        "finite_difference": (partial(finite_difference, inner_lr=2 * lr), lr),
    }[solver]
    found = distances(name, end(problem, solve, 1000, theta_lr))
    farthest = FARTHEST[name][solver]
    assert found[0] < farthest[0] and found[1] < farthest[1], found


@pytest.mark.parametrize("settings", [{"inner_steps": 10}, {"warm_start": True}])
def test_bome_ends_at_the_optimum_where_the_lower_level_is_ill_conditioned(settings):
    """Curvatures from 0.13 to 1.7."""
    problem, m, c, r = quadratic()
    moved(problem, seed=1, size=3.0)
    best = torch.linalg.solve(m.T @ m + r * torch.eye(4, dtype=DOUBLE), m.T @ c)
    far = (problem.alpha[0] - best).norm() / best.norm()
    (alpha,) = end(problem, partial(bome, inner_lr=0.3, eta=0.5, **settings), 1000, theta_lr=0.1)
    distance = (alpha - best).norm() / best.norm()
    assert far > 1 and distance < 0.15, f"{distance:.3f} of |α*| away, {far:.3f} at the start"


@pytest.mark.parametrize("name", PROBLEMS)
def test_without_the_coupling_a_run_ends_elsewhere(name):
    """`iterate` with the steps by which `bome` arrives: only F's own dependence on α moves α."""
    problem = PROBLEMS[name]()
    by_alpha, by_value = distances(name, end(problem, iterate, 2000, 0.1))
    assert by_alpha > 0.6 and by_value > 0.8, (by_alpha, by_value)


def settled(problem, kappa):
    """The penalty method's step of α where θ minimises F + κL and θ̂ minimises L, on a quadratic."""
    hat, alpha, state = problem.start()

    def together(t, a):
        return problem.upper(t, a) + kappa * problem.lower(t, a)

    move = exact(oracle(together), oracle(problem.upper), hat, alpha, State())  # Newton's
    theta = [t - d for t, d in zip(hat, move.theta, strict=True)]
    found = penalty(oracle(problem.lower), oracle(problem.upper), theta, alpha, state, kappa=kappa)
    assert all(d.norm() < 1e-9 for d in [*found.theta, *found.theta_hat])
    return flat(found.alpha)


def test_the_penaltys_bias_is_one_in_kappa():
    problem, *_ = quadratic()
    true = hypergradient(problem, problem.alpha)
    errors = [float((settled(problem, kappa) - true).norm() / true.norm()) for kappa in (1e2, 1e3, 1e4)]
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.1)
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.02)


def test_a_run_of_the_penalty_method_ends_nearer_with_a_larger_or_a_growing_kappa():
    lr = PROBLEMS["quadratic"]().theta_lr / 20
    growing = partial(penalty, kappa=2.0, growth=0.02, kappa_max=20.0)
    solvers = [partial(penalty, kappa=2.0), partial(penalty, kappa=20.0), growing]
    small, large, grown = (
        distances("quadratic", end(PROBLEMS["quadratic"](), s, 1000, lr))[0] for s in solvers
    )
    assert large < 0.5 * small and grown < 0.5 * small


def test_a_finite_differences_bias_is_that_of_a_step_in_the_place_of_the_inverse_curvature():
    errors = {}
    for spread in (0.5, 0.05, 0.005):
        problem, m, c, r = quadratic(spread=spread)
        true = hypergradient(problem, problem.alpha)
        theta, alpha, state = problem.start()
        for inner_lr in (0.05, 0.5):  # the curvatures are around 2
            found = finite_difference(
                oracle(problem.lower), oracle(problem.upper), theta, alpha, state, inner_lr=inner_lr
            )
            errors[spread, inner_lr] = float((flat(found.alpha) - true).norm() / true.norm())
    assert errors[0.05, 0.5] == pytest.approx(errors[0.5, 0.5] / 10, rel=0.5)
    assert errors[0.005, 0.5] == pytest.approx(errors[0.05, 0.5] / 10, rel=0.1)
    assert all(errors[spread, 0.05] > 0.8 for spread in (0.5, 0.05, 0.005))


def test_a_finite_difference_is_exact_where_one_step_solves_the_lower_level():
    """With a lower Hessian of A'A = 2 I, one step of 1/2 ahead ends at θ*(α)."""
    problem, m, c, r = quadratic(spread=0.0)
    best = torch.linalg.solve(m.T @ m + r * torch.eye(4, dtype=DOUBLE), m.T @ c)
    solve = partial(finite_difference, inner_lr=0.5)
    first = solve(oracle(problem.lower), oracle(problem.upper), *problem.start())
    assert torch.allclose(flat(first.alpha), hypergradient(problem, problem.alpha))
    far = (problem.alpha[0] - best).norm() / best.norm()
    (alpha,) = end(problem, solve, 2000, theta_lr=0.3, alpha_lr=0.1)
    distance = (alpha - best).norm() / best.norm()
    assert far > 1 and distance < 1e-3, f"{distance:.4f} of |α*| away, {far:.3f} at the start"
