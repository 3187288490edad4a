"""Repeated runs of several contenders in turn, so that whatever else the machine does falls on all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# a contender that takes less is run several times in a row, up to a limit, and every run counts
_BURST_SECONDS = 0.04
_LONGEST_BURST = 20
# a contender that takes longer in all is not run again, once it has this many repetitions
_MOST_SECONDS = 10.0
_FEWEST_REPETITIONS = 5
# the names of torch's kernels hold all their template arguments
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Contender:
    """One way to do a workload's operation.

    Attributes:
        name: who does it.
        run: what is timed.
        before: run before each repetition, untimed.
        baseline: what `run` does besides the operation because its interface leaves no choice; timed apart, its
            median is subtracted.
        error: relative L2 error of what `run` returned, against the truth the workload names.
        note: what differs from the others, in words.
        version: of the library.
    """

    name: str
    run: Callable[[], Any]
    before: Callable[[], Any] | None = None
    baseline: Callable[[], Any] | None = None
    error: Callable[[Any], float] | None = None
    note: str = ""
    version: str | None = None


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part, and why."""

    name: str
    reason: str


@dataclass
class Timing:
    """Seconds of the repetitions of one contender.

    Attributes:
        seconds: one entry for each repetition.
        baseline_seconds: the same of its baseline, if it has one.
        error: relative L2 error of its result, None where none is defined.
    """

    seconds: list[float] = field(default_factory=list)
    baseline_seconds: list[float] = field(default_factory=list)
    error: float | None = None

    @property
    def baseline(self) -> float:
        """Median of what is subtracted from every repetition."""
        return statistics.median(self.baseline_seconds) if self.baseline_seconds else 0.0

    @property
    def median(self) -> float:
        return max(statistics.median(self.seconds) - self.baseline, 0.0)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the repetitions lie between these."""
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low - self.baseline, high - self.baseline


def time_in_turn(contenders: list[Contender], repeats: int, device: torch.device) -> list[Timing]:
    """Warm every contender up once, then let them run in turn, `repeats` rounds of it."""
    timings = [Timing() for _ in contenders]
    bursts = []
    for contender, timing in zip(contenders, timings, strict=True):
        if contender.before is not None:
            contender.before()
        output = contender.run()
        if contender.error is not None:
            timing.error = contender.error(output)
        del output
        # the first run also compiled, allocated and read from disk
        bursts.append(min(_LONGEST_BURST, max(1, int(_BURST_SECONDS / max(_time_once(contender, device), 1e-9)))))
    for _ in range(repeats):
        for contender, timing, burst in zip(contenders, timings, bursts, strict=True):
            if len(timing.seconds) >= _FEWEST_REPETITIONS and sum(timing.seconds) > _MOST_SECONDS:
                continue
            if contender.baseline is not None:
                timing.baseline_seconds.append(_stopwatch(contender.baseline, device))
            timing.seconds.extend(_time_once(contender, device) for _ in range(burst))
    return timings


def _time_once(contender: Contender, device: torch.device) -> float:
    if contender.before is not None:
        contender.before()
    return _stopwatch(contender.run, device)


def _stopwatch(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds that `run` takes: of the GPU between two events, or of the clock on the CPU."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000
    started = time.perf_counter()
    # kept until the clock is read: freeing the result is not part of the operation
    output = run()
    seconds = time.perf_counter() - started
    del output
    return seconds


def kernel_seconds(run: Callable[[], Any], repeats: int = 5) -> dict[str, float]:
    """Seconds that each of the GPU's kernels takes in a run, without the gaps between them; the longest first."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    events = (event for event in profile.key_averages() if event.device_type.name == "CUDA")
    found = {event.key[:_LONGEST_NAME]: event.self_device_time_total / 1e6 / repeats for event in events}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


class OtherLoad:
    """Watches how many cores other processes keep busy, which spoils times.

    >>> with OtherLoad() as load:
    ...     pass
    >>> load.cores is None or load.cores >= 0
    True
    """

    cores: float | None = None

    def __enter__(self) -> OtherLoad:
        self._started = time.perf_counter()
        self._busy, self._own = _busy_seconds(), sum(os.times()[:4])
        return self

    def __exit__(self, *unused: object) -> None:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        busy = _busy_seconds()
        if busy is not None and self._busy is not None:
            self.cores = max(0.0, (busy - self._busy - (sum(os.times()[:4]) - self._own)) / seconds)


def _busy_seconds() -> float | None:
    """Seconds that all cores together have been busy, None where the system does not tell."""
    try:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, lines.readline().split()[1:])
    except (OSError, ValueError):
        return None
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")
