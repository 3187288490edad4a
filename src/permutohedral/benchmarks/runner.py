"""Runs workloads in order: check, time in turn with the peers, compare, into one report."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from permutohedral.benchmarks import environment, peers
from permutohedral.benchmarks.gpu_workloads import GPU_WORKLOADS
from permutohedral.benchmarks.inputs import Inputs
from permutohedral.benchmarks.registry import OURS, Measured, Prepared, Workload, select
from permutohedral.benchmarks.timing import Absent, Contender, OtherLoad, Timing, kernel_seconds, time_in_turn
from permutohedral.benchmarks.verify import OperatorDisagrees
from permutohedral.benchmarks.workloads import WORKLOADS
from permutohedral.errors import BackendUnavailable, InputError

ALL_WORKLOADS = (*WORKLOADS, *GPU_WORKLOADS)

# the part of the test suite that the operators answer for
_OPERATOR_TESTS = ("tests/ops", "tests/test_lattice.py", "tests/test_functional.py")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        only: names of workloads, None for all of the device.
        device: "cpu" or "cuda".
        threads: thread counts, one after another; on a GPU the first is taken.
        repeats: rounds of repetitions.
        with_peers: also run the libraries that are installed.
        data: folder with BSDS500, or None.
        tests: run the operators' tests first, from a source tree.
    """

    only: Sequence[str] | None = None
    device: str = "cpu"
    threads: Sequence[int] = (1,)
    repeats: int = 7
    with_peers: bool = True
    data: Path | None = None
    tests: bool = False


def run(options: Options, say: Say = lambda message: None) -> dict[str, Any]:
    """Run the workloads that `options` select.

    Args:
        options: what to run.
        say: called with a line about what happens next.

    Returns:
        The report, ready for JSON: `environment`, `yardstick`, `options` and a list `results`.

    Raises:
        InputError: an unknown name, or no such device here.
        OperatorDisagrees: the operators' tests fail.
    """
    device = _device(options.device)
    workloads = select(ALL_WORKLOADS, options.only, device.type)
    if options.repeats < 1 or not options.threads or min(options.threads) < 1:
        raise InputError("repeats and threads must be at least 1")
    if options.tests:
        say("running the operators' tests")
        _run_tests(device)
    previous = torch.get_num_threads()
    results: list[dict[str, Any]] = []
    # after all timings: a profiler slows down what the process starts later
    profiled: list[_Profiled] = []
    say("yardstick: sort of 6 M keys")
    yardstick = environment.yardstick(device)
    inputs = Inputs(options.data, device)
    try:
        for number, workload in enumerate(workloads, 1):
            say(f"{workload.name} ({number} of {len(workloads)}): {workload.summary}")
            results += _run_workload(workload, options, inputs, profiled)
        for figures, prepared, scale in profiled:
            figures.update(_by_kernel(prepared.ours.run, scale))
    except KeyboardInterrupt:
        # what has been measured is kept; a second interruption ends it all
        say(f"interrupted: {len(results)} results are reported, {workload.name} and what follows are not")
    finally:
        peers.set_threads(previous)
    say("yardstick again")
    # the machine may have been busy at one of the two times
    yardstick = min(yardstick, environment.yardstick(device), key=lambda one: float(one["seconds"]))
    yardstick |= _slowness(results, yardstick["ratio"])
    for result in results:
        result["recorded"] = _recorded(result, yardstick["slowness"])
    about = environment.describe(device)
    return {
        "schema": 1,
        "environment": about,
        "yardstick": yardstick,
        "options": _as_json(options),
        "results": results,
    }


# figures to complete, whose they are, and the factor of their seconds
_Profiled = tuple[dict[str, Any], Prepared, float]


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda', got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("device 'cuda' was asked for, but torch finds no GPU here")
    return torch.device(name)


def _run_workload(
    workload: Workload, options: Options, inputs: Inputs, profiled: list[_Profiled]
) -> list[dict[str, Any]]:
    """One result for each thread count; a refused one says why. Adds to what is to be profiled."""
    base = {"workload": workload.name, "summary": workload.summary, "unit": workload.unit, "device": workload.device}
    results: list[dict[str, Any]] = []
    threads = options.threads[:1] if workload.device == "cuda" else options.threads
    try:
        peers.set_threads(max(threads))
        prepared = None if workload.prepare is None else workload.prepare(inputs)
        for count in threads:
            peers.set_threads(count)
            if prepared is None:
                found = _measure(workload, options, inputs, count)
            else:
                found = {"checked": prepared.check(), **_time(workload, prepared, options, inputs)}
                if inputs.device.type == "cuda":
                    profiled.append((found["ours"], prepared, prepared.per_second or workload.per_second))
            results.append({**base, "threads": count, **found})
    except OperatorDisagrees as error:
        results.append({**base, "threads": threads[len(results)], "refused": str(error)})
    except Exception as error:  # one workload that fails must not cost the figures of the others
        reason = f"failed with {type(error).__name__}: {error}"
        results.append({**base, "threads": threads[len(results)], "refused": reason})
    prepared = None
    gc.collect()
    if inputs.device.type == "cuda":
        torch.cuda.empty_cache()
    return results


def _time(workload: Workload, prepared: Prepared, options: Options, inputs: Inputs) -> dict[str, Any]:
    scale = prepared.per_second or workload.per_second
    others = list(prepared.peers) if options.with_peers else []
    present = [peer for peer in others if isinstance(peer, Contender)]
    with OtherLoad() as load:
        ours, *theirs = time_in_turn([prepared.ours, *present], options.repeats, inputs.device)
    result: dict[str, Any] = {
        "origin": prepared.origin,
        "facts": prepared.facts,
        "truth": prepared.truth,
        "other_cores": load.cores,
    }
    result["ours"] = _figures(prepared.ours, ours, scale)
    result["peers"] = [
        {**_figures(peer, timing, scale), "ratio": timing.median / max(ours.median, 1e-12)}
        for peer, timing in zip(present, theirs, strict=True)
    ]
    result["absent"] = [_absent(peer) for peer in others if isinstance(peer, Absent)]
    return result


def _by_kernel(run: Callable[[], Any], scale: float) -> dict[str, Any]:
    by_kernel = {name: seconds * scale for name, seconds in kernel_seconds(run).items()}
    return {"kernels": sum(by_kernel.values()), "by_kernel": by_kernel}


def _figures(contender: Contender, timing: Timing, scale: float) -> dict[str, Any]:
    low, high = timing.quartiles
    figures = {
        "name": contender.name,
        "version": contender.version,
        "median": timing.median * scale,
        "quartiles": [low * scale, high * scale],
        "fastest": (min(timing.seconds) - timing.baseline) * scale,
        "repetitions": len(timing.seconds),
        "error": timing.error,
        "note": contender.note,
    }
    if timing.baseline_seconds:
        figures["subtracted"] = timing.baseline * scale
    return figures


def _measure(workload: Workload, options: Options, inputs: Inputs, threads: int) -> dict[str, Any]:
    assert workload.measure is not None
    with OtherLoad() as load:
        measured: Measured = workload.measure(inputs, threads, options.repeats, options.with_peers)
    medians = {name: statistics.median(samples) for name, samples in measured.samples.items()}
    rows = {
        name: {
            "name": name,
            "median": medians[name],
            "quartiles": [min(samples), max(samples)],
            "repetitions": len(samples),
            "error": None,
            "note": "",
        }
        for name, samples in measured.samples.items()
    }
    ours = rows.pop(OURS)
    others = [{**row, "ratio": medians[name] / max(medians[OURS], 1e-12)} for name, row in rows.items()]
    absent = [_absent(peer) for peer in measured.absent]
    return {"ours": ours, "peers": others, "absent": absent, "facts": measured.facts, "other_cores": load.cores}


def _absent(peer: Absent) -> dict[str, str]:
    return {"name": peer.name, "reason": peer.reason}


def _slowness(results: list[dict[str, Any]], sort_ratio: float) -> dict[str, Any]:
    """How much slower this machine is than the one of the recorded figures, and how that is known.

    A peer that was recorded there and runs here tells it best; the sort depends on torch's version too.
    """
    ratios = []
    for result in results:
        workload = next(workload for workload in ALL_WORKLOADS if workload.name == result["workload"])
        there = next((entry.at(result["threads"]) for entry in workload.recorded if entry.peer == "pydensecrf"), None)
        here = next((peer["median"] for peer in result.get("peers", ()) if peer["name"] == peers.DENSECRF), None)
        if there and here and workload.unit != "MB":
            ratios.append(here / there)
    if ratios:
        return {"slowness": statistics.median(ratios), "slowness_by": f"{peers.DENSECRF} here and there"}
    return {"slowness": sort_ratio, "slowness_by": "the sort here and there"}


def _recorded(result: dict[str, Any], slowness: float) -> list[dict[str, Any]]:
    """The recorded figures of peers for a result, times scaled to this machine."""
    workload = next(workload for workload in ALL_WORKLOADS if workload.name == result["workload"])
    # bytes do not depend on the speed of the machine
    factor = 1.0 if workload.unit == "MB" else slowness
    entries = []
    for recorded in workload.recorded:
        value = recorded.at(result["threads"])
        if value is not None and "refused" not in result:
            ratio = value * factor / max(result["ours"]["median"], 1e-12)
            entries.append({"name": recorded.peer, "value": value, "scaled": value * factor, "ratio": ratio})
    return entries


def _run_tests(device: torch.device) -> None:
    root = environment.checkout()
    if root is None:
        raise InputError("the tests are in the source tree, and the package runs from elsewhere; leave out --tests")
    present = [path for path in _OPERATOR_TESTS if (root / path).exists()]
    command = [sys.executable, "-m", "pytest", "--quiet", "-x", *present]
    if device.type == "cpu":
        # those would run in an interpreter, for minutes
        command += ["-k", "not triton"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise OperatorDisagrees(f"the operators' tests fail, so no speed is reported:\n{tail}")


def _as_json(options: Options) -> dict[str, Any]:
    return {
        "only": None if options.only is None else list(options.only),
        "threads": list(options.threads),
        "repeats": options.repeats,
        "peers": options.with_peers,
        "tests": options.tests,
    }
