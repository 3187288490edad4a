"""Dask workers on this machine, and checks that tasks fit into their memory."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import resource_tracker
from typing import Any

import dask.config
import numpy as np
import torch

from permutohedral.errors import InputError, MemoryLimitError
from permutohedral.lattice.memory import available_memory, forecast_memory

# environment of the workers before they start
_ENVIRONMENT = {
    # each task has one thread
    "OMP_NUM_THREADS": "1",
    # the C library reuses blocks of the size of a chunk, since mapping new pages takes longer than reading a chunk
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    # zarr passes chunks to its threads in batches: for small chunks, single ones take longer than decompression
    "ZARR_CODEC_PIPELINE__BATCH_SIZE": "16",
    # workers log that they use most of their memory, as planned, and lose the scheduler at the end; tasks raise errors
    "DASK_LOGGING__DISTRIBUTED": "critical",
}
_SETTINGS = {
    # the default of 10ms takes a hundredth of the time
    "distributed.worker.profile.interval": "100ms",
    # a worker that restarts imports torch first
    "distributed.deploy.lost-worker-timeout": "120s",
    # losing all workers is an error after this time
    "distributed.scheduler.no-workers-timeout": "240s",
}
# Dask spills results to disk when a worker uses a larger share of its limit
_SHARE_BEFORE_SPILLING = 0.7
# memory of torch, Dask and this package before the first task
_PACKAGE_BYTES = 300 << 20
# with less, Dask pauses a worker for ever, since the package takes most of the memory
_LEAST_BYTES = 512 << 20
# images that are not noise have at most this many lattice points per sample
_LATTICE_POINTS_PER_SAMPLE = 1 / 3
# larger tables are not kept in one piece, which makes filters slower
_MAX_TABLE_BYTES = 1 << 28
_GUARD = "'if __name__ == \"__main__\":'"


@contextmanager
def start_workers(workers: int | None = None, memory: str | int | None = None) -> Iterator[Any]:
    """Start Dask workers on this machine, with one thread each, for a `with` block.

    Settings of Dask change within the block: workers get time to restart, and losing all of them raises. A script needs
    `if __name__ == "__main__":` around the block, since each worker imports the script.

    Args:
        workers: number of processes; default: one per core.
        memory: limit per worker, such as "2GiB"; default: an equal share.

    Yields:
        a `distributed.Client`.

    Raises:
        InputError: a worker would have less than 512 MiB, or workers do not start.
    """
    from dask.system import CPU_COUNT
    from dask.utils import parse_bytes
    from distributed import Client, LocalCluster
    from distributed.system import MEMORY_LIMIT
    from distributed.utils import silence_logging_cmgr

    check_main_guard()
    # 0 is no limit
    limit = MEMORY_LIMIT // CPU_COUNT if memory is None else parse_bytes(memory)
    if 0 < limit < _LEAST_BYTES:
        given = f"an equal share of {limit >> 20} MiB" if memory is None else memory
        raise InputError(f"memory is {given}, but a worker needs {_LEAST_BYTES >> 20} MiB; pass 1GiB or so")
    environment = {**dask.config.get("distributed.nanny.pre-spawn-environ"), **_ENVIRONMENT}
    with dask.config.set({**_SETTINGS, "distributed.nanny.pre-spawn-environ": environment}), ExitStack() as stack:
        # the cluster restores the level before its last messages
        stack.enter_context(silence_logging_cmgr(logging.ERROR))
        # a cluster that is interrupted while it starts raises another error when it is closed
        with interrupt_later(), _interrupts_masked():
            try:
                cluster = LocalCluster(
                    n_workers=workers or os.cpu_count(),
                    threads_per_worker=1,
                    memory_limit="auto" if memory is None else memory,
                    # the dashboard shows file names, so it listens on this machine only
                    dashboard_address="127.0.0.1:0",
                    # a worker that computes is slow to end
                    silence_logs=logging.ERROR,
                )
            except RuntimeError as error:
                # without the tracebacks of Dask, which hide the message
                raise InputError(
                    f"workers did not start: {error.__cause__ or error}; in a script, start them under {_GUARD}, since "
                    "each imports the script"
                ) from None
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        yield client


def check_main_guard() -> None:
    """Raise in a worker that is still importing the main script, and so runs a call without a guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(
            f"workers import the main script, which must not start workers again; put this call under {_GUARD}"
        )


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C and termination until the block ends, for libraries that an interruption leaves in disorder."""
    # other threads get no signals
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {
        ending: signal.signal(ending, lambda number, frame: received.append(number))
        for ending in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
        # None if it is not from Python, and could not be restored
        if signal.getsignal(ending) is not None
    }
    try:
        yield
    finally:
        for ending, handler in handlers.items():
            signal.signal(ending, handler)
        for ending in received[:1]:
            signal.raise_signal(ending)


@contextmanager
def _interrupts_masked() -> Iterator[None]:
    """Let threads and processes that start in the block ignore Ctrl-C for ever."""
    # Windows has no masks of signals
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # inherited by threads and processes; the start of the tracker would end it in the thread that starts processes
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def limit_worker_cache() -> None:
    """Limit the freed memory that the compiled core keeps in a worker; do nothing outside of workers."""
    limit = _worker_limit()
    if limit is None or find_spec("permutohedral._native") is None:
        return
    from permutohedral.ops.native import bridge

    if os.environ.get(bridge.KEPT_MEMORY_VARIABLE) is None:
        bridge.limit_kept_memory(str(_task_memory(limit) >> 20))


def _worker_limit() -> int | None:
    """Return the bytes per thread of the worker that runs this task; None outside of workers."""
    if find_spec("distributed") is None:
        return None
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        return None
    limit = worker.memory_manager.memory_limit
    return limit // max(worker.state.nthreads, 1) if limit else None


def worker_memory() -> int:
    """Return the bytes per thread of the smallest worker of the current client, or of this machine without one."""
    try:
        from distributed import get_client

        workers = get_client().scheduler_info(n_workers=-1)["workers"].values()
    except (ImportError, ValueError, TypeError):
        workers = []
    limits = [each["memory_limit"] // max(each["nthreads"], 1) for each in workers if each["memory_limit"]]
    return min(limits) if limits else available_memory(torch.device("cpu")) or 1 << 62


def _task_memory(limit: int) -> int:
    """Return the bytes that tasks may use of a worker's limit."""
    return max(int(_SHARE_BEFORE_SPILLING * limit) - _PACKAGE_BYTES, limit // 8)


def check_merge_fits(num_lattice_points: int, row_bytes: int) -> None:
    """Raise, in a worker, if merging lattices needs more memory than the worker has."""
    limit = _worker_limit()
    # inputs, result, and hash table
    needed = 4 * num_lattice_points * row_bytes
    if limit is not None and needed > _task_memory(limit):
        raise MemoryLimitError(
            f"merging lattices of {num_lattice_points:,} lattice points takes {needed / 2**20:,.0f} MiB, but a worker "
            f"has {_task_memory(limit) / 2**20:,.0f} MiB; give workers more memory, use larger bandwidths, or filter "
            "parts of the space separately"
        )


def check_chunk_fits(
    name: str, num_points: int, dimension: int, channels: int, dtype: Any, margins: Sequence[int] = ()
) -> None:
    """Raise if a task on `num_points` points needs more memory than a worker has, even if they are not noise.

    `name` is the argument that has the chunk. `num_points` includes the `margins`.
    """
    needed = _task_bytes(num_points, dimension, channels, dtype, _LATTICE_POINTS_PER_SAMPLE)
    free = _task_memory(worker_memory())
    if needed > free:
        fitting = max(int(num_points * free / needed), 1)
        included = f", with margins of {max(margins)} samples," if any(margins) else ""
        advice = ", margins included, pass a smaller sigma_space" if any(margins) else ""
        raise MemoryLimitError(
            f"{name}: a chunk of {num_points:,} points{included} needs {needed / 2**20:,.0f} MiB, but a worker has "
            f"{free / 2**20:,.0f} MiB; rechunk to at most {fitting:,} points{advice}, or give workers more memory"
        )


def count_fitting_points(
    dimension: int, channels: int, dtype: Any, density: float = math.inf, *, in_one_piece: bool = True
) -> int:
    """Return the number of points that a task can filter in the memory of a worker, whatever their values.

    `density` is an upper bound of the lattice points per point, if one below `dimension` + 1 is known. With
    `in_one_piece`, tables do not exceed the size from which filters are slower.

    >>> count_fitting_points(4, 1, "float32") > count_fitting_points(4, 1, "float64") > 1000
    True
    """
    many = 1_000_000
    needed = _task_bytes(many, dimension, channels, dtype, min(density, dimension + 1))
    # index and weight of a simplex vertex
    vertex_bytes = 4 + np.dtype(dtype).itemsize
    fitting = _task_memory(worker_memory()) * many / needed
    if in_one_piece:
        fitting = min(fitting, _MAX_TABLE_BYTES / (vertex_bytes * (dimension + 1)))
    return max(int(fitting), 1)


def bytes_of_worker(num_points: int, dimension: int, channels: int, dtype: Any, density: float = math.inf) -> int:
    """Return the memory of a worker that can filter `num_points` points; see `count_fitting_points`."""
    needed = _task_bytes(num_points, dimension, channels, dtype, min(density, dimension + 1))
    return int(min((needed + _PACKAGE_BYTES) / _SHARE_BEFORE_SPILLING, 8 * needed))


def _task_bytes(num_points: int, dimension: int, channels: int, dtype: Any, density: float) -> int:
    """Return the bytes of the lattice, the features, and the values before and after filtering."""
    size = int(np.dtype(dtype).itemsize)
    request = num_points, dimension, 0, 2 * channels, math.ceil(density * num_points)
    kind = torch.float64 if size == 8 else torch.float32
    lattice = forecast_memory(*request, dtype=kind, separable=True, ordered=True)
    return lattice.total + size * num_points * (dimension + channels)
