"""How sure a model is of its answers."""
