"""Run workloads in order: time them in turn with the peers, compare, and collect one report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import crf, encoding, filters, layers, peers, run_time, upsampling
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload, select
from benchmarks.timing import OtherLoad, Timing, kernel_seconds, time_in_turn
from experiments.results import describe_environment
from permutohedral.errors import BackendUnavailable, InputError

WORKLOADS: tuple[Workload, ...] = (
    *filters.WORKLOADS,
    *layers.WORKLOADS,
    *crf.WORKLOADS,
    *upsampling.WORKLOADS,
    *encoding.WORKLOADS,
    *run_time.WORKLOADS,
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
        The report, ready for JSON: `environment`, `options` and a list `results`.

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
    profiled: list[tuple[dict[str, Any], Prepared]] = []
    inputs = Inputs(options.data, device)
    try:
        for number, workload in enumerate(workloads, 1):
            log(f"{workload.name} ({number} of {len(workloads)}): {workload.summary}")
            results += _run_workload(workload, options, inputs, profiled)
        for figures, prepared in profiled:
            seconds = kernel_seconds(prepared.ours.run)
            by_kernel = {name: prepared.per_second * each for name, each in seconds.items()}
            figures.update({"kernels": sum(by_kernel.values()), "by_kernel": by_kernel})
    except KeyboardInterrupt:
        log(f"interrupted: {len(results)} results are reported, {workload.name} and later ones are not")
    finally:
        peers.set_threads(previous)
    return {
        "schema": 4,
        "environment": describe_environment(device),
        "options": {name: value for name, value in asdict(options).items() if name != "data"},
        "results": results,
    }


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device must be 'cpu' or 'cuda', got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("device 'cuda': torch finds no GPU here; pass --device cpu")
    return torch.device(name)


def _run_workload(
    workload: Workload, options: Options, inputs: Inputs, profiled: list[tuple[dict[str, Any], Prepared]]
) -> list[dict[str, Any]]:
    """Return a result for each thread count; a failed one holds its reason. Appends to `profiled`."""
    device = inputs.device.type
    base = {name: getattr(workload, name) for name in ("summary", "table", "unit")}
    base = {"workload": workload.name, **base, "device": device}
    results: list[dict[str, Any]] = []
    threads = options.threads[:1] if device == "cuda" else options.threads
    try:
        peers.set_threads(max(threads))
        prepared = None if workload.prepare is None else workload.prepare(inputs)
        for count in threads:
            peers.set_threads(count)
            with OtherLoad() as load:
                if prepared is None:
                    found = _measure(workload, options, inputs, count)
                else:
                    found = _time(prepared, options, inputs)
            if prepared is not None and device == "cuda":
                profiled.append((found["ours"], prepared))
            results.append({**base, "threads": count, "other_cores": load.cores, **found})
    except Exception as error:  # one failing workload must not cost the figures of the others
        results.append({**base, "threads": threads[len(results)], "failed": f"{type(error).__name__}: {error}"})
    prepared = None
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return results


def _time(prepared: Prepared, options: Options, inputs: Inputs) -> dict[str, Any]:
    others = list(prepared.others) if options.peers else []
    present = [prepared.ours, *(peer for peer in others if isinstance(peer, Contender))]
    # every input at least once
    timings = time_in_turn(present, max(options.repeats, prepared.num_inputs), inputs.device)
    rows = [_figures(*each, prepared.per_second) for each in zip(present, timings, strict=True)]
    absent = [peer for peer in others if isinstance(peer, Absent)]
    return {**_compare(rows, absent), "origin": prepared.origin}


def _measure(workload: Workload, options: Options, inputs: Inputs, threads: int) -> dict[str, Any]:
    assert workload.measure is not None
    measured = workload.measure(inputs, threads, options.repeats, options.peers)
    rows = [_figures(Contender(name, float), Timing(samples), 1.0) for name, samples in measured.samples.items()]
    rows.sort(key=lambda row: bool(row["name"] != OURS))
    return _compare(rows, measured.absent)


def _compare(rows: list[dict[str, Any]], absent: Sequence[Absent]) -> dict[str, Any]:
    """Return the first row as ours, next to the others."""
    ours, *others = rows
    others = [{**row, "ratio": row["median"] / max(ours["median"], 1e-12)} for row in others]
    return {"ours": ours, "others": others, "absent": [asdict(peer) for peer in absent]}


def _figures(contender: Contender, timing: Timing, scale: float) -> dict[str, Any]:
    figures = {
        "name": contender.name,
        "version": contender.version,
        "median": timing.median * scale,
        "quartiles": [timing.quantile(0.25) * scale, timing.quantile(0.75) * scale],
        "repetitions": len(timing.seconds),
        "error": timing.error,
        "note": contender.note,
        "is_peer": contender.is_peer,
    }
    if timing.baseline_seconds:
        figures["subtracted"] = timing.baseline * scale
    return figures
