"""Launches of kernels by the compiled core, through a function that stands for the CUDA driver's."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("permutohedral._native", reason="the compiled core is not installed")

from triton.runtime.errors import OutOfResources

from permutohedral.ops.triton import kernel as launching
from permutohedral.ops.triton import tuning
from permutohedral.ops.triton.kernel import Variant

_UNSIGNED = [ctypes.c_uint] * 7
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *_UNSIGNED, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
_FUNCTION, _STREAM = 0x1234, 7


class _Driver:
    """Takes kernels of two tensors, an int and a float, and notes what they were started with."""

    def __init__(self) -> None:
        self.starts: list[tuple[Any, ...]] = []
        self.result = 0
        self._callback = _LAUNCH(self._launch)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p).value

    def _launch(self, function: int, *rest: Any) -> int:
        *numbers, stream, parameters, _ = rest
        kinds: list[Any] = [*[ctypes.c_uint64] * 2, ctypes.c_int32, ctypes.c_float, *[ctypes.c_uint64] * 2]
        given = [ctypes.cast(parameters[i], ctypes.POINTER(kind))[0] for i, kind in enumerate(kinds)]
        self.starts.append((function, tuple(numbers), stream, given))
        return self.result


class _Function:
    """What `triton.jit` makes: notes what it is started with, and gives a binary, by default as Triton 3.2 does."""

    def __init__(self, **other: Any) -> None:
        self.fn: Any = None
        self.starts: list[tuple[Any, ...]] = []
        target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
        metadata = {"num_warps": 4, "target": target, "num_ctas": 1, "shared": 2048, **other}
        self._binary = SimpleNamespace(function=_FUNCTION, metadata=SimpleNamespace(**metadata))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, **constants: Any) -> Any:
            self.starts.append((grid, arguments, constants))
            return self._binary

        return start


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    found = _Driver()
    monkeypatch.setattr(launching, "_driver_launch", lambda: found.address)
    monkeypatch.setattr(launching, "stream_of", lambda device: _STREAM)
    return found


_GRID, _SIZES = (3, 2, 1), (5, 0.25)


def _tensors() -> tuple[torch.Tensor, ...]:
    return torch.zeros(8), torch.zeros(8, dtype=torch.int32)


# further metadata of Triton 3.6
_NOTHING_MORE = {
    "global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False, "launch_pdl": False
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, _NOTHING_MORE], ids=["3.2", "3.6"])
def test_core_launches_compiled_kernels(driver: _Driver, more: dict[str, Any]) -> None:
    function, first, second = _Function(**more), _tensors(), _tensors()
    variant = Variant(function, {"BLOCK": 8})
    variant(_GRID, first, _SIZES)
    assert function.starts == [(_GRID, (*first, *_SIZES), {"BLOCK": 8})]
    assert not driver.starts
    # other memory and other numbers, of which one is a whole one where the kernel wants a float
    variant((1, 1, 4), second, (-7, 2))
    assert len(function.starts) == 1
    addresses = [tensor.data_ptr() for tensor in second]
    # what follows the sizes is memory that Triton may ask for
    assert driver.starts == [(_FUNCTION, (1, 1, 4, 128, 1, 1, 2048), _STREAM, [*addresses, -7, 2.0, 0, 0])]


def test_prepared_launch_keeps_its_tensors(driver: _Driver) -> None:
    """It knows addresses alone, and their memory must not be given to another tensor before it is started."""
    function, tensors = _Function(), _tensors()
    variant, seen, addresses = Variant(function, {}), weakref.ref(tensors[0]), [tensor.data_ptr() for tensor in tensors]
    # nothing is compiled yet
    variant.prepare(_GRID, tensors, _SIZES)()
    assert len(function.starts) == 1
    function.starts.clear()
    again = variant.prepare(_GRID, tensors, _SIZES)
    del tensors
    gc.collect()
    assert seen() is not None
    again()
    again()
    assert [start[3][:4] for start in driver.starts] == [[*addresses, *_SIZES]] * 2
    assert not function.starts
    driver.result = 719
    with pytest.raises(RuntimeError, match="error 719"):
        again()
    del again
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("tensors", "sizes"),
    [
        ((torch.zeros(8), torch.zeros(8)), _SIZES),
        ((torch.zeros(8)[1:], torch.zeros(8, dtype=torch.int32)), _SIZES),
        (_tensors()[:1], _SIZES),
        (_tensors(), (1 << 31, 0.25)),
        (_tensors(), (0.5, 0.25)),
        (_tensors(), (5,)),
    ],
    ids=["dtype", "misaligned", "fewer tensors", "large size", "float for int", "fewer sizes"],
)
def test_falls_back_to_triton_for_other_arguments(driver: _Driver, tensors: Any, sizes: Any) -> None:
    function = _Function()
    variant = Variant(function, {})
    variant(_GRID, _tensors(), _SIZES)
    variant(_GRID, tensors, sizes)
    assert len(function.starts) == 2
    assert not driver.starts


def test_falls_back_to_triton_after_a_driver_error(driver: _Driver) -> None:
    """Triton raises an error with the reason, or creates a context for a thread that has none."""
    function, driver.result = _Function(), 201
    variant = Variant(function, {})
    variant(_GRID, _tensors(), _SIZES)
    variant(_GRID, _tensors(), _SIZES)
    assert len(driver.starts) == 1
    assert len(function.starts) == 2


def test_blocks_shrink_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a graph is captured; later launches begin with the blocks that fitted."""
    monkeypatch.setattr(tuning, "_SHRUNK", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    tried: list[tuple[int, int]] = []

    def launch(blocks: tuning.Blocks) -> str:
        tried.append((blocks.block_m, blocks.num_stages))
        if blocks.block_m * blocks.num_stages > 64:
            raise OutOfResources(2, 1, "shared memory")
        return "launched"

    blocks = tuning.Blocks(1, 128, 32, 32, 4, 2)
    assert tuning.launch_fitting(("a",), blocks, launch) == "launched"
    assert tried == [(128, 2), (128, 1), (64, 1)]
    assert tuning.launch_fitting(("a",), blocks, launch) == "launched"
    assert tried[3:] == [(64, 1)]
    with pytest.raises(OutOfResources):
        tuning.launch_fitting(("b",), blocks, lambda blocks: launch(blocks._replace(block_m=999)))
