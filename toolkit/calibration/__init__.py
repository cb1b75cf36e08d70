"""How a model learns: parametric losses, upper objectives, bilevel solvers and the training loop."""
