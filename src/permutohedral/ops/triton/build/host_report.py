"""What building a lattice tells the host: written by a kernel into the host's own memory, which the host watches.

Waiting through an event or a copy costs the host several times more than the GPU needs to write these few words. The
kernel is the one that follows the insertion of the points, whatever it does besides: starting one more costs the host
more than this one takes.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build.packed_table import BAD_FEATURE, COUNT, PackedTable
from permutohedral.ops.triton.runtime import Bound

# reports that are read together: of sources and of targets
_MOST = 2
# of how many pairs of consecutive points the distance is looked at
SAMPLES = tl.constexpr(256)
# words of a report: see `Report`
_REPORTED = tl.constexpr(5)
# no count and no flag
_PENDING = -(2**62)
# how often the host looks (some milliseconds) before it lets other threads run, and asks whether the GPU has failed
_EAGER_LOOKS = 10_000
_LOOKS_PER_QUESTION = 2000


class Report(NamedTuple):
    """What is known once all points are inserted; the words of the memory, in this order."""

    num_lattice_points: int
    bad_feature: int
    no_room: int
    full: int
    # of some pairs of consecutive points, how many lie far apart; 0 if nobody asked
    far_pairs: int


class Telling(NamedTuple):
    """What a kernel tells the host, and where.

    Attributes:
        words: memory of a `HostReports`.
        features: float `[points, d]`, of the points that were inserted; those of a point are contiguous. Any other rows
            where they are not compared.
        sample: whether consecutive points are compared.
    """

    words: Tensor
    features: Tensor
    sample: bool


@triton.jit
def tell_host(
    table, features, words, num_points, TOLD: tl.constexpr, STRIDE: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """The first program tells the host the count and the flags if TOLD is 1; if it is 2, also how many consecutive
    points lie two units apart or more.
    """
    if TOLD > 0:  # noqa: SIM102 (known when it is compiled)
        if tl.program_id(0) == 0:
            # the count, then the flags, one after another
            word = tl.arange(0, 8)
            place = table + tl.where(word == 0, COUNT, BAD_FEATURE - 1 + word)
            told = tl.load(place, mask=word < _REPORTED - 1, other=0)
            if TOLD > 1:
                here = (tl.arange(0, SAMPLES).to(tl.int64) * num_points) // SAMPLES
                there = tl.minimum(here + 1, num_points - 1)
                distance = tl.zeros([SAMPLES], features.dtype.element_ty)
                for j in tl.static_range(D):
                    step = tl.load(features + here * STRIDE + j) - tl.load(features + there * STRIDE + j)
                    distance = tl.maximum(distance, tl.abs(step))
                told = tl.where(word == _REPORTED - 1, tl.sum((distance > 2.0).to(tl.int64), axis=0), told)
            tl.store(words + word, told, mask=word < _REPORTED)


@triton.jit(do_not_specialize=["num_points"])
def report_kernel(
    table, features, words, num_points, TOLD: tl.constexpr, STRIDE: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    tell_host(table, features, words, num_points, TOLD, STRIDE, D)


def told_by_kernel(telling: Telling | None, other: Tensor) -> tuple[tuple[Tensor, Tensor], int, tuple[int, int]]:
    """What a kernel hands to `tell_host`: two tensors, the number of points, and the constants TOLD and STRIDE.

    A kernel that has nothing to tell takes the `other` tensor in place of them.
    """
    if telling is None:
        return (other, other), 0, (0, 0)
    words, features, sample = telling
    return (features, words), features.shape[0], (2 if sample else 1, features.stride(0))


def report(table: PackedTable, telling: Telling) -> None:
    """Tell the host now, where no other kernel follows that could."""
    tensors, points, constants = told_by_kernel(telling, table.storage)
    _bind_report(telling.features.shape[1], *constants)((1, 1, 1), (table.storage, *tensors), (points,))


@cache
def _bind_report(d: int, told: int, stride: int) -> Bound:
    return Bound(report_kernel, TOLD=told, STRIDE=stride, D=d, num_warps=4 if told > 1 else 1)


class _Memory:
    """Memory for the reports of a device: pinned, so that a GPU writes to it as to its own; and views of NumPy."""

    def __init__(self, device: torch.device) -> None:
        rows = [torch.empty(len(Report._fields), dtype=torch.int64) for _ in range(_MOST)]
        self.words = [row.pin_memory() if device.type == "cuda" else row for row in rows]
        self.views = [row.numpy() for row in self.words]


class _Scratch(threading.local):
    """What a thread uses again and again, by device."""

    def __init__(self) -> None:
        self.memory: dict[int | None, _Memory] = {}

    def on(self, device: torch.device) -> _Memory:
        if device.index not in self.memory:
            self.memory[device.index] = _Memory(device)
        return self.memory[device.index]


_scratch = _Scratch()


class HostReports:
    """Up to two reports that kernels on the current stream of `device` are about to write.

    >>> with HostReports(torch.device("cpu")) as reports:
    ...     _ = reports.words[0].copy_(torch.tensor([7, 0, 0, 0, 0]))
    ...     reports.read(0).num_lattice_points
    7
    """

    def __init__(self, device: torch.device) -> None:
        memory = _scratch.on(device)
        self._device, self.words, self._views = device, memory.words, memory.views
        for view in self._views:
            view.fill(_PENDING)

    def __enter__(self) -> HostReports:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # a kernel that nobody waits for any more must not write into the next report
        if kind is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def read(self, number: int) -> Report:
        """A report, as soon as the GPU has written it."""
        view = self._views[number]
        looks = 0
        while True:
            words: list[int] = view.tolist()
            if _PENDING not in words:
                return Report(*words)
            looks += 1
            if looks < _EAGER_LOOKS:
                continue
            time.sleep(0)
            if looks % _LOOKS_PER_QUESTION == 0 and torch.cuda.current_stream(self._device).query():
                # raises if a kernel has failed; else all is written by now
                torch.cuda.synchronize(self._device)
                words = view.tolist()
                if _PENDING in words:
                    raise RuntimeError("the GPU finished without reporting how many lattice points there are")
                return Report(*words)
