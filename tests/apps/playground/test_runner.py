"""The runner drops old requests and computes one at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from permutohedral.apps.playground.runner import Progress, Request, Runner, Steps

PATIENCE = 10.0


class Recorder:
    """A runner, its results, and a gate that holds computations until it is opened."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.failed: list[Exception] = []
        self.busy: list[tuple[bool, float | None]] = []
        self.gate, self.started = threading.Event(), threading.Event()
        self.running = self.most_running = 0
        self.runner = Runner(self.failed.append, lambda *state: self.busy.append(state))

    def submit(self, request: Request) -> None:
        self.runner.submit(request, self.shown.append)

    def submit_names(self, *names: str) -> None:
        """Submit a request that shows the names after the gate is open."""

        def steps(progress: Progress) -> Steps:
            for name in names:
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                self.started.set()
                assert self.gate.wait(PATIENCE)
                self.running -= 1
                yield name

        self.submit(steps)

    async def until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_true():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)

    async def idle(self) -> None:
        await self.until(lambda: self.busy[-1:] == [(False, None)])


def run(test: Callable[[Recorder], Any]) -> None:
    """Run an asynchronous test."""

    async def with_recorder() -> None:
        await test(Recorder())

    asyncio.run(with_recorder())


def test_drops_old_requests_and_runs_one_at_a_time() -> None:
    async def test(recorder: Recorder) -> None:
        recorder.submit_names("preview 1", "full 1")
        await recorder.until(recorder.started.is_set)
        for number in range(2, 9):
            recorder.submit_names(f"preview {number}", f"full {number}")
        recorder.gate.set()
        await recorder.idle()
        # the running request shows one result and ends; of the waiting ones only the newest runs
        assert recorder.shown == ["preview 1", "preview 8", "full 8"]
        assert recorder.most_running == 1

    run(test)


@pytest.mark.parametrize("wait", [False, True])
def test_ends_a_request_after_a_newer_one(wait: bool) -> None:
    """During a computation that reports its progress, and while it waits for the slider to rest."""

    async def test(recorder: Recorder) -> None:
        def endless(progress: Progress) -> Steps:
            recorder.started.set()
            while not wait:
                progress(0.5)
            yield 1000.0

        recorder.gate.set()
        recorder.submit(endless)
        await recorder.until(recorder.started.is_set)
        await asyncio.sleep(0.05)
        recorder.submit_names("newer")
        await recorder.idle()
        assert (recorder.shown, recorder.failed) == (["newer"], [])
        assert wait or (True, 0.5) in recorder.busy

    run(test)


def test_drops_the_error_of_a_request_after_a_newer_one() -> None:
    """The file of an earlier photo may be deleted."""

    async def test(recorder: Recorder) -> None:
        def fail(progress: Progress) -> Steps:
            recorder.started.set()
            assert recorder.gate.wait(PATIENCE)
            raise FileNotFoundError
            yield 0.0

        recorder.submit(fail)
        await recorder.until(recorder.started.is_set)
        recorder.submit_names("newer")
        recorder.gate.set()
        await recorder.idle()
        assert (recorder.shown, recorder.failed) == (["newer"], [])

    run(test)


def test_reports_an_error_and_runs_the_next_request() -> None:
    async def test(recorder: Recorder) -> None:
        def fail(progress: Progress) -> Steps:
            if progress is not None:
                raise ValueError("no")
            yield "after the error"

        recorder.gate.set()
        recorder.submit(fail)
        await recorder.idle()
        recorder.busy.clear()
        recorder.submit_names("next")
        await recorder.idle()
        assert [str(error) for error in recorder.failed] == ["no"]
        assert recorder.shown == ["next"]

    run(test)


@pytest.mark.parametrize("way", ["drop", "close"])
def test_shows_no_results_of_dropped_requests(way: str) -> None:
    async def test(recorder: Recorder) -> None:
        recorder.submit_names("late")
        await recorder.until(recorder.started.is_set)
        recorder.submit_names("later")
        getattr(recorder.runner, way)()
        recorder.gate.set()
        await recorder.idle()
        assert not recorder.runner.is_computing
        recorder.submit_names("new")
        await asyncio.sleep(0.1)
        assert recorder.shown == (["new"] if way == "drop" else [])

    run(test)
