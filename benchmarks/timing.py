"""Timing of several contenders in turn, so that other load on the machine affects all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from benchmarks.registry import Contender

# a faster contender runs several times in a row, and every run counts
_BURST_SECONDS = 0.04
_LONGEST_BURST = 20
# a slower contender stops once it has this many repetitions
_MOST_SECONDS = 10.0
_FEWEST_REPETITIONS = 3
# names of torch's kernels contain all their template arguments
_LONGEST_NAME = 60


@dataclass
class Timing:
    """Seconds of the repetitions of one contender.

    Attributes:
        seconds: one entry for each repetition.
        baseline_seconds: the same of its baseline.
        error: relative L2 error of its result, or None.
    """

    seconds: list[float] = field(default_factory=list)
    baseline_seconds: list[float] = field(default_factory=list)
    error: float | None = None

    @property
    def baseline(self) -> float:
        """Median of the baseline, which is subtracted from every repetition."""
        return statistics.median(self.baseline_seconds) if self.baseline_seconds else 0.0

    @property
    def median(self) -> float:
        return max(statistics.median(self.seconds) - self.baseline, 0.0)

    def quantile(self, share: float) -> float:
        """Return the time that this share of the repetitions stays below."""
        ordered = sorted(self.seconds)
        return ordered[int(share * (len(ordered) - 1) + 0.5)] - self.baseline


def time_in_turn(contenders: list[Contender], repeats: int, device: torch.device) -> list[Timing]:
    """Warm up every contender once, then run them in turn for a number of rounds."""
    timings = [Timing() for _ in contenders]
    bursts = []
    for contender, timing in zip(contenders, timings, strict=True):
        if contender.before is not None:
            contender.before(0)
        output = contender.run(0)
        if contender.error is not None:
            timing.error = contender.error(output)
        del output
        # the first run also compiled, allocated and read from disk
        timing.seconds.append(_time_once(contender, 0, device))
        bursts.append(min(_LONGEST_BURST, max(1, int(_BURST_SECONDS / max(timing.seconds[0], 1e-9)))))
    for _ in range(repeats):
        for contender, timing, burst in zip(contenders, timings, bursts, strict=True):
            if len(timing.seconds) >= _FEWEST_REPETITIONS and sum(timing.seconds) > _MOST_SECONDS:
                continue
            if contender.baseline is not None:
                timing.baseline_seconds.append(_stopwatch(contender.baseline, len(timing.seconds), device))
            for _ in range(burst):
                timing.seconds.append(_time_once(contender, len(timing.seconds), device))
    return timings


def _time_once(contender: Contender, number: int, device: torch.device) -> float:
    if contender.before is not None:
        contender.before(number)
    return _stopwatch(contender.run, number, device)


def _stopwatch(run: Callable[[int], Any], number: int, device: torch.device) -> float:
    """Return the seconds of a call, until a GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    # kept until the clock is read: freeing the result is not part of the operation
    output = run(number)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    del output
    return seconds


def kernel_seconds(run: Callable[[int], Any], repeats: int = 5) -> dict[str, float]:
    """Return the seconds of each GPU kernel in a run, without the gaps between them, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for number in range(repeats):
            run(number)
        torch.cuda.synchronize()
    events = (event for event in profile.key_averages() if event.device_type.name == "CUDA")
    found = {event.key[:_LONGEST_NAME]: event.self_device_time_total / 1e6 / repeats for event in events}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


class OtherLoad:
    """Measure how many cores other processes keep busy, which spoils times.

    >>> with OtherLoad() as load:
    ...     pass
    >>> load.cores >= 0
    True
    """

    cores: float = 0.0

    def __enter__(self) -> OtherLoad:
        self._started = time.perf_counter(), _busy_seconds(), sum(os.times()[:4])
        return self

    def __exit__(self, *unused: object) -> None:
        started, busy, own = self._started
        others = (_busy_seconds() - busy) - (sum(os.times()[:4]) - own)
        self.cores = max(0.0, others / max(time.perf_counter() - started, 1e-9))


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
