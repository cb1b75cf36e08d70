"""Which questions a step sees: a pure function of seed, step and process, so that a resume needs no state."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, OptionBatch, collate


@dataclass(frozen=True)
class Batches:
    """Shuffled passes over a set of questions, cut into batches.

    Attributes:
        questions: The encoded questions.
        batch_size: Questions a step, over all processes.
        micro_batch_size: Questions a forward pass.
        seed: Seeds the order; every pass has its own.
        length_window: Of how many consecutive batches the questions are sorted by length before they are cut
            into batches, which then come in random order: less padding, the same questions.
        pad_id: Fills the rows.
        layout: See `toolkit.models.predictive.collate`.
        process: Index of this process.
        processes: Number of processes; process i takes every i-th question of a batch.
    """

    questions: Sequence[EncodedQuestion]
    batch_size: int
    micro_batch_size: int
    seed: int
    length_window: int = 1
    pad_id: int = 0
    layout: Layout = "packed"
    process: int = 0
    processes: int = 1

    def indices(self, step: int) -> list[int]:
        """Returns the questions of a step, over all processes; a batch may reach into the next pass."""
        window, place = divmod(step, self.length_window)
        size = self.length_window * self.batch_size
        chosen = self._stream(window * size, size)
        if self.length_window > 1:
            chosen.sort(key=lambda index: self.questions[index].packed_length)
            place = _shuffled(self.length_window, self.seed, window)[place]
        return chosen[place * self.batch_size : (place + 1) * self.batch_size]

    def at(self, step: int, device: torch.device | str = "cpu") -> list[OptionBatch]:
        """Returns this process's micro-batches of a step, questions of like length together."""
        mine = [self.questions[i] for i in self.indices(step)[self.process :: self.processes]]
        mine.sort(key=lambda question: question.packed_length)
        size = self.micro_batch_size
        return [
            collate(mine[start : start + size], layout=self.layout, pad_id=self.pad_id).to(device)
            for start in range(0, len(mine), size)
        ]

    def _stream(self, first: int, count: int) -> list[int]:
        """Returns a piece of the endless row of shuffled passes."""
        total = len(self.questions)
        epochs = range(first // total, (first + count - 1) // total + 1)
        passes = [index for epoch in epochs for index in _shuffled(total, self.seed, epoch)]
        start = first - epochs[0] * total
        return passes[start : start + count]


def _shuffled(count: int, seed: int, draw: int) -> list[int]:
    """Returns 0 ... count − 1 in the order that belongs to a seed and the number of the draw."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + draw)
    return torch.randperm(count, generator=generator).tolist()
