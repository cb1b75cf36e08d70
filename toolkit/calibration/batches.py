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
        pad_id: Fills the rows.
        layout: See `toolkit.models.predictive.collate`.
        process: Index of this process.
        processes: Number of processes; process i takes every i-th question of a batch.
    """

    questions: Sequence[EncodedQuestion]
    batch_size: int
    micro_batch_size: int
    seed: int
    pad_id: int = 0
    layout: Layout = "packed"
    process: int = 0
    processes: int = 1

    def indices(self, step: int) -> list[int]:
        """Returns the questions of a step, over all processes; a batch may reach into the next pass."""
        first = step * self.batch_size
        chosen = []
        for position in range(first, first + self.batch_size):
            epoch, place = divmod(position, len(self.questions))
            chosen.append(self._order(epoch)[place])
        return chosen

    def at(self, step: int, device: torch.device | str = "cpu") -> list[OptionBatch]:
        """Returns this process's micro-batches of a step, questions of like length together."""
        mine = [self.questions[i] for i in self.indices(step)[self.process :: self.processes]]
        mine.sort(key=lambda question: question.packed_length)
        size = self.micro_batch_size
        return [
            collate(mine[start : start + size], layout=self.layout, pad_id=self.pad_id).to(device)
            for start in range(0, len(mine), size)
        ]

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(len(self.questions), generator=generator).tolist()
