"""Ctrl-C during a long call of the native core raises KeyboardInterrupt, and later calls work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from permutohedral.ops import dispatch

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
pytestmark = pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")

# the call takes some tenths of a second, and the core polls for signals twenty times a second
ROWS, CHANNELS, TAPS = 100_000, 32, 63
# a signal may arrive between two calls, or at the very end of one
TRIES = 40


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, also in background jobs, where the shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def interrupt_after(seconds: float) -> None:
    def send() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_ends_early(threads: int) -> None:
    """The interrupted call leaves part of its result unwritten, and the next call writes all of it."""
    from permutohedral import _native

    lattice_values, weight = torch.ones(ROWS, CHANNELS), torch.ones(TAPS, CHANNELS, CHANNELS)
    neighbors = torch.randint(ROWS, (TAPS, ROWS), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    out = torch.empty(ROWS, CHANNELS)

    def call() -> None:
        _native.float32.convolve(lattice_values, weight, neighbors, 1, (out,), threads)

    started = time.monotonic()
    call()
    duration = time.monotonic() - started
    ended_early = False
    for number in range(TRIES):
        out.fill_(float("nan"))
        try:
            # later: the start of a thread may swallow the signal
            interrupt_after(0.02 + duration * (number % 8) / 8)
            call()
            # wait for a late signal in short sleeps, since a signal right before a sleep does not end it
            for _ in range(600):
                time.sleep(0.1)
        except KeyboardInterrupt:
            ended_early = bool(out.isnan().any())
        if ended_early:
            break
    assert ended_early
    call()
    assert bool((out == TAPS * CHANNELS).all())


def test_other_threads_are_not_interrupted() -> None:
    from permutohedral.ops.native import BACKEND as native

    features = torch.randn(200_000, 5) * 4
    results: list[int] = []
    worker = threading.Thread(target=lambda: results.append(len(native.index_points(features, None)[0])))
    worker.start()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    worker.join()
    assert results == [len(native.index_points(features, None)[0])]
