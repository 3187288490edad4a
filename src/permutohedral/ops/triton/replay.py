"""Launches that are the same from call to call but for the addresses: recorded once, then repeated.

Preparing a small kernel (allocating its result, working out its grid and constants) takes the host longer than running
it takes the GPU. What a function launches on tensors of given shapes is recorded the first time; from then on all
memory that it needs in between is one allocation, and every kernel is started with addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from permutohedral.ops.triton.launch import MISALIGNED, Launch, launch, start_as_documented, watched

# where the parts of an allocation begin: as tensors of torch do
_ALIGNMENT = 512
_MOST_RECORDINGS = 512


class _Place(NamedTuple):
    """Where a tensor begins: in which of the given tensors, or in which allocation, and how many bytes from there."""

    allocated: bool
    number: int
    offset: int
    dtype: torch.dtype


class _Step(NamedTuple):
    """A launch whose tensors have been replaced by places."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: list[_Place | int | None]
    meta: dict[str, Any]


class Recording:
    """What was launched on the tensors `given`; every other tensor it used becomes a part of an allocation.

    There is one allocation, or with `apart` one for each dtype: tensors of one that is not cannot be saved together.
    """

    def __init__(self, given: tuple[Tensor, ...], apart: bool) -> None:
        self._given, self._apart = given, apart
        self._storages = [tensor.untyped_storage().data_ptr() for tensor in given]
        self._launches: list[Launch] = []
        self._parts: dict[int, tuple[int, int]] = {}
        # of each allocation, in the order in which they are needed
        self._dtypes: list[torch.dtype] = []
        self._sizes: list[int] = []
        self._offsets: list[list[int]] = []
        self._results: list[tuple[_Place, torch.Size, tuple[int, ...]]] = []
        self._steps: list[_Step] = []
        # what all starts pick their arguments from: addresses in given tensors, constants, addresses in allocations
        self._places: list[tuple[int, int]] = []
        self._constants: list[Any] = []
        self._starts: list[tuple[Any, ...]] = []

    def note(self, launch: Launch) -> None:
        # keeps its tensors alive, so that an address stands for one of them
        self._launches.append(launch)

    def _place(self, tensor: Tensor) -> _Place:
        # a tensor without elements has memory, too, but does not tell its address
        storage, begin = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()) * tensor.element_size()
        if storage in self._storages:
            number = self._storages.index(storage)
            return _Place(False, number, storage + begin - self._given[number].data_ptr(), tensor.dtype)
        if storage not in self._parts:
            dtype = tensor.dtype if self._apart else torch.int32
            if dtype not in self._dtypes:
                self._dtypes.append(dtype)
                self._sizes.append(0)
            number = self._dtypes.index(dtype)
            self._parts[storage] = number, self._sizes[number]
            self._sizes[number] += -(-tensor.untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
        number, start = self._parts[storage]
        return _Place(True, number, start + begin, tensor.dtype)

    def finish(self, results: tuple[Tensor, ...]) -> None:
        """Forget the tensors but for where the results are, and prepare to start the kernels on others."""
        for each in self._launches:
            arguments = [self._place(one) if isinstance(one, Tensor) else one for one in each.arguments]
            self._steps.append(_Step(each.kernel, each.grid, arguments, each.meta))
        self._results = [(self._place(one), one.shape, one.stride()) for one in results]
        if all(each.handle is not None for each in self._launches):
            self._prepare()
        self._launches, self._given = [], ()

    def _prepare(self) -> None:
        """Note from where in one list each start picks its arguments."""
        found = [place for step in self._steps for place in step.arguments if isinstance(place, _Place)]
        self._places = sorted({(place.number, place.offset) for place in found if not place.allocated})
        self._offsets = [
            sorted({place.offset for place in found if place.allocated and place.number == number})
            for number in range(len(self._dtypes))
        ]
        constants = [each.handle[3] if each.handle is not None else [] for each in self._launches]
        arguments = [[*step.arguments, *more] for step, more in zip(self._steps, constants, strict=True)]
        for each in arguments:
            self._constants += [one for one in each if not isinstance(one, _Place)]
        begins, constant, allocated = [len(self._places) + len(self._constants)], len(self._places), 0
        for offsets in self._offsets:
            begins.append(begins[-1] + len(offsets))
        for launched, each in zip(self._launches, arguments, strict=True):
            picked, needed = [], allocated
            for one in each:
                if not isinstance(one, _Place):
                    picked.append(constant)
                    constant += 1
                elif one.allocated:
                    picked.append(begins[one.number] + self._offsets[one.number].index(one.offset))
                    needed = max(needed, one.number + 1)
                else:
                    picked.append(self._places.index((one.number, one.offset)))
            assert launched.handle is not None
            run, function, metadata, _ = launched.handle
            grid = (*launched.grid, 1, 1)[:3]
            self._starts.append((range(allocated, needed), *grid, run, function, metadata, itemgetter(*picked)))
            allocated = needed

    def repeat(self, *given: Tensor) -> list[Tensor]:
        """Launch all of it on other tensors of the same shapes and strides; returns the allocations."""
        first, bases, bits = given[0], [tensor.data_ptr() for tensor in given], 0
        for base in bases:
            bits |= base
        if bits & MISALIGNED or not self._starts:
            return self._repeat_as_documented(given)
        table = [bases[number] + offset for number, offset in self._places]
        table += self._constants
        try:
            return self._start(first, table)
        except TypeError:
            start_as_documented()
            self._starts = []
            return self._repeat_as_documented(given)

    def _start(self, first: Tensor, table: list[Any]) -> list[Tensor]:
        storages: list[Tensor] = []
        stream = torch._C._cuda_getCurrentRawStream(first.get_device())
        for needed, columns, rows, layers, run, function, metadata, pick in self._starts:
            for number in needed:
                # as late as possible: the GPU is at work already
                storage = self._allocate(first, number)
                storages.append(storage)
                base = storage.data_ptr()
                table += [base + offset for offset in self._offsets[number]]
            run(columns, rows, layers, stream, function, metadata, None, None, None, *pick(table))
        return storages

    def _allocate(self, like: Tensor, number: int) -> Tensor:
        dtype = self._dtypes[number]
        return like.new_empty(self._sizes[number] // dtype.itemsize, dtype=dtype)

    def results(self, storages: list[Tensor]) -> tuple[Tensor, ...]:
        """The results of the recorded function in the allocations of a repetition."""
        found = []
        for place, shape, stride in self._results:
            storage = storages[place.number]
            storage = storage if self._apart or place.dtype == torch.int32 else storage.view(place.dtype)
            found.append(storage.as_strided(shape, stride, place.offset // place.dtype.itemsize))
        return tuple(found)

    def _repeat_as_documented(self, given: tuple[Tensor, ...]) -> list[Tensor]:
        storages = [self._allocate(given[0], number) for number in range(len(self._dtypes))]
        for step in self._steps:
            arguments = [
                _view((storages if one.allocated else given)[one.number], one) if isinstance(one, _Place) else one
                for one in step.arguments
            ]
            launch(step.kernel, step.grid, *arguments, **step.meta)
        return storages


def _view(tensor: Tensor, place: _Place) -> Tensor:
    """All that follows `place` in the memory of `tensor`."""
    storage, size = tensor.untyped_storage(), place.dtype.itemsize
    begin = tensor.data_ptr() - storage.data_ptr() + place.offset
    view = torch.empty(0, dtype=place.dtype, device=tensor.device)
    return view.set_(storage, begin // size, ((storage.nbytes() - begin) // size,), (1,))


_recordings: dict[Hashable, Recording] = {}


def find_recording(key: Hashable) -> Recording | None:
    """What `record` kept under this key."""
    return _recordings.get(key)


def record(
    key: Hashable, run: Callable[[], tuple[Tensor, ...]], *given: Tensor, apart: bool = False
) -> tuple[Tensor, ...]:
    """Call `run`, and keep what it launches on the tensors `given` under `key`; its results, new tensors.

    The key must tell shapes, strides, dtypes and devices of these tensors. Beside launching, `run` may allocate memory
    and look at it in other ways, and nothing else. Tensors that share memory may lie otherwise the next time, so
    nothing is kept of them. Results that leave the library are kept `apart`, dtype by dtype.
    """
    if len({tensor.untyped_storage().data_ptr() for tensor in given}) < len(given):
        return run()
    recording = Recording(given, apart)
    watched.recorder = recording
    try:
        results = run()
    finally:
        watched.recorder = None
    recording.finish(results)
    if len(_recordings) >= _MOST_RECORDINGS:
        _recordings.clear()
    _recordings[key] = recording
    return results
