"""Runner of one page: computes the newest request in a thread, and drops older ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

# seconds after which an idle thread ends; the next request starts another
_IDLE = 5.0


class DroppedError(Exception):
    """A newer request was submitted during this one."""


# A request yields functions that show its results so far, and seconds to wait without a newer request. It gets a
# function to call now and then, which raises `DroppedError` after a newer request.
Check = Callable[[], None]
Show = Callable[[], None]
Steps = Iterator[Show | float]
Request = Callable[[Check], Steps]


class Runner:
    """Compute requests one by one in a thread.

    Results are shown even if a newer request waits, so that the image follows a moving slider. The rest of the older
    request is dropped. `show` is called with each function that a request yields, `fail` with its exception, and `idle`
    when no work is left, also after `close`.
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
        """Whether a request runs or waits."""
        return self.busy or self._newest is not None

    def submit(self, request: Request) -> None:
        """Compute this next, in place of a waiting request."""
        with self._changed:
            if self._closed:
                return
            self._newest = request
            if self._thread is None:
                # daemon, since a computation that cannot be interrupted must not delay the exit
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Drop the current request, and ignore later ones."""
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
                finished = self._newest is None
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
        # the page shows any error, and the next request runs; an older one may miss a file of an earlier photo
        except Exception as error:
            if not self._is_unwanted():
                self._fail(error)
