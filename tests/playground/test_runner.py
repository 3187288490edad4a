"""The runner drops old requests and never computes two things at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from permutohedral.playground.runner import Runner, Stage

PATIENCE = 10.0


class Recorder:
    """A runner, what it showed, and gates that hold computations until they are opened."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.failed: list[Exception] = []
        self.idle = threading.Event()
        self.running = 0
        self.most_running = 0
        self.runner = Runner(self.failed.append, self.idle.set)

    def stage(self, name: str, gate: threading.Event | None = None, started: threading.Event | None = None) -> Stage:
        def compute(check: Callable[[], None]) -> str:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            if started is not None:
                started.set()
            assert gate is None or gate.wait(PATIENCE)
            self.running -= 1
            return name

        return Stage(compute, self.shown.append)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_old_requests_are_dropped_and_never_two_run_at_once(recorder: Recorder) -> None:
    gate, started = threading.Event(), threading.Event()
    recorder.runner.submit([recorder.stage("preview 1", gate, started), recorder.stage("full 1")])
    assert started.wait(PATIENCE)
    for number in range(2, 9):
        recorder.runner.submit([recorder.stage(f"preview {number}"), recorder.stage(f"full {number}")])
    gate.set()
    assert recorder.idle.wait(PATIENCE)
    # what was computed already is shown, what it had still to do is not, and only the newest of those that waited is
    assert recorder.shown == ["preview 1", "preview 8", "full 8"]
    assert recorder.most_running == 1


def test_a_computation_that_looks_ends_when_a_newer_request_comes(recorder: Recorder) -> None:
    started = threading.Event()

    def endless(check: Callable[[], None]) -> None:
        started.set()
        while True:
            check()

    recorder.runner.submit([Stage(endless, recorder.shown.append)])
    assert started.wait(PATIENCE)
    recorder.runner.submit([recorder.stage("newer")])
    assert recorder.idle.wait(PATIENCE)
    assert recorder.shown == ["newer"]
    assert recorder.failed == []


def test_what_takes_long_waits_until_the_slider_rests(recorder: Recorder) -> None:
    slow = Stage(lambda check: "slow", recorder.shown.append, rest=PATIENCE)
    previewed = threading.Event()
    recorder.runner.submit([Stage(lambda check: "preview", lambda found: previewed.set()), slow])
    assert previewed.wait(PATIENCE)
    recorder.runner.submit([recorder.stage("newer")])
    # sooner than the rest is over
    assert recorder.idle.wait(PATIENCE / 2)
    assert recorder.shown == ["newer"]


def test_an_error_is_told_and_the_next_request_is_served(recorder: Recorder) -> None:
    def fail(check: Callable[[], None]) -> None:
        raise ValueError("no")

    recorder.runner.submit([Stage(fail, recorder.shown.append), recorder.stage("after the error")])
    assert recorder.idle.wait(PATIENCE)
    recorder.idle.clear()
    recorder.runner.submit([recorder.stage("next")])
    assert recorder.idle.wait(PATIENCE)
    assert [str(error) for error in recorder.failed] == ["no"]
    assert recorder.shown == ["next"]


def test_nothing_is_shown_after_the_end(recorder: Recorder) -> None:
    gate, started = threading.Event(), threading.Event()
    recorder.runner.submit([recorder.stage("late", gate, started)])
    assert started.wait(PATIENCE)
    recorder.runner.close()
    gate.set()
    recorder.runner.submit([recorder.stage("later")])
    deadline = time.monotonic() + PATIENCE
    while recorder.runner.busy and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not recorder.runner.busy
    assert recorder.shown == []
