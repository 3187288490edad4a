"""Runner of one browser tab: computes the newest request in another thread, and drops older ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from nicegui import run

# A request yields results, and seconds (float) to wait without a newer request. It gets a function that reports the
# share that is done, and that raises `DroppedError` if the request is not wanted any more.
Progress = Callable[[float], None]
Steps = Iterator[Any]
Request = Callable[[Progress], Steps]


class DroppedError(Exception):
    """A newer request was submitted during this one."""


class Runner:
    """Compute requests one by one. Call all methods in the thread of the page.

    Results are shown even if a newer request waits, so that the image follows a moving slider. The rest of the older
    request is dropped. `fail` is called with exceptions. `busy` is called with whether something is computed and with
    the share that is done, None if unknown; also at the end of the last request after `close`.
    """

    def __init__(self, fail: Callable[[Exception], None], busy: Callable[[bool, float | None], None]) -> None:
        self._fail, self._busy = fail, busy
        self._next: tuple[Request, Callable[[Any], None]] | None = None
        self._wanted = True
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_closed = self.is_computing = False

    def submit(self, request: Request, show: Callable[[Any], None]) -> None:
        """Compute this next, in place of a waiting request; `show` is called with each of its results."""
        if self.is_closed:
            return
        self._next = request, show
        self._changed.set()
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._work())

    def drop(self) -> None:
        """Drop all requests, without further results."""
        self._next, self._wanted = None, False
        self._changed.set()

    def close(self) -> None:
        """Drop all requests, and ignore later ones."""
        self.is_closed = True
        self.drop()

    @property
    def _is_current(self) -> bool:
        return self._wanted and self._next is None

    def _progress(self, share: float) -> None:
        if not self._is_current:
            raise DroppedError
        self._loop.call_soon_threadsafe(self._report, share)

    def _report(self, share: float) -> None:
        if self._is_current and self.is_computing:
            self._busy(True, share)

    async def _work(self) -> None:
        while self._next is not None:
            request, show = self._next
            self._next, self._wanted = None, True
            self._changed.clear()
            self._busy(True, None)
            try:
                await self._run(request(self._progress), show)
            except DroppedError:
                pass
            # the page shows any error, and the next request runs; an older one may miss a file of an earlier photo
            except Exception as error:
                if self._is_current:
                    self._fail(error)
        self._task = None
        self._busy(False, None)

    async def _run(self, steps: Steps, show: Callable[[Any], None]) -> None:
        while self._is_current:
            self.is_computing = True
            try:
                found = await run.io_bound(next, steps, None)
            # not after a cancellation, during which the thread continues
            except Exception:
                self.is_computing = False
                raise
            self.is_computing = False
            if found is None or not self._wanted:
                return
            if isinstance(found, float):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), found)
            else:
                show(found)
