"""Run workloads in order: check, time in turn with the peers, compare, and collect one report."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import arrays, crf, environment, filters, layers, levels, peers, upsampling
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload, select
from benchmarks.timing import OtherLoad, Timing, kernel_seconds, time_in_turn
from benchmarks.verify import OperatorDisagrees
from permutohedral.errors import BackendUnavailable, InputError

WORKLOADS: tuple[Workload, ...] = (
    *filters.WORKLOADS,
    *layers.WORKLOADS,
    *crf.WORKLOADS,
    *upsampling.WORKLOADS,
    *levels.WORKLOADS,
    *arrays.WORKLOADS,
)

Log = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        only: names of workloads, None for the default ones of the device.
        device: "cpu" or "cuda".
        threads: thread counts, one after another; a GPU uses the first.
        repeats: rounds of repetitions.
        peers: also run the libraries that are installed.
        data: folder with BSDS500, or None.
    """

    only: Sequence[str] | None = None
    device: str = "cpu"
    threads: Sequence[int] = (1,)
    repeats: int = 7
    peers: bool = True
    data: Path | None = None


def run(options: Options, log: Log = lambda message: None) -> dict[str, Any]:
    """Run the workloads that `options` select.

    Args:
        options: of the run.
        log: called with a line for each step.

    Returns:
        The report, ready for JSON: `environment`, `yardstick`, `options` and a list `results`.

    Raises:
        InputError: an unknown name, or numbers below 1.
        BackendUnavailable: the device does not exist here.
    """
    device = _device(options.device)
    workloads = select(WORKLOADS, options.only, device.type)
    if options.repeats < 1 or not options.threads or min(options.threads) < 1:
        raise InputError(f"repeats and threads must be at least 1, got {options.repeats} and {options.threads}")
    previous = torch.get_num_threads()
    results: list[dict[str, Any]] = []
    # after all timings: a profiler slows down everything that the process starts later
    profiled: list[tuple[dict[str, Any], Prepared, float]] = []
    log("yardstick: sort of 6 M keys")
    yardstick = environment.yardstick(device)
    inputs = Inputs(options.data, device)
    try:
        for number, workload in enumerate(workloads, 1):
            log(f"{workload.name} ({number} of {len(workloads)}): {workload.summary}")
            results += _run_workload(workload, options, inputs, profiled)
        for figures, prepared, scale in profiled:
            by_kernel = {name: scale * seconds for name, seconds in kernel_seconds(prepared.ours.run).items()}
            figures.update({"kernels": sum(by_kernel.values()), "by_kernel": by_kernel})
    except KeyboardInterrupt:
        log(f"interrupted: {len(results)} results are reported, {workload.name} and later ones are not")
    finally:
        peers.set_threads(previous)
    log("yardstick again")
    # the machine may have been busy during one of the two
    yardstick = min(yardstick, environment.yardstick(device), key=lambda one: float(one["seconds"]))
    yardstick |= _slowness(results, yardstick["ratio"])
    for result in results:
        result["recorded"] = _recorded(result, yardstick["slowness"])
    chosen = {name: value for name, value in asdict(options).items() if name != "data"}
    about = environment.describe(device)
    return {"schema": 2, "environment": about, "yardstick": yardstick, "options": chosen, "results": results}


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda', got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("device 'cuda': torch finds no GPU here; pass --device cpu")
    return torch.device(name)


def _run_workload(
    workload: Workload, options: Options, inputs: Inputs, profiled: list[tuple[dict[str, Any], Prepared, float]]
) -> list[dict[str, Any]]:
    """Return a result for each thread count; a failed one holds its reason. Appends to `profiled`."""
    device = inputs.device.type
    base = {"workload": workload.name, "summary": workload.summary, "unit": workload.unit, "device": device}
    results: list[dict[str, Any]] = []
    threads = options.threads[:1] if device == "cuda" else options.threads
    try:
        peers.set_threads(max(threads))
        prepared = None if workload.prepare is None else workload.prepare(inputs)
        for count in threads:
            peers.set_threads(count)
            if prepared is None:
                found = _measure(workload, options, inputs, count)
            else:
                found = {"checked": prepared.check(), **_time(workload, prepared, options, inputs)}
                if device == "cuda":
                    profiled.append((found["ours"], prepared, prepared.per_second or workload.per_second))
            results.append({**base, "threads": count, **found})
    except OperatorDisagrees as error:
        results.append({**base, "threads": threads[len(results)], "failed": str(error)})
    except Exception as error:  # one failing workload must not cost the figures of the others
        results.append({**base, "threads": threads[len(results)], "failed": f"{type(error).__name__}: {error}"})
    prepared = None
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return results


def _time(workload: Workload, prepared: Prepared, options: Options, inputs: Inputs) -> dict[str, Any]:
    scale = prepared.per_second or workload.per_second
    others = list(prepared.peers) if options.peers else []
    present = [peer for peer in others if isinstance(peer, Contender)]
    # every input at least once
    repeats = max(options.repeats, prepared.num_inputs)
    with OtherLoad() as load:
        ours, *theirs = time_in_turn([prepared.ours, *present], repeats, inputs.device)
    return {
        "origin": prepared.origin,
        "facts": prepared.facts,
        "truth": prepared.truth,
        "other_cores": load.cores,
        "ours": _figures(prepared.ours, ours, scale),
        "peers": [
            {**_figures(peer, timing, scale), "ratio": timing.median / max(ours.median, 1e-12)}
            for peer, timing in zip(present, theirs, strict=True)
        ],
        "absent": [asdict(peer) for peer in others if isinstance(peer, Absent)],
    }


def _figures(contender: Contender, timing: Timing, scale: float) -> dict[str, Any]:
    figures = {
        "name": contender.name,
        "version": contender.version,
        "median": timing.median * scale,
        "quartiles": [timing.quantile(0.25) * scale, timing.quantile(0.75) * scale],
        "p90": timing.quantile(0.9) * scale,
        "repetitions": len(timing.seconds),
        "error": timing.error,
        "note": contender.note,
        "same_task": contender.same_task,
    }
    if timing.baseline_seconds:
        figures["subtracted"] = timing.baseline * scale
    return figures


def _measure(workload: Workload, options: Options, inputs: Inputs, threads: int) -> dict[str, Any]:
    assert workload.measure is not None
    with OtherLoad() as load:
        measured = workload.measure(inputs, threads, options.repeats, options.peers)
    medians = {name: statistics.median(samples) for name, samples in measured.samples.items()}
    rows = {
        name: {
            "name": name,
            "median": medians[name],
            "quartiles": [min(samples), max(samples)],
            "p90": max(samples),
            "repetitions": len(samples),
            "error": None,
            "note": "",
            "same_task": True,
        }
        for name, samples in measured.samples.items()
    }
    return {
        "ours": rows.pop(OURS),
        "peers": [{**row, "ratio": medians[name] / max(medians[OURS], 1e-12)} for name, row in rows.items()],
        "absent": [asdict(peer) for peer in measured.absent],
        "facts": measured.facts,
        "other_cores": load.cores,
    }


def _slowness(results: list[dict[str, Any]], sort_ratio: float) -> dict[str, Any]:
    """Return the ratio of speeds between the machine of the recorded figures and this one.

    A peer that was recorded there and runs here is the best measure; the sort also depends on torch's version.
    """
    ratios = []
    for result in results:
        workload = next(workload for workload in WORKLOADS if workload.name == result["workload"])
        there = next((entry.at(result["threads"]) for entry in workload.recorded if entry.peer == "pydensecrf"), None)
        here = next((peer["median"] for peer in result.get("peers", ()) if peer["name"] == peers.DENSECRF), None)
        if there and here and workload.unit != "MB":
            ratios.append(here / there)
    if ratios:
        return {"slowness": statistics.median(ratios), "slowness_by": f"{peers.DENSECRF} here and there"}
    return {"slowness": sort_ratio, "slowness_by": "the sort here and there"}


def _recorded(result: dict[str, Any], slowness: float) -> list[dict[str, Any]]:
    """Return the recorded figures of peers for a result, with times scaled to this machine."""
    workload = next(workload for workload in WORKLOADS if workload.name == result["workload"])
    # bytes do not depend on the speed of the machine
    factor = 1.0 if workload.unit == "MB" else slowness
    entries = []
    for recorded in workload.recorded:
        value = recorded.at(result["threads"])
        if value is not None and "failed" not in result:
            ratio = value * factor / max(result["ours"]["median"], 1e-12)
            entries.append({"name": recorded.peer, "value": value, "scaled": value * factor, "ratio": ratio})
    return entries
