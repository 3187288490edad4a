"""What each training step sees, so that an interrupted training, or one on several processes, sees the same."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch.utils.data import Dataset, Sampler

from permutohedral.errors import InputError

Row = TypeVar("Row", bound=Sequence[object] | torch.Tensor)


class StepBatches(Sampler[list[int]]):
    """Batch sampler of a DataLoader that lasts a whole training: one batch of items for each step.

    Step i sees the same items whenever it is taken, so a resumed training goes on as if uninterrupted. Where several
    processes train together, each takes its part of every batch, and all of them together see what one process would.

    Args:
        items: how many there are to choose from; None for items without end, which are taken one after another.
        steps: of the training.
        batch_size: items per step, of all processes together.
        seed: of the order. Every pass over the items has its own.
        first: the step to begin with.

    >>> [sorted(batch) for batch in StepBatches(4, steps=2, batch_size=4, seed=0)]
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    >>> list(StepBatches(None, steps=3, batch_size=2, seed=0, first=1))
    [[2, 3], [4, 5]]
    """

    def __init__(self, items: int | None, steps: int, batch_size: int, seed: int, first: int = 0) -> None:
        self.items, self.steps, self.seed, self.first = items, steps, seed, first
        self.batch_size = batch_size if items is None else min(batch_size, items)

    def __len__(self) -> int:
        # of the whole training: lightning counts the steps that a resumed one has already taken
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.steps):
            yield own_part(self._batch(step))

    def _batch(self, step: int) -> list[int]:
        if self.items is None:
            return list(range(step * self.batch_size, (step + 1) * self.batch_size))
        epoch, place = divmod(step, self.items // self.batch_size)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.items, generator=generator)
        chosen: list[int] = order[place * self.batch_size : (place + 1) * self.batch_size].tolist()
        return chosen


class StepNumbers(Dataset[int]):
    """The number of each step, for tasks that make their batches themselves; use it with `batch_size=None`.

    Args:
        steps: of the training.
        first: the step to begin with.

    >>> StepNumbers(steps=10, first=7)[0]
    7
    """

    def __init__(self, steps: int, first: int = 0) -> None:
        self.steps, self.first = steps, first

    def __len__(self) -> int:
        # see StepBatches
        return self.steps

    def __getitem__(self, index: int) -> int:
        return self.first + index


def own_part(batch: Row) -> Row:
    """The part of a batch that this process computes: all of it, unless several train together.

    >>> own_part([1, 2, 3])
    [1, 2, 3]
    """
    if not torch.distributed.is_initialized():
        return batch
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    check_divides(processes, len(batch))
    size = len(batch) // processes
    part: Row = batch[rank * size : (rank + 1) * size]  # type: ignore[assignment]
    return part


def check_divides(processes: int, batch_size: int) -> None:
    """Raise unless every process gets the same number of items, so that the mean of their gradients is that of all.

    Raises:
        InputError: it does not.
    """
    if batch_size % processes:
        raise InputError(
            f"a batch of {batch_size} items cannot be shared equally by {processes} processes; choose a number of "
            "devices that divides it, or another batch_size"
        )


def count_nodes() -> int:
    """Machines that train together, as `torchrun` says; one without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) // count_local() if launched_by_torchrun() else 1


def count_local() -> int:
    """Processes that `torchrun` started on this machine; one without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched_by_torchrun() else 1


def launched_by_torchrun() -> bool:
    """Whether `torchrun` started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first_process() -> bool:
    """Whether this process evaluates and writes; the other processes of a training on several devices only train."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"))
