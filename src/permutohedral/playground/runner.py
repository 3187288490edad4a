"""Runs the newest request of one page and drops older ones: never two computations of one user at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# a sleeping thread that nobody asks anything ends, and is started anew when needed
_IDLE = 5.0


class DroppedError(Exception):
    """A newer request has come while this one was computed."""


@dataclass(frozen=True)
class Stage:
    """One part of a request: a preview, the whole picture, its estimated error.

    Attributes:
        compute: gets a function to call now and then, which ends a request that is no longer wanted.
        show: gets what was computed.
        rest: seconds without a newer request before it begins: what takes long waits until the slider is let go.
    """

    compute: Callable[[Callable[[], None]], Any]
    show: Callable[[Any], None]
    rest: float = 0.0


class Runner:
    """Computes in a thread of its own.

    What a stage has finished is shown even if a newer request waits, so that something moves while a slider does; the
    stages after it are dropped.

    Args:
        fail: gets what a stage raised.
        idle: called when nothing is left to do.

    >>> done = threading.Event()
    >>> runner = Runner(fail=print, idle=done.set)
    >>> runner.submit([Stage(lambda check: 6 * 7, print)])
    >>> done.wait(5), runner.close()
    42
    (True, None)
    """

    def __init__(self, fail: Callable[[Exception], None], idle: Callable[[], None]) -> None:
        self._fail, self._idle = fail, idle
        self._changed = threading.Condition()
        self._newest: list[Stage] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.busy = False

    @property
    def has_work(self) -> bool:
        """Whether something is computed or waits."""
        return self.busy or self._newest is not None

    def submit(self, stages: Sequence[Stage]) -> None:
        """Compute this next, instead of all that waits."""
        with self._changed:
            if self._closed:
                return
            self._newest = list(stages)
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
                stages, self._newest = self._newest, None
                self.busy = True
            self._run(stages)
            with self._changed:
                self.busy = False
                finished = self._newest is None and not self._closed
            if finished:
                self._idle()

    def _run(self, stages: list[Stage]) -> None:
        for stage in stages:
            with self._changed:
                if self._changed.wait_for(self._is_unwanted, stage.rest):
                    return
            try:
                found = stage.compute(self._check)
            except DroppedError:
                return
            # whatever it is, the page tells it and the next request is served
            except Exception as error:
                if not self._closed:
                    self._fail(error)
                return
            if self._closed:
                return
            stage.show(found)
