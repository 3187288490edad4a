"""The memory that the compiled core keeps: reused for similar sizes, by any thread, within its limit."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from permutohedral.errors import InputError
from permutohedral.ops import dispatch

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
pytestmark = pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")

if _BLOCKER is None:
    from permutohedral import _native
    from permutohedral.ops.native import bridge

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Before and after each test; skips where the system offers no pages."""
    gc.collect()
    _native.limit_kept_memory(0)
    _native.limit_kept_memory(512 * MEGABYTE)
    allocate(1)
    if _native.kept_memory() == 0:
        pytest.skip("this build of the core keeps no memory")
    yield
    _native.limit_kept_memory(0)
    _native.limit_kept_memory(512 * MEGABYTE)


def allocate(megabytes: int) -> torch.Tensor:
    return bridge.empty((megabytes, MEGABYTE // 4), torch.float32)


def test_reuses_freed_memory() -> None:
    tensor = allocate(8)
    assert tensor.data_ptr() % 64 == 0
    tensor.fill_(3.0)
    kept, address = _native.kept_memory(), tensor.data_ptr()
    del tensor
    assert _native.kept_memory() >= kept + 8 * MEGABYTE
    assert allocate(8).data_ptr() == address


def test_tensors_do_not_overlap() -> None:
    tensors = [allocate(size).fill_(float(size)) for size in (3, 1, 7, 40, 2, 70)]
    del tensors[1], tensors[2]
    tensors += [allocate(size).fill_(float(size)) for size in (5, 2, 1)]
    for tensor in tensors:
        assert (tensor == tensor.shape[0]).all()


def test_keeps_no_more_than_the_limit() -> None:
    tensors = [allocate(50) for _ in range(3)]
    _native.limit_kept_memory(60 * MEGABYTE)
    del tensors
    assert _native.kept_memory() <= 60 * MEGABYTE
    bridge.limit_kept_memory("0")
    assert _native.kept_memory() == 0
    allocate(50).fill_(1.0)
    assert _native.kept_memory() == 0
    with pytest.raises(InputError, match="must be a number of megabytes, got 'many'"):
        bridge.limit_kept_memory("many")
    # more than any machine has
    bridge.limit_kept_memory("9" * 20)
    assert _native.kept_memory_limit() == sys.maxsize


def test_allocates_on_any_thread() -> None:
    def work(number: int) -> None:
        for size in range(1, 30):
            tensor = allocate(1 + size % 5).fill_(float(number))
            wrong.extend([] if bool((tensor == number).all()) else [number])

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _fill_in_child(total: Any) -> None:
    # by NumPy: torch's own threads do not survive a fork
    array = allocate(9).numpy()
    array.fill(2.0)
    total.value = float(array.sum())


def test_allocates_in_a_forked_child() -> None:
    parent = allocate(9).fill_(1.0)
    context = multiprocessing.get_context("fork")
    total = context.Value("d", 0.0)
    child = context.Process(target=_fill_in_child, args=(total,))
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0
    assert total.value == 2.0 * parent.numel()
    assert (parent == 1.0).all()
