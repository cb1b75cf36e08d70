"""BOME against autograd, the paper's formula, and bilevel problems whose solution is known."""

import pytest
import torch

from toolkit.calibration.bilevel import Gradient, bome, descend, finite_difference

DOUBLE = torch.float64


def oracle(function):
    """Makes an oracle of a plain function of two tensors, by autograd."""

    def evaluate(theta, alpha, wrt="both"):
        t = [x.detach().clone().requires_grad_() for x in theta]
        a = [x.detach().clone().requires_grad_() for x in alpha]
        value = function(t[0], a[0])
        gradients = torch.autograd.grad(value, [*t, *a], allow_unused=True)
        full = [torch.zeros_like(x) if g is None else g for x, g in zip([*t, *a], gradients, strict=True)]
        return Gradient(
            value.detach(), full[:1] if wrt != "alpha" else [], full[1:] if wrt != "theta" else []
        )

    return evaluate


def quadratic(seed=0, n=4, orthogonal=False):
    """L = |Aθ − Bα|² / 2 and F = |θ − c|² / 2 + r|α|² / 2, with θ*(α) = A⁻¹Bα; orthogonal: A'A = 2 I."""
    g = torch.Generator().manual_seed(seed)
    a = torch.eye(n, dtype=DOUBLE) + 0.2 * torch.randn(n, n, generator=g, dtype=DOUBLE)
    if orthogonal:
        a = 2**0.5 * torch.linalg.qr(a)[0]
    b = torch.randn(n, n, generator=g, dtype=DOUBLE)
    c = torch.randn(n, generator=g, dtype=DOUBLE)
    r = 0.1

    def lower(t, x):
        return 0.5 * (a @ t - b @ x).square().sum()

    def upper(t, x):
        return 0.5 * (t - c).square().sum() + 0.5 * r * x.square().sum()

    m = torch.linalg.solve(a, b)
    best = torch.linalg.solve(m.T @ m + r * torch.eye(n, dtype=DOUBLE), m.T @ c)
    return lower, upper, m, best, c, r


def start(seed=1, n=4):
    g = torch.Generator().manual_seed(seed)
    theta = [torch.randn(n, generator=g, dtype=DOUBLE)]
    return theta, [torch.zeros_like(theta[0])], [torch.randn(n, generator=g, dtype=DOUBLE)]


@pytest.mark.parametrize("barrier", ["gradient", "value"])
@pytest.mark.parametrize("inner_steps", [1, 5, 10])
@pytest.mark.parametrize("eta", [0.1, 0.5, 0.9])
def test_lambda_and_direction_are_the_papers(eta, inner_steps, barrier):
    lower, upper, *_ = quadratic()
    theta, hat, alpha = start()
    before = theta[0].clone(), alpha[0].clone()
    found = bome(
        oracle(lower), oracle(upper), theta, hat, alpha,
        inner_steps=inner_steps, inner_lr=0.1, eta=eta, barrier=barrier,
    )  # fmt: skip
    assert torch.equal(theta[0], before[0]) and torch.equal(alpha[0], before[1])

    t_hat = before[0].clone()
    for _ in range(inner_steps):
        t_hat.requires_grad_()
        (g,) = torch.autograd.grad(lower(t_hat, before[1]), t_hat)
        t_hat = (t_hat - 0.1 * g).detach()
    assert torch.allclose(hat[0], t_hat)
    t, x = (b.clone().requires_grad_() for b in before)
    q = lower(t, x) - lower(t_hat, x)  # θ̂ is a constant
    gq = torch.cat(torch.autograd.grad(q, [t, x]))
    gf = torch.cat(torch.autograd.grad(upper(t, x), [t, x]))
    phi = eta * (gq @ gq if barrier == "gradient" else q.detach())
    weight = torch.clamp((phi - gf @ gq) / (gq @ gq + 1e-8), min=0)
    direction = torch.cat([*found.theta, *found.alpha])
    assert found.record["lambda"] == pytest.approx(weight.item(), rel=1e-6)
    assert found.record["q"] == pytest.approx(q.item())
    assert torch.allclose(direction, gf + weight * gq)
    assert direction @ gq >= phi - 1e-6


@pytest.mark.parametrize("settings", [{"inner_steps": 10}, {"warm_start": True}])
def test_the_run_ends_at_the_known_optimum(settings):
    lower, upper, m, best, *_ = quadratic()
    theta, hat, alpha = start()
    hat[0].copy_(theta[0])
    far = (alpha[0] - best).norm() / best.norm()
    for step in range(1500):
        found = bome(oracle(lower), oracle(upper), theta, hat, alpha, inner_lr=0.3, eta=0.5, **settings)
        rate = 0.1 / (1 + step / 300)
        theta[0] -= rate * found.theta[0]
        alpha[0] -= rate * found.alpha[0]
    distance = (alpha[0] - best).norm() / best.norm()
    assert far > 1 and distance < 0.15, f"{distance:.3f} of |α*| away, {far:.3f} at the start"
    assert (theta[0] - m @ alpha[0]).norm() < 0.1 * theta[0].norm()


@pytest.mark.parametrize(("eta", "least"), [(0.5, 0.9), (5.0, 0.99)])
def test_the_step_of_alpha_points_along_the_exact_hypergradient(eta, least):
    lower, upper, m, _, c, r = quadratic()
    _, hat, alpha = start()
    theta = [m @ alpha[0] + 0.01 * torch.randn(4, dtype=DOUBLE, generator=torch.Generator().manual_seed(5))]
    steps = []
    for _ in range(400):  # θ follows at a fixed α until the barrier, which is stiffer the larger η, holds it
        found = bome(oracle(lower), oracle(upper), theta, hat, alpha, inner_steps=20, inner_lr=0.3, eta=eta)
        theta[0] -= 0.02 * found.theta[0]
        steps.append(found.alpha[0])
    exact = m.T @ (m @ alpha[0] - c) + r * alpha[0]  # dF/dα through θ*(α) = Mα
    mean = torch.stack(steps[300:]).mean(0)
    cosine = (mean @ exact) / (mean.norm() * exact.norm())
    assert cosine > least


def test_lambda_stays_finite_where_grad_q_vanishes():
    lower, upper, m, *_ = quadratic()
    _, hat, alpha = start()
    theta = [m @ alpha[0]]  # at the lower level's solution q and ∇q are 0
    found = bome(oracle(lower), oracle(upper), theta, hat, alpha, eta=0.5)
    f = oracle(upper)(theta, alpha)
    assert torch.allclose(found.theta[0], f.theta[0], atol=1e-6)
    assert torch.isfinite(torch.cat([*found.theta, *found.alpha])).all()
    theta = [theta[0] + 1e-7]
    capped = bome(oracle(lower), oracle(upper), theta, hat, alpha, eta=0.5, lambda_max=2.0)
    assert capped.record["lambda"] <= 2.0


def test_descend_is_the_gradient_of_the_lower_level_and_leaves_alpha():
    lower, *_ = quadratic()
    theta, _, alpha = start()
    found = descend(oracle(lower), theta, alpha)
    assert torch.equal(found.theta[0], oracle(lower)(theta, alpha).theta[0])
    assert found.alpha == []


def quartic(seed=0, n=4):
    """L = Σ (Aθ − Bα)⁴ / 4 + |θ|² / 2, whose mixed second derivative is no constant, and F of both."""
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(n, n, generator=g, dtype=DOUBLE) for _ in range(2))

    def lower(t, x):
        return 0.25 * (a @ t - b @ x).pow(4).sum() + 0.5 * t.square().sum()

    def upper(t, x):
        return (t * t.tanh()).sum() + 0.3 * (t.flip(0) * x).sum()

    return lower, upper


@pytest.mark.parametrize("inner_lr", [0.0, 0.05, 0.7])
def test_a_finite_difference_is_the_mixed_second_derivative(inner_lr):
    lower, upper = quartic()
    theta, hat, alpha = start()
    before = [theta[0].clone(), alpha[0].clone()]
    found = finite_difference(
        oracle(lower), oracle(upper), theta, hat, alpha, inner_lr=inner_lr, epsilon=1e-4
    )
    assert torch.equal(theta[0], before[0]) and torch.equal(alpha[0], before[1])
    t, x = (b.clone().requires_grad_() for b in before)
    v, direct = torch.autograd.grad(upper(t, x), [t, x])
    (slope,) = torch.autograd.grad(lower(t, x), t, create_graph=True)
    (mixed,) = torch.autograd.grad(slope @ v, x)  # ∂²_{αθ} L · v
    assert torch.allclose(found.alpha[0], direct - inner_lr * mixed, rtol=1e-5)
    assert torch.allclose(found.theta[0], slope.detach())
    assert found.record["grad_f"] == pytest.approx(v.norm().item())
    assert found.record["upper"] == pytest.approx(upper(t, x).item())


def test_a_finite_difference_is_exact_where_one_step_solves_the_lower_level():
    """With a lower Hessian of A'A = 2 I, one step of 1/2 ahead ends at θ*(α)."""
    lower, upper, m, best, c, r = quadratic(orthogonal=True)
    _, hat, alpha = start()
    theta = [m @ alpha[0]]
    far = (alpha[0] - best).norm() / best.norm()
    exact = m.T @ (m @ alpha[0] - c) + r * alpha[0]
    first = finite_difference(oracle(lower), oracle(upper), theta, hat, alpha, inner_lr=0.5)
    assert torch.allclose(first.alpha[0], exact)
    for _ in range(4000):
        found = finite_difference(oracle(lower), oracle(upper), theta, hat, alpha, inner_lr=0.5)
        theta[0] -= 0.3 * found.theta[0]
        alpha[0] -= 0.02 * found.alpha[0]
    distance = (alpha[0] - best).norm() / best.norm()
    assert far > 1 and distance < 1e-3, f"{distance:.4f} of |α*| away, {far:.3f} at the start"


def test_a_finite_difference_takes_gradients_by_theta_twice_and_by_alpha_alone_twice():
    asked = []

    def counting(name, function):
        inner = oracle(function)

        def evaluate(theta, alpha, wrt="both"):
            asked.append((name, wrt))
            return inner(theta, alpha, wrt)

        return evaluate

    lower, upper = quartic()
    finite_difference(counting("L", lower), counting("F", upper), *start())
    assert sorted(asked) == [("F", "both"), ("L", "alpha"), ("L", "alpha"), ("L", "theta")]


def test_a_finite_difference_of_nothing_is_nothing():
    lower, _ = quartic()
    theta, hat, alpha = start()
    found = finite_difference(oracle(lower), oracle(lambda t, x: 0 * (t.sum() + x.sum())), theta, hat, alpha)
    assert not found.alpha[0].any() and torch.isfinite(found.theta[0]).all()
