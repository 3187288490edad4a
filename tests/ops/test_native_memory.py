"""The memory that the compiled core keeps: given out again in any size, by any thread, within its limit."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.dlpack import from_dlpack

from permutohedral.errors import InputError
from permutohedral.ops import dispatch
from permutohedral.ops.native_limits import limit_kept_memory

_REFUSAL = next(backend for backend in dispatch._BACKENDS if backend.name == "native").refusal("cpu")
pytestmark = pytest.mark.skipif(_REFUSAL is not None, reason=f"the native backend does not run here: {_REFUSAL}")

if _REFUSAL is None:
    from permutohedral import _native
    from permutohedral.ops.native import lending

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
    return lending.empty((megabytes, MEGABYTE // 4), torch.float32)


def test_what_is_freed_is_given_out_again() -> None:
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


def test_neighbors_are_joined() -> None:
    tensors = [allocate(10) for _ in range(5)]
    first = min(tensor.data_ptr() for tensor in tensors)
    del tensors
    gc.collect()
    # larger than any of them
    assert allocate(45).data_ptr() == first


def test_a_large_result_finds_its_pages_again() -> None:
    # not filled, unlike what tests allocate otherwise
    def untouched(megabytes: int) -> torch.Tensor:
        return from_dlpack(_native.allocate([megabytes, MEGABYTE // 4], True, 32))

    large, others = untouched(400), [untouched(30) for _ in range(4)]
    address, large[0, 0] = large.data_ptr(), 3.0
    # with the others that is more than is kept
    del large, others
    assert _native.kept_memory() <= 512 * MEGABYTE
    # cut out of another range
    small = untouched(70)
    large = untouched(400)
    assert large.data_ptr() == address
    assert not address <= small.data_ptr() < address + 400 * MEGABYTE
    # a new page would be cleared
    assert large[0, 0] == 3.0


def test_limit() -> None:
    tensors = [allocate(50) for _ in range(3)]
    _native.limit_kept_memory(60 * MEGABYTE)
    del tensors
    assert _native.kept_memory() <= 60 * MEGABYTE
    limit_kept_memory("0")
    assert _native.kept_memory() == 0
    allocate(50).fill_(1.0)
    assert _native.kept_memory() == 0
    with pytest.raises(InputError, match="must be a number of megabytes, got 'many'"):
        limit_kept_memory("many")


def test_capsule_that_nobody_takes_over() -> None:
    kept = _native.kept_memory()
    capsule = _native.allocate([MEGABYTE], True, 32)
    assert _native.kept_memory() < kept
    del capsule
    assert _native.kept_memory() == kept


def test_any_thread() -> None:
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


def test_forked_child() -> None:
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
