"""The runner drops old requests and computes one at a time."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from permutohedral.apps.playground.runner import Check, Request, Runner, Steps

PATIENCE = 10.0


class Recorder:
    """A runner, its results, and gates that hold computations until they are opened."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.failed: list[Exception] = []
        self.idle = threading.Event()
        self.running = 0
        self.most_running = 0
        self.runner = Runner(lambda show: show(), self.failed.append, self.idle.set)

    def request(
        self, *names: str, gate: threading.Event | None = None, started: threading.Event | None = None
    ) -> Request:
        """Return a request that shows the names after the gate is open."""

        def steps(check: Check) -> Steps:
            for name in names:
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                if started is not None:
                    started.set()
                assert gate is None or gate.wait(PATIENCE)
                self.running -= 1
                yield partial(self.shown.append, name)

        return steps


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_drops_old_requests_and_runs_one_at_a_time(recorder: Recorder) -> None:
    gate, started = threading.Event(), threading.Event()
    recorder.runner.submit(recorder.request("preview 1", "full 1", gate=gate, started=started))
    assert started.wait(PATIENCE)
    for number in range(2, 9):
        recorder.runner.submit(recorder.request(f"preview {number}", f"full {number}"))
    gate.set()
    assert recorder.idle.wait(PATIENCE)
    # the running request shows one result and ends; of the waiting ones only the newest runs
    assert recorder.shown == ["preview 1", "preview 8", "full 8"]
    assert recorder.most_running == 1


def test_check_ends_a_request_after_a_newer_one(recorder: Recorder) -> None:
    started = threading.Event()

    def endless(check: Check) -> Steps:
        started.set()
        while True:
            check()
        yield 0.0

    recorder.runner.submit(endless)
    assert started.wait(PATIENCE)
    recorder.runner.submit(recorder.request("newer"))
    assert recorder.idle.wait(PATIENCE)
    assert recorder.shown == ["newer"]
    assert recorder.failed == []


def test_drops_the_error_of_a_request_after_a_newer_one(recorder: Recorder) -> None:
    """The file of an earlier photo may be deleted."""
    gate, started = threading.Event(), threading.Event()

    def fail(check: Check) -> Steps:
        started.set()
        assert gate.wait(PATIENCE)
        raise FileNotFoundError
        yield 0.0

    recorder.runner.submit(fail)
    assert started.wait(PATIENCE)
    recorder.runner.submit(recorder.request("newer"))
    gate.set()
    assert recorder.idle.wait(PATIENCE)
    assert (recorder.shown, recorder.failed) == (["newer"], [])


def test_reports_an_error_and_runs_the_next_request(recorder: Recorder) -> None:
    def fail(check: Check) -> Steps:
        if check is not None:
            raise ValueError("no")
        yield partial(recorder.shown.append, "after the error")

    recorder.runner.submit(fail)
    assert recorder.idle.wait(PATIENCE)
    recorder.idle.clear()
    recorder.runner.submit(recorder.request("next"))
    assert recorder.idle.wait(PATIENCE)
    assert [str(error) for error in recorder.failed] == ["no"]
    assert recorder.shown == ["next"]


def test_shows_no_results_after_close(recorder: Recorder) -> None:
    gate, started = threading.Event(), threading.Event()
    recorder.runner.submit(recorder.request("late", gate=gate, started=started))
    assert started.wait(PATIENCE)
    recorder.runner.close()
    gate.set()
    recorder.runner.submit(recorder.request("later"))
    deadline = time.monotonic() + PATIENCE
    while recorder.runner.busy and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not recorder.runner.busy
    assert recorder.shown == []
