"""Where the tasks of a command run: in this process, on workers of this machine, or on a cluster; with a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from permutohedral.errors import BackendUnavailable, InputError, MemoryLimitError

Task = TypeVar("Task")


@dataclass
class Workers:
    """What runs tasks, for the time of a `with` block.

    Attributes:
        workers: processes to start on this machine; 0 for none: tasks run here, one after another.
        memory: the limit of each, such as "2GiB"; None for an equal share of what there is.
        scheduler: the address of a cluster that is there already, instead.

    >>> with Workers() as here:
    ...     here.run(print, ["a", "b"], "printing")
    a
    b
    """

    workers: int = 0
    memory: str | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler is not None and (self.workers or self.memory is not None):
            raise InputError("a scheduler has workers of its own: give either --scheduler, or --workers and --memory")
        if self.memory is not None:
            _check_memory(self.memory)
            self.workers = self.workers or 1
        self._client: Any = None

    def __enter__(self) -> Workers:
        if self.scheduler is not None:
            self._client = _connect(self.scheduler)
        elif self.workers:
            from permutohedral.dask.workers import start_workers

            self._client = start_workers(self.workers, self.memory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def has_client(self) -> bool:
        """Whether others than this process run the tasks."""
        return self._client is not None

    def run(self, function: Callable[[Task], Any], tasks: Sequence[Task], title: str) -> None:
        """Call a function for each of the tasks; what it returns is dropped, and its first error is raised."""
        if self._client is None:
            with _bar(title, len(tasks)) as advance:
                for task in tasks:
                    function(task)
                    advance()
            return
        # what is written is no value: a task that was done before must not count as done
        self._wait(self._client.map(function, tasks, pure=False), title)

    def compute(self, tasks: Sequence[Any], title: str) -> None:
        """Compute delayed objects of Dask; their results are dropped, and the first error is raised."""
        if self._client is None:
            with _bar(title, len(tasks)) as advance:
                for task in tasks:
                    task.compute()
                    advance()
            return
        self._wait(self._client.compute(tasks), title)

    def _wait(self, futures: Sequence[Any], title: str) -> None:
        from distributed import as_completed
        from distributed.scheduler import KilledWorker, NoWorkerError

        try:
            with _bar(title, len(futures)) as advance:
                for future in as_completed(futures):
                    future.result()
                    future.release()
                    advance()
        except NoWorkerError as error:
            raise BackendUnavailable(
                "all workers were lost; see their logs, start others, and go on with --resume"
            ) from error
        except KilledWorker as error:
            raise MemoryLimitError(
                "several workers died of the same task, most likely for want of memory: give them more with --memory, "
                "and go on with --resume"
            ) from error
        finally:
            self._client.cancel(futures)


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(title, total=total)
        yield lambda: progress.update(bar, advance=1)


def _check_memory(memory: str) -> None:
    from dask.utils import parse_bytes

    try:
        parse_bytes(memory)
    except ValueError as error:
        raise InputError(f"--memory takes a size such as 2GiB, got {memory!r}") from error


def _connect(address: str) -> Any:
    from distributed import Client

    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"there is no scheduler at {address}: {error}") from error
    return client
