"""How kernels are started: by the compiled core, through a function that stands for the CUDA driver's."""

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

from permutohedral.ops.triton import runtime
from permutohedral.ops.triton.runtime import Bound

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


class _Kernel:
    """What `triton.jit` makes: notes what it is started with, and gives a binary, by default as Triton 3.2 does."""

    def __init__(self, **other: Any) -> None:
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
    monkeypatch.setattr(runtime, "_driver_launch", lambda: found.address)
    monkeypatch.setattr(runtime, "stream_of", lambda device: _STREAM)
    return found


_GRID, _SIZES = (3, 2, 1), (5, 0.25)


def _tensors() -> tuple[torch.Tensor, ...]:
    return torch.zeros(8), torch.zeros(8, dtype=torch.int32)


# what Triton 3.6 tells besides
_NOTHING_MORE = {
    "global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False, "launch_pdl": False
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, _NOTHING_MORE], ids=["3.2", "3.6"])
def test_what_was_compiled_is_started_by_the_core(driver: _Driver, more: dict[str, Any]) -> None:
    kernel, first, second = _Kernel(**more), _tensors(), _tensors()
    bound = Bound(kernel, BLOCK=8)
    bound(_GRID, first, _SIZES)
    assert kernel.starts == [(_GRID, (*first, *_SIZES), {"BLOCK": 8})]
    assert not driver.starts
    # other memory and other numbers, of which one is a whole one where the kernel wants a float
    bound((1, 1, 4), second, (-7, 2))
    assert len(kernel.starts) == 1
    addresses = [tensor.data_ptr() for tensor in second]
    # what follows the sizes is memory that Triton may ask for
    assert driver.starts == [(_FUNCTION, (1, 1, 4, 128, 1, 1, 2048), _STREAM, [*addresses, -7, 2.0, 0, 0])]


def test_what_is_prepared_keeps_its_tensors(driver: _Driver) -> None:
    """It knows addresses alone, and their memory must not be given to another tensor before it is started."""
    kernel, tensors = _Kernel(), _tensors()
    bound, seen, addresses = Bound(kernel), weakref.ref(tensors[0]), [tensor.data_ptr() for tensor in tensors]
    # nothing is compiled yet
    bound.prepare(_GRID, tensors, _SIZES)()
    assert len(kernel.starts) == 1
    kernel.starts.clear()
    again = bound.prepare(_GRID, tensors, _SIZES)
    del tensors
    gc.collect()
    assert seen() is not None
    again()
    again()
    assert [start[3][:4] for start in driver.starts] == [[*addresses, *_SIZES]] * 2
    assert not kernel.starts
    driver.result = 719
    with pytest.raises(RuntimeError, match="error 719"):
        again()
    del again
    gc.collect()
    assert seen() is None


def test_no_programs_are_no_start(driver: _Driver) -> None:
    kernel = _Kernel()
    bound = Bound(kernel)
    bound(_GRID, _tensors(), _SIZES)
    bound((0, 1, 1), _tensors(), _SIZES)
    assert len(kernel.starts) == 1
    assert not driver.starts


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
def test_what_it_was_not_compiled_for_is_left_to_triton(driver: _Driver, tensors: Any, sizes: Any) -> None:
    kernel = _Kernel()
    bound = Bound(kernel)
    bound(_GRID, _tensors(), _SIZES)
    bound(_GRID, tensors, sizes)
    assert len(kernel.starts) == 2
    assert not driver.starts


def test_what_the_driver_refuses_is_left_to_triton(driver: _Driver) -> None:
    """Whose error says what is wrong; a thread without a context of the driver is given one."""
    kernel, driver.result = _Kernel(), 201
    bound = Bound(kernel)
    bound(_GRID, _tensors(), _SIZES)
    bound(_GRID, _tensors(), _SIZES)
    assert len(driver.starts) == 1
    assert len(kernel.starts) == 2


@pytest.mark.parametrize("other", [{"num_ctas": 2}, {"global_scratch_size": 64}, {"launch_pdl": True}])
def test_what_needs_more_than_a_start_is_left_to_triton(driver: _Driver, other: dict[str, Any]) -> None:
    kernel = _Kernel(**other)
    bound = Bound(kernel)
    bound(_GRID, _tensors(), _SIZES)
    bound(_GRID, _tensors(), _SIZES)
    assert len(kernel.starts) == 2
    assert not driver.starts


def test_constants_tell_kernels_apart() -> None:
    """By their names as well: two orders of the same numbers are two kernels."""
    kernel = _Kernel()
    assert runtime.bind(kernel, A=1, B=2) is runtime.bind(kernel, A=1, B=2)
    assert runtime.bind(kernel, A=1, B=2) is not runtime.bind(kernel, A=2, B=1)
    assert runtime.bind(kernel, A=1, B=2) is not runtime.bind(_Kernel(), A=1, B=2)
