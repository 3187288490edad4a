"""Task pools: this process, worker processes on this machine, or an existing Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from permutohedral.errors import BackendUnavailable, InputError, MemoryLimitError


class TaskPool:
    """Compute delayed objects of Dask on the workers of `client`, or without one in this process."""

    def __init__(self, client: Any = None) -> None:
        self.client = client

    def run(self, tasks: Sequence[Any]) -> Iterator[None]:
        """Compute tasks and drop their results; yield after each.

        Raises `BackendUnavailable` if all workers were lost, `MemoryLimitError` if a task killed several of them.
        """
        if self.client is None:
            for task in tasks:
                task.compute(scheduler="synchronous")
                yield
            return
        from distributed import as_completed
        from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

        futures = self.client.compute(list(tasks))
        try:
            for future in as_completed(futures):
                future.result()
                future.release()
                yield
        except (NoWorkerError, NoValidWorkerError) as error:
            raise BackendUnavailable("all workers were lost; check their logs, then resume") from error
        except KilledWorker as error:
            raise MemoryLimitError(
                "several workers died of the same task, probably out of memory; pass more memory, then resume"
            ) from error
        finally:
            self.client.cancel(futures)


@contextmanager
def open_pool(workers: int = 0, memory: str | None = None, scheduler: str | None = None) -> Iterator[TaskPool]:
    """Open a pool of workers for a `with` block; see `filter_array`. `memory` implies one worker.

    >>> from dask.delayed import delayed
    >>> with open_pool() as pool:
    ...     len(list(pool.run([delayed(print)("a"), delayed(print)("b")])))
    a
    b
    2
    """
    from dask.utils import parse_bytes

    if scheduler is not None and (workers or memory is not None):
        raise InputError("scheduler conflicts with workers and memory; pass either scheduler, or workers and memory")
    if memory is not None:
        workers = workers or 1
        try:
            parse_bytes(memory)
        except ValueError as error:
            raise InputError(f"memory is {memory!r}; pass a size such as 2GiB") from error
    if scheduler is not None:
        from distributed import Client

        try:
            client = Client(scheduler, timeout="10s")
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(f"scheduler {scheduler} cannot be reached: {error}") from error
        with client:
            yield TaskPool(client)
    elif workers:
        from permutohedral.dask.workers import start_workers

        with start_workers(workers, memory) as client:
            yield TaskPool(client)
    else:
        yield TaskPool()
