"""The frozen layers below the first adapted one: what they make of a text is computed once and kept.

An adapter on upper layers leaves the hidden states that reach it as they are, whatever it learns. A text that
comes again, in another epoch, for θ̂ after θ, in a validation or with another method, starts at the first
adapted layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


class FrozenPrefix:
    """Hidden states above the frozen layers, by text.

    They are computed for each row by itself, so that they do not depend, to the last bit, on the company in
    which the row came first.

    Attributes:
        layers: The frozen layers, from the lowest on.
        limit: Bytes that may be kept; what does not fit is computed each time.
        taken: Bytes that are kept.
    """

    def __init__(self, layers: list[nn.Module], limit: int) -> None:
        self.layers, self.limit, self.taken = layers, limit, 0
        self._known: dict[bytes, Tensor] = {}

    def hidden(
        self, input_ids: Tensor, position_ids: Tensor, spans: Tensor, run: Callable[[int], object]
    ) -> Tensor | None:
        """Returns the hidden states above the frozen layers, or None where they do not fit.

        Args:
            input_ids: Token ids, shape (B, L).
            position_ids: Position of each token in its text, shape (B, L); with the ids they say what a row
                is, for texts that share a row are laid out branch by branch.
            spans: First column of each row that is no padding, and one past the last, shape (B, 2).
            run: Runs the model on one row without its padding; it is stopped above the frozen layers.

        Returns:
            Shape (B, L, H), 0 where there is padding.
        """
        ids, positions, ends = input_ids.cpu(), position_ids.cpu(), spans.tolist()
        keys = []
        for row, (first, last) in enumerate(ends):
            text = torch.stack([ids[row, first:last], positions[row, first:last]])
            keys.append(text.numpy().tobytes())
            if keys[-1] not in self._known and not self._keep(keys[-1], partial(run, row)):
                return None
        rows = [self._known[key] for key in keys]
        hidden = rows[0].new_zeros(*input_ids.shape, rows[0].shape[-1])
        for row, (known, (first, last)) in enumerate(zip(rows, ends, strict=True)):
            hidden[row, first:last] = known
        return hidden

    @contextmanager
    def replaced(self, hidden: Tensor | None) -> Iterator[None]:
        """Within, the frozen layers do nothing and the last of them gives these hidden states."""
        if hidden is None:
            yield
            return
        before = [layer.__dict__.get("forward") for layer in self.layers]
        for layer in self.layers:
            layer.forward = lambda hidden_states, *_, **__: hidden_states
        self.layers[-1].forward = lambda *_, **__: hidden
        try:
            yield
        finally:
            for layer, forward in zip(self.layers, before, strict=True):
                del layer.__dict__["forward"]
                if forward is not None:
                    layer.forward = forward

    def _keep(self, key: bytes, run: Callable[[], object]) -> bool:
        """Computes and keeps the hidden states of a row, and says whether they fit."""
        if self.taken >= self.limit:
            return False
        handle = self.layers[-1].register_forward_hook(_stop)
        try:
            with torch.no_grad():
                run()
        except _Reached as reached:
            found = reached.hidden[0].clone()
        finally:
            handle.remove()
        self.taken += found.numel() * found.element_size()
        if self.taken > self.limit:
            return False
        self._known[key] = found
        return True


class _Reached(Exception):
    """The frozen layers are done."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _stop(_: nn.Module, __: object, output: object) -> None:
    raise _Reached(output if isinstance(output, Tensor) else output[0])  # type: ignore[index]


def frozen_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the decoder layers below the first adapted one.

    There are none where something else below it is adapted too, or dropped at random in training.
    """
    count = model.config.get_text_config().num_hidden_layers  # type: ignore[union-attr, operator]
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(stacks) != 1:
        return []
    layers = list(stacks[0])
    first = next((number for number, layer in enumerate(layers) if _is_adapted(layer)), 0)
    upper = {id(module) for layer in layers[first:] for module in layer.modules()}
    below = [module for module in model.modules() if id(module) not in upper and not list(module.children())]
    drops = any(_drops(module) for layer in layers[:first] for module in layer.modules())
    if drops or any(_is_adapted(module) or _drops(module) for module in below):
        return []
    return layers[:first]


def _is_adapted(module: nn.Module) -> bool:
    return any("lora_" in name for name, _ in module.named_modules())


def _drops(module: nn.Module) -> bool:
    chance = module.p if isinstance(module, nn.Dropout) else getattr(module, "attention_dropout", 0)
    return isinstance(chance, float) and chance > 0
