"""Workers on this machine, how much memory one has, and whether a chunk fits it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from permutohedral.errors import MemoryLimitError
from permutohedral.memory import available_memory, forecast_memory
from permutohedral.ops.native_limits import KEPT_MEMORY_VARIABLE, limit_kept_memory

# Dask writes results to the disk when a worker takes more of its limit than this, and soon after begins no new tasks
_CALM_SHARE = 0.7
# what the package takes before the first task, with torch and Dask
_PACKAGE_BYTES = 300 << 20
# a lattice has about one point for so many samples, or fewer; for as many points as samples there is still room
_SAMPLES_PER_LATTICE_POINT = 3
# tables beyond this are not kept in one piece, and filters take longer
_LARGEST_TABLES = 1 << 28


def start_workers(workers: int | None = None, memory: str | int | None = None) -> Any:
    """A Dask client of workers on this machine: one thread each, and settings that a lost worker needs.

    Args:
        workers: how many; default: one for each core.
        memory: the limit of each, such as "2GiB"; default: an equal share of what there is.

    Returns:
        A `distributed.Client`; close it, or use it in a `with` block.
    """
    from permutohedral.dask.local_cluster import OwnClient, PatientCluster

    cluster = PatientCluster(
        n_workers=workers or os.cpu_count(),
        threads_per_worker=1,
        memory_limit="auto" if memory is None else memory,
        # for this machine alone: it shows names of files, and whoever asks
        dashboard_address="127.0.0.1:0",
    )
    return OwnClient(cluster)


def keep_little() -> None:
    """In a worker, let the core keep no more freed memory than tasks may take; no change elsewhere."""
    limit = _limit_here()
    if limit is not None and os.environ.get(KEPT_MEMORY_VARIABLE) is None and find_spec("permutohedral._native"):
        limit_kept_memory(str(_for_tasks(limit) >> 20))


def _limit_here() -> int | None:
    """Bytes of the worker that runs this task, for each of its threads; None outside of workers."""
    if find_spec("distributed") is None:
        return None
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        return None
    limit = worker.memory_manager.memory_limit
    return limit // max(worker.state.nthreads, 1) if limit else None


def check_merged(num_lattice_points: int, row_bytes: int) -> None:
    """Raise, in a worker, if lattices of so many lattice points together are too many for it to be added.

    Args:
        num_lattice_points: of all that are added.
        row_bytes: of the key and the sums of one.
    """
    limit = _limit_here()
    # what is added, the sum, and the table to look keys up
    needed = 4 * num_lattice_points * row_bytes
    if limit is not None and needed > _for_tasks(limit):
        raise MemoryLimitError(
            f"the lattices of some chunks have {num_lattice_points:,} lattice points, and to add them takes "
            f"{needed / 2**20:,.0f} MiB, where a worker has {_for_tasks(limit) / 2**20:,.0f} MiB for it: give workers "
            "more memory, take larger bandwidths, or filter parts of the space apart"
        )


def _for_tasks(limit: int) -> int:
    """What tasks may take of the limit of a worker.

    >>> _for_tasks(1 << 30) >> 20
    416
    """
    return max(int(_CALM_SHARE * limit) - _PACKAGE_BYTES, limit // 8)


def worker_memory() -> int:
    """Bytes of the smallest worker of the current client for each of its threads; of this machine if there is none."""
    try:
        from distributed import get_client

        workers = get_client().scheduler_info(n_workers=-1)["workers"].values()
    except (ImportError, ValueError, TypeError):
        workers = []
    limits = [each["memory_limit"] // max(each["nthreads"], 1) for each in workers if each["memory_limit"]]
    return min(limits) if limits else available_memory(torch.device("cpu")) or 1 << 62


def check_fits(num_points: int, dimension: int, channels: int, dtype: Any) -> None:
    """Raise if a task on this many points, with floats of this kind, would need more than a worker has."""
    needed, free = _needed(num_points, dimension, channels, dtype), _for_tasks(worker_memory())
    if needed > free:
        fitting = max(int(num_points * free / needed), 1)
        raise MemoryLimitError(
            f"a chunk of {num_points:,} points needs {needed / 2**20:,.0f} MiB, and a worker has "
            f"{free / 2**20:,.0f} MiB for it: rechunk to at most {fitting:,} points, or give workers more memory"
        )


def points_that_fit(dimension: int, channels: int, dtype: Any) -> int:
    """How many points of a picture or volume a task can filter at once in the memory of a worker.

    Args:
        dimension: of the features.
        channels: of the values.
        dtype: float32 or float64, what is computed with.

    >>> points_that_fit(4, 1, "float32") > points_that_fit(4, 1, "float64") > 1000
    True
    """
    many = 1_000_000
    fitting = _for_tasks(worker_memory()) * many / _needed(many, dimension, channels, dtype)
    # the number of a lattice point, and a weight
    corner_bytes = 4 + np.dtype(dtype).itemsize
    return max(int(min(fitting, _LARGEST_TABLES / (corner_bytes * (dimension + 1)))), 1)


def _needed(num_points: int, dimension: int, channels: int, dtype: Any) -> int:
    """Bytes of a lattice, of features, and of values that go in and out."""
    size = int(np.dtype(dtype).itemsize)
    lattice_points = num_points // _SAMPLES_PER_LATTICE_POINT
    request = num_points, dimension, 0, 2 * channels, lattice_points
    kind = torch.float64 if size == 8 else torch.float32
    lattice = forecast_memory(*request, dtype=kind, separable=True, ordered=True)
    return lattice.total + size * num_points * (dimension + channels)
