"""Training steps recorded as CUDA graphs, for points that change from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.bounded import build_bounded_lattice, build_bounded_pyramid, can_be_bounded
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.pyramid import LatticePyramid, build_pyramid
from permutohedral.lattice.tensors import check_tensor

# steps before a recording, which compile kernels and allocate the state of an optimizer
_WARM_STEPS = 2


def capture_step(
    step: Callable[..., Any], *, num_levels: int | None = None, neighborhood_size: int = 1, headroom: float = 1.25
) -> CapturedStep:
    """Run a training step on points that change, on a GPU as a CUDA graph, without the overhead of Python.

    The first steps run as usual, then the step is recorded and replayed. A lattice with more lattice points than there
    is room for runs as usual, and a larger one is recorded. Inputs of other shapes than the first ones run as usual.

    Args:
        step: takes a lattice and other tensors: forward, loss, backward and optimizer. It must not wait for the GPU.
            Numbers that it reads, such as a learning rate, are those of the recording; pass tensors instead.
        num_levels: build a pyramid of this many levels for the step; default: a lattice.
        neighborhood_size: s, the reach of the filters in lattice steps.
        headroom: room for lattice points, as a multiple of the largest number so far.

    Returns:
        A function of features `[points, d]` or `[batch, points, d]` and the other tensors. It returns detached copies
        of the results of `step`: tensors, also in tuples, lists and dicts.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.PermutohedralConv(2, 3, dimension=3)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> def train(lattice, values, labels):
    ...     loss = torch.nn.functional.cross_entropy(layer(values, lattice), labels)
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> step = ph.nn.capture_step(train)
    >>> bool(step(torch.rand(9, 3), torch.rand(9, 2), torch.zeros(9, dtype=torch.int64)).isfinite())
    True
    """
    if not callable(step):
        raise InputError(f"step must be a function of a lattice and tensors, got {type(step).__name__}")
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 1 <= headroom < math.inf:
        raise InputError(f"headroom must be a number of at least 1, got {headroom!r}")
    return CapturedStep(step, num_levels, neighborhood_size, headroom)


class CapturedStep:
    """A step on lattices of points that change."""

    def __init__(self, step: Callable[..., Any], num_levels: int | None, size: int, headroom: float) -> None:
        self._step, self._num_levels, self._size, self._headroom = step, num_levels, size, headroom
        # room for lattice points on each level; copies of the inputs; recordings of the lattice and of the step
        self.max_lattice_points: list[int] = []
        self._inputs: list[Tensor] = []
        self._lattice: Lattice | LatticePyramid | None = None
        self.recordings: dict[str, _Recording] = {}
        self._steps_since_growth = 0

    def __call__(self, features: Tensor, *inputs: Tensor) -> Any:
        given = (features, *inputs)
        for place, each in enumerate(given):
            check_tensor("features" if place == 0 else f"inputs[{place - 1}]", each)
        if can_be_bounded(features) and not self._inputs:
            self._inputs = [torch.empty_like(each) for each in given]
        if [(each.shape, each.dtype) for each in given] != [(each.shape, each.dtype) for each in self._inputs]:
            return _copy(self._step(self._build(features), *inputs))
        for own, each in zip(self._inputs, given, strict=True):
            own.copy_(each.detach())
        if self._steps_since_growth >= _WARM_STEPS:
            return self._run()
        with _side_stream(features.device):
            return self._run()

    def _run(self) -> Any:
        features, *inputs = self._inputs
        if not self.max_lattice_points:
            return self._run_unbounded()
        self._lattice, numbers = self._repeat("lattice", lambda: self._build_bounded(features))
        if any(number > rows for number, rows in zip(numbers.tolist(), self.max_lattice_points, strict=True)):
            return self._run_unbounded()
        results = _copy(self._repeat("step", lambda: self._step(self._lattice, *inputs)))
        self._steps_since_growth += 1
        return results

    def _run_unbounded(self) -> Any:
        """Run the step on a lattice of any size, and make room for as many lattice points."""
        features, *inputs = self._inputs
        # the recordings and the lattice hold memory
        self.recordings.clear()
        self._lattice, self._steps_since_growth = self._build(features), 0
        levels = self._lattice.levels if isinstance(self._lattice, LatticePyramid) else (self._lattice,)
        numbers = [math.ceil(self._headroom * level.num_lattice_points) for level in levels]
        before = self.max_lattice_points or numbers
        self.max_lattice_points = [max(pair) for pair in zip(before, numbers, strict=True)]
        return _copy(self._step(self._lattice, *inputs))

    def _repeat(self, part: str, function: Callable[[], Any]) -> Any:
        """Call a function, or replay its recording."""
        if self._steps_since_growth < _WARM_STEPS:
            return function()
        if part not in self.recordings:
            self.recordings[part] = _Recording(function, self._inputs[0].device)
        return self.recordings[part].replay()

    def _build(self, features: Tensor) -> Lattice | LatticePyramid:
        if self._num_levels is None:
            return build_lattice(features, neighborhood_size=self._size)
        return build_pyramid(features, self._num_levels, neighborhood_size=self._size)

    def _build_bounded(self, features: Tensor) -> tuple[Lattice | LatticePyramid, Tensor]:
        rows = self.max_lattice_points
        if self._num_levels is None:
            return build_bounded_lattice(features, rows[0], neighborhood_size=self._size)
        return build_bounded_pyramid(features, rows, neighborhood_size=self._size)


class _Recording:
    """A function without arguments, recorded as a CUDA graph; on other devices a replay calls it."""

    def __init__(self, function: Callable[[], Any], device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None
        # a recorded function is not kept, since it may hold memory
        self._results: Any = function
        if self._graph is not None:
            with torch.cuda.graph(self._graph, stream=_stream_of(device)):
                self._results = function()

    def replay(self) -> Any:
        """Return the results, which the next replay overwrites."""
        if self._graph is None:
            return self._results()
        self._graph.replay()
        return self._results


@lru_cache(maxsize=16)
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """Return a stream for all recordings: on each new one, cuBLAS allocates 64 MB that it never returns."""
    return torch.cuda.Stream(device)


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Run on another stream than the default one, whose work a graph cannot depend on."""
    if device.type != "cuda":
        yield
        return
    stream, current = _stream_of(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _copy(results: Any) -> Any:
    """Return detached copies of tensors, also in a tuple, list or dict."""
    if isinstance(results, dict):
        return {name: _copy(each) for name, each in results.items()}
    if isinstance(results, (tuple, list)):
        copies = [_copy(each) for each in results]
        return type(results)(*copies) if hasattr(results, "_fields") else type(results)(copies)
    return results.detach().clone() if isinstance(results, Tensor) else results
