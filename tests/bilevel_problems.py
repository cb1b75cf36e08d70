"""Bilevel problems small enough to have a known answer, with their oracles, and runs on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from scipy.optimize import minimize
from torch import Tensor

from toolkit.calibration.bilevel import Gradient, State, Tensors

DOUBLE = torch.float64


@dataclass(frozen=True)
class Problem:
    """L(θ; α) and F(θ, α) as plain functions, θ*(α), a start, and how long steps of θ and α may be."""

    lower: Callable[[Tensors, Tensors], Tensor]
    upper: Callable[[Tensors, Tensors], Tensor]
    solution: Callable[[Tensors], list[Tensor]]
    alpha: list[Tensor]
    theta_lr: float
    alpha_lr: float

    def outer(self, alpha):
        """F(θ*(α), α)."""
        return float(self.upper(self.solution(alpha), alpha))

    def start(self):
        """θ*(α) at the start, α there, and a state whose θ̂ is θ."""
        theta = self.solution(self.alpha)
        return theta, [a.clone() for a in self.alpha], State([t.clone() for t in theta])


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def oracle(function, asked=None):
    """Makes an oracle of a plain function by autograd, which gives only what it is asked for."""

    def evaluate(theta, alpha, wrt="both"):
        if asked is not None:
            asked.append(wrt)
        t = [x.detach().clone().requires_grad_(wrt != "alpha") for x in theta]
        a = [x.detach().clone().requires_grad_(wrt != "theta") for x in alpha]
        inputs = [x for x in [*t, *a] if x.requires_grad]
        value = function(t, a)
        found = (
            torch.autograd.grad(value, inputs, allow_unused=True)
            if value.requires_grad
            else [None] * len(inputs)
        )
        full = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
        split = len(t) if wrt != "alpha" else 0
        return Gradient(value.detach(), full[:split], full[split:])

    return evaluate


def quadratic(seed=0, n=4, spread=None):
    """L = |Aθ − Bα|² / 2 and F = |θ − c|² / 2 + r|α|² / 2, with θ*(α) = A⁻¹Bα.

    With a spread s, the eigenvalues of L's Hessian A'A lie between 2(1 − s) and 2(1 + s).
    """
    g = torch.Generator().manual_seed(seed)
    a = torch.eye(n, dtype=DOUBLE) + 0.2 * normal(g, n, n)
    if spread is not None:
        a = (
            torch.linspace(2 * (1 - spread), 2 * (1 + spread), n, dtype=DOUBLE).sqrt().diag()
            @ torch.linalg.qr(a)[0]
        )
    b, c, r = normal(g, n, n), normal(g, n), 0.1
    m = torch.linalg.solve(a, b)
    problem = Problem(
        lambda t, x: 0.5 * (a @ t[0] - b @ x[0]).square().sum(),
        lambda t, x: 0.5 * (t[0] - c).square().sum() + 0.5 * r * x[0].square().sum(),
        lambda x: [m @ x[0]],
        [normal(g, n)],
        theta_lr=0.3,
        alpha_lr=0.1,
    )
    return problem, m, c, r


def ridge(seed=0, n=5, examples=20):
    """Ridge regression whose α are log penalties, one a feature; F is the validation error.

    Two of the features are noise. A weak prior on α in F keeps their penalties finite.
    """
    g = torch.Generator().manual_seed(seed)
    truth = torch.tensor([1.0, -0.7, 0.4, 0.0, 0.0], dtype=DOUBLE)[:n]

    def sample(count):
        x = normal(g, count, n)
        return x, x @ truth + 0.5 * normal(g, count)

    (x, y), (held_x, held_y) = sample(examples), sample(200)
    prior = 0.005

    def lower(t, a):
        return 0.5 * (x @ t[0] - y).square().mean() + 0.5 * (a[0].exp() * t[0].square()).sum()

    def upper(t, a):
        return 0.5 * (held_x @ t[0] - held_y).square().mean() + 0.5 * prior * a[0].square().sum()

    def solution(a):
        return [torch.linalg.solve(x.T @ x / examples + a[0].exp().diag(), x.T @ y / examples)]

    return Problem(lower, upper, solution, [torch.zeros(n, dtype=DOUBLE)], theta_lr=0.2, alpha_lr=1.0)


def logit_adjustment(seed=0, classes=3, features=2):
    """Logistic regression on unbalanced classes under a VS loss (arXiv 2103.01550), α = (log Δ, ι).

    F is the balanced validation cross-entropy of raw logits, with a weak prior on α.
    """
    g = torch.Generator().manual_seed(seed)
    centres = 1.5 * normal(g, classes, features)

    def sample(counts):
        y = torch.repeat_interleave(torch.arange(classes), torch.tensor(counts))
        return centres[y] + normal(g, len(y), features), y

    (x, y), (held_x, held_y) = sample([40, 15, 5]), sample([40, 40, 40])
    decay, prior = 0.3, 0.01

    def lower(t, a):
        logits = a[0].exp() * (x @ t[0].T + t[1]) + a[1]
        weights = t[0].square().sum() + t[1].square().sum()
        return torch.nn.functional.cross_entropy(logits, y) + 0.5 * decay * weights

    def upper(t, a):
        spread = a[0].square().sum() + a[1].square().sum()
        return torch.nn.functional.cross_entropy(held_x @ t[0].T + t[1], held_y) + 0.5 * prior * spread

    def solution(a):  # Newton's method, with derivatives by hand
        scale, rows = a[0].exp(), torch.cat([x, torch.ones(len(x), 1, dtype=DOUBLE)], 1)
        weights = torch.zeros(classes, features + 1, dtype=DOUBLE)
        identity = torch.eye(weights.numel(), dtype=DOUBLE)
        for _ in range(50):
            p = (scale * (rows @ weights.T) + a[1]).softmax(-1)
            error = (p - torch.nn.functional.one_hot(y, classes)) * scale
            slope = error.T @ rows / len(x) + decay * weights
            if slope.norm() < 1e-13:
                break
            curvature = (torch.diag_embed(p) - p[:, :, None] * p[:, None]) * scale[:, None] * scale
            hessian = torch.einsum("nkl,ni,nj->kilj", curvature, rows, rows) / len(x)
            move = torch.linalg.solve(hessian.reshape(identity.shape) + decay * identity, slope.flatten())
            weights = weights - move.view_as(weights)
        assert slope.norm() < 1e-10
        return [weights[:, :features].clone(), weights[:, features].clone()]

    start = [torch.zeros(classes, dtype=DOUBLE) for _ in range(2)]
    return Problem(lower, upper, solution, start, theta_lr=0.7, alpha_lr=1.0)


PROBLEMS = {
    "quadratic": lambda: quadratic(spread=0.5)[0],
    "ridge": ridge,
    "logit_adjustment": logit_adjustment,
}


@cache
def optimum(name):
    """The problem's α* by scipy, on F(θ*(α), α) with differences of its values, and F there."""
    problem = PROBLEMS[name]()
    sizes = [a.numel() for a in problem.alpha]

    def outer(vector):
        return problem.outer(list(torch.from_numpy(vector).split(sizes)))

    found = minimize(
        outer, torch.cat(problem.alpha).numpy(), jac="3-point", method="BFGS", options={"gtol": 1e-7}
    )
    return list(torch.from_numpy(found.x).split(sizes)), float(found.fun)


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def run(problem, solve, steps, theta_lr, alpha_lr):
    """Gradient descent from the problem's start, in steps that get shorter; yields θ, α and the direction."""
    theta, alpha, state = problem.start()
    lower, upper = oracle(problem.lower), oracle(problem.upper)
    for step in range(steps):
        found = solve(lower, upper, theta, alpha, state)
        rate = 1 / (1 + 3 * step / steps)
        for tensors, directions, lr in (
            (theta, found.theta, theta_lr),
            (state.theta_hat, found.theta_hat, theta_lr),
            (alpha, found.alpha, alpha_lr),
        ):
            for tensor, d in zip(tensors, directions, strict=bool(directions)):  # no direction: it stays
                tensor -= rate * lr * d
        yield theta, alpha, found


def end(problem, solve, steps, theta_lr, alpha_lr=None):
    """α at the end of a run, at the problem's own step length of α unless another is given."""
    *_, (_, alpha, _) = run(problem, solve, steps, theta_lr, alpha_lr or problem.alpha_lr)
    return alpha
