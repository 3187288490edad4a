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

from permutohedral.ops.triton.launch import MISALIGNED, Launch, launch, watched

# where the parts of the allocation begin: as tensors of torch do
_ALIGNMENT = 512
_MOST_RECORDINGS = 512


class _Place(NamedTuple):
    """Where a tensor begins."""

    # 0 for the allocation, else which of the given tensors, from 1 on
    base: int
    offset: int
    dtype: torch.dtype


class _Step(NamedTuple):
    """A launch whose tensors have been replaced by places."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: list[_Place | int | None]
    meta: dict[str, Any]


class Recording:
    """What was launched on the tensors `given`; every other tensor it used becomes a part of one allocation."""

    def __init__(self, given: tuple[Tensor, ...]) -> None:
        self._given = given
        self._storages = [tensor.untyped_storage().data_ptr() for tensor in given]
        self._launches: list[Launch] = []
        self._parts: dict[int, int] = {}
        self._size = 0
        self._steps: list[_Step] = []
        self._places: list[_Place] = []
        self._constants: list[Any] = []
        self._starts: list[tuple[Any, ...]] = []
        # dtype, shape, strides, elements from the start of the allocation
        self._results: list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]] = []
        self._dtypes: set[torch.dtype] = set()

    def note(self, launch: Launch) -> None:
        # keeps its tensors alive, so that an address stands for one of them
        self._launches.append(launch)

    def _place(self, tensor: Tensor) -> _Place:
        # a tensor without elements has memory, too, but does not tell its address
        storage, begin = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()) * tensor.element_size()
        if storage in self._storages:
            number = self._storages.index(storage)
            return _Place(number + 1, storage + begin - self._given[number].data_ptr(), tensor.dtype)
        if storage not in self._parts:
            self._parts[storage] = self._size
            self._size += -(-tensor.untyped_storage().nbytes() // _ALIGNMENT) * _ALIGNMENT
        return _Place(0, self._parts[storage] + begin, tensor.dtype)

    def finish(self, results: tuple[Tensor, ...]) -> None:
        """Forget the tensors but for where the results are, and prepare to start the kernels on others."""
        for one in results:
            place = self._place(one)
            self._results.append((one.dtype, one.shape, one.stride(), place.offset // one.element_size()))
            self._dtypes.add(one.dtype)
        for each in self._launches:
            arguments = [self._place(one) if isinstance(one, Tensor) else one for one in each.arguments]
            self._steps.append(_Step(each.kernel, each.grid, arguments, each.meta))
            self._places += [one for one in arguments if isinstance(one, _Place) and one not in self._places]
        if all(each.handle is not None for each in self._launches):
            self._starts = [self._prepare(*pair) for pair in zip(self._launches, self._steps, strict=True)]
        self._launches, self._given = [], ()

    def _prepare(self, launch: Launch, step: _Step) -> tuple[Any, ...]:
        assert launch.handle is not None
        run, function, metadata, constants = launch.handle
        picked = []
        for argument in (*step.arguments, *constants):
            if isinstance(argument, _Place):
                picked.append(self._places.index(argument))
            else:
                picked.append(len(self._places) + len(self._constants))
                self._constants.append(argument)
        return (*(*step.grid, 1, 1)[:3], run, function, metadata, itemgetter(*picked))

    def repeat(self, *given: Tensor) -> Tensor:
        """Launch all of it on other tensors of the same shapes and strides.

        Returns: the allocation, uint8; the first of the tensors if none was needed.
        """
        storage = given[0].new_empty(self._size, dtype=torch.uint8) if self._size else given[0]
        bases = [storage.data_ptr(), *[tensor.data_ptr() for tensor in given]]
        bits = 0
        for base in bases:
            bits |= base
        if bits & MISALIGNED or not self._starts:
            self._repeat_as_documented([storage, *given])
            return storage
        table = [bases[place[0]] + place[1] for place in self._places]
        table += self._constants
        stream = torch._C._cuda_getCurrentRawStream(given[0].get_device())
        for columns, rows, layers, run, function, metadata, pick in self._starts:
            run(columns, rows, layers, stream, function, metadata, None, None, None, *pick(table))
        return storage

    def results(self, storage: Tensor) -> tuple[Tensor, ...]:
        """The results of the recorded function in the allocation of a repetition."""
        views = {dtype: storage.view(dtype) for dtype in self._dtypes}
        return tuple(views[dtype].as_strided(shape, stride, offset) for dtype, shape, stride, offset in self._results)

    def _repeat_as_documented(self, tensors: list[Tensor]) -> None:
        for step in self._steps:
            arguments = [_view(tensors[one.base], one) if isinstance(one, _Place) else one for one in step.arguments]
            launch(step.kernel, step.grid, *arguments, **step.meta)


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


def record(key: Hashable, run: Callable[[], tuple[Tensor, ...]], *given: Tensor) -> tuple[Tensor, ...]:
    """Call `run`, and keep what it launches on the tensors `given` under `key`; its results, new tensors.

    The key must tell shapes, strides, dtypes and devices of these tensors. Beside launching, `run` may allocate memory
    and look at it in other ways, and nothing else. Tensors that share memory may lie otherwise the next time, so
    nothing is kept of them.
    """
    if len({tensor.untyped_storage().data_ptr() for tensor in given}) < len(given):
        return run()
    recording = Recording(given)
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
