"""Runs the newest request of one page and drops older ones: never two computations of one user at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

# a sleeping thread that nobody asks anything ends, and is started anew when needed
_IDLE = 5.0


class DroppedError(Exception):
    """A newer request has come while this one was computed."""


# What a request computes, step by step. It yields functions that show what it has found so far, and seconds without a
# newer request to wait for: what takes long begins when the slider is let go. It is given a function to call now and
# then, which ends a request that is no longer wanted.
Check = Callable[[], None]
Show = Callable[[], None]
Steps = Iterator[Show | float]
Request = Callable[[Check], Steps]


class Runner:
    """Computes in a thread of its own.

    What a request has found is shown even if a newer one waits, so that something moves while a slider does; the rest
    of it is dropped.

    Args:
        show: gets what a request yields, to call it.
        fail: gets what a request raised.
        idle: called when nothing is left to do.

    >>> def request(check):
    ...     answer = 6 * 7
    ...     yield lambda: print(answer)
    >>> done = threading.Event()
    >>> runner = Runner(show=lambda call: call(), fail=print, idle=done.set)
    >>> runner.submit(request)
    >>> done.wait(5), runner.close()
    42
    (True, None)
    """

    def __init__(
        self, show: Callable[[Show], None], fail: Callable[[Exception], None], idle: Callable[[], None]
    ) -> None:
        self._show, self._fail, self._idle = show, fail, idle
        self._changed = threading.Condition()
        self._newest: Request | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.busy = False

    @property
    def has_work(self) -> bool:
        """Whether something is computed or waits."""
        return self.busy or self._newest is not None

    def submit(self, request: Request) -> None:
        """Compute this next, instead of all that waits."""
        with self._changed:
            if self._closed:
                return
            self._newest = request
            if self._thread is None:
                # a computation that cannot be interrupted must not keep the program from ending
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Take no more requests, and drop the present one."""
        with self._changed:
            self._closed, self._newest = True, None
            self._changed.notify()

    def _is_unwanted(self) -> bool:
        return self._closed or self._newest is not None

    def _check(self) -> None:
        if self._is_unwanted():
            raise DroppedError

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._newest is None and not self._closed:
                    self._changed.wait(_IDLE)
                if self._newest is None:
                    self._thread = None
                    return
                request, self._newest = self._newest, None
                self.busy = True
            self._run(request)
            with self._changed:
                self.busy = False
                finished = self._newest is None and not self._closed
            if finished:
                self._idle()

    def _run(self, request: Request) -> None:
        try:
            for found in request(self._check):
                rest = found if isinstance(found, float) else 0.0
                if not isinstance(found, float) and not self._closed:
                    self._show(found)
                with self._changed:
                    if self._changed.wait_for(self._is_unwanted, rest):
                        return
        except DroppedError:
            return
        # whatever it is, the page tells it and the next request is served
        except Exception as error:
            if not self._closed:
                self._fail(error)
