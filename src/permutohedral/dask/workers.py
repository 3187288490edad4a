"""Workers on this machine, how much memory one has, and whether a chunk fits it."""

from __future__ import annotations

import os
from typing import Any

import dask.config
import torch

from permutohedral.errors import MemoryLimitError
from permutohedral.memory import available_memory, forecast_memory

# what a worker keeps beside a task: the package, other tasks' results
_SHARE = 0.5


# a worker that was killed may take long to come back: importing torch on a busy machine does
_SECONDS_TO_COME_BACK = 120
# all workers lost is an error then
_SECONDS_WITHOUT_WORKERS = 240


def start_workers(workers: int | None = None, memory: str | int | None = None) -> Any:
    """A Dask client of workers on this machine: one thread each, and settings that a lost worker needs.

    Args:
        workers: how many; default: one for each core.
        memory: the limit of each, such as "2GiB"; default: an equal share of what there is.

    Returns:
        A `distributed.Client`; close it, or use it in a `with` block.
    """
    from distributed import Client, LocalCluster

    limits = {
        "distributed.deploy.lost-worker-timeout": _SECONDS_TO_COME_BACK,
        "distributed.scheduler.no-workers-timeout": _SECONDS_WITHOUT_WORKERS,
        "distributed.nanny.pre-spawn-environ": _environment(memory),
    }
    dask.config.set(limits)
    cluster = LocalCluster(
        n_workers=workers or os.cpu_count(),
        threads_per_worker=1,
        memory_limit="auto" if memory is None else memory,
        dashboard_address=None,
    )
    return Client(cluster)


def _environment(memory: str | int | None) -> dict[str, str]:
    """What a worker starts with: its tasks have a thread each, and the core keeps a small part of the limit only."""
    from dask.utils import parse_bytes

    chosen = {"OMP_NUM_THREADS": "1"}
    if memory is not None and memory != "auto":
        chosen["PERMUTOHEDRAL_KEPT_MEMORY"] = str(max(parse_bytes(memory) >> 24, 1))
    return chosen


def worker_memory() -> int:
    """Bytes of the smallest worker of the current client for each of its threads; of this machine if there is none."""
    try:
        from distributed import get_client

        workers = get_client().scheduler_info(n_workers=-1)["workers"].values()
    except (ImportError, ValueError, TypeError):
        workers = []
    limits = [each["memory_limit"] // max(each["nthreads"], 1) for each in workers if each["memory_limit"]]
    return min(limits) if limits else available_memory(torch.device("cpu")) or 1 << 62


def check_fits(num_points: int, dimension: int, channels: int) -> None:
    """Raise if a task on this many points would need more than a worker has."""
    needed = forecast_memory(num_points, dimension, 0, channels, num_points, separable=True, ordered=True).total
    free = int(_SHARE * worker_memory())
    if needed > free:
        fitting = max(int(num_points * free / needed), 1)
        raise MemoryLimitError(
            f"a chunk of {num_points:,} points needs {needed / 2**20:,.0f} MiB, and a worker has "
            f"{free / 2**20:,.0f} MiB for it: rechunk to at most {fitting:,} points, or give workers more memory"
        )
