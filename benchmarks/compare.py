"""Compare two versions of the package: `python -m benchmarks compare BASE`.

A process for each version runs the workloads of its own tree, in turns with the other, so that other load affects both.
A workload that only this tree has runs on both packages.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.registry import Workload, select
from benchmarks.report import align, format_number
from benchmarks.trees import ROOT, Process, Tree, WorkerError, build_core, find_tree
from permutohedral.errors import InputError, PermutohedralError

# Earlier names of workloads, by their names today. Each version runs its own definition, so a workload whose data
# changed has a new name and no entry here.
RENAMED = {
    "photo-1024": "W1",
    "photo-1024-narrow": "W1b",
    "photo-gray": "W2",
    "photo-gray-halo": "W2-halo",
    "labels-21": "W3",
    "labels-21-reused": "W3-reused",
    "sphere-1m": "W4",
    "memory-photo-1024": "memory-W1",
    "waves-1024": "G1",
    "waves-4096": "G1L",
    "scattered-6d": "H1",
    "build-sphere": "G3-d3",
    "build-cube": "G3-d5",
    "learned-forward": "W7-forward",
    "learned-backward": "W7-backward",
    "reference-photo": "reference-16",
    "reference-layer": "reference-step",
    "image-layer-forward": "layer-forward",
    "image-layer-training": "layer-training",
    "image-layers-training-fp32": "C-training-fp32",
    "image-layers-forward-bf16": "C-forward-bf16",
    "image-layers-training-bf16": "C-training-bf16",
    "image-layers-built-bf16": "C-built-bf16",
    "convolution-32-tf32": "G2-32-TF32",
    "captured-step-layer": "captured-layer",
    "captured-step-layer-autocast": "captured-layer-autocast",
    "captured-step-three-layers": "captured-three-layers",
    "mean-field-375x500": "crf-375x500-21-5",
    "mean-field-375x500-training": "crf-training-375x500-21-5",
    "mean-field-1024x1024": "crf-1024x1024-21-10",
    "mean-field-batch": "crf-batch",
    "encoding-3d": "E3",
    "encoding-3d-training": "E3b",
    "encoding-6d": "E6",
    "encoding-6d-training": "E6b",
    "encoding-3d-1m-float16": "E3-float16",
    "encoding-3d-1m-float32": "E3-float32",
    "encoding-3d-1m-float32-training": "E3b-float32",
}

# ratios between these are noise
_UNCHANGED = (1 / 1.05, 1.05)
# busy time over quiet time that a workload may take
_BUSY_LIMIT = 2.5
_TURNS, _FEWEST_TURNS, _MOST_CALLS = 10, 4, 20

Log = Callable[[str], None]


@dataclass
class Row:
    """Figures of a workload in both versions.

    Attributes:
        name: of the workload.
        unit: of the samples.
        samples: by version ("base" or "here") and load ("quiet" or "busy").
        megabytes: peak memory of a call, by version.
        failures: reasons, by version.
    """

    name: str
    unit: str
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    megabytes: dict[str, float | None] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, version: str, load: str = "quiet") -> float:
        return statistics.median(self.samples[version][load])

    @property
    def ratio(self) -> float:
        """Time here over time of the base; 1 where one of them failed."""
        return 1.0 if self.failures else self.median("here") / max(self.median("base"), 1e-12)

    def busy_ratio(self, version: str) -> float:
        """Time next to a spinning process over quiet time."""
        return self.median(version, "busy") / max(self.median(version), 1e-12)


@dataclass(frozen=True)
class Options:
    """Options of a comparison.

    Attributes:
        device: "cpu" or "cuda".
        threads: of both versions.
        busy: also measure next to a spinning process, on two cores.
        seconds: of measurement for a row, about; long calls are run at least four times.
        data: folder of data sets, or None.
    """

    device: str = "cpu"
    threads: int = 2
    busy: bool = False
    seconds: float = 6.0
    data: Path | None = None


class Version:
    """A version of the package, and the processes that run workloads on it.

    Args:
        tree: sources of the version.
        spare: sources with the workloads that the version does not have.
        options: of the comparison.
    """

    def __init__(self, tree: Tree, spare: Tree, options: Options) -> None:
        self._tree, self._spare, self._options = tree, spare, options
        # the kernels of GPUs need no core
        has_core = options.device == "cpu" and (tree.folder / "native").is_dir()
        self._core = build_core(tree.folder) if has_core else None
        self._processes: dict[Path, Process] = {}
        self.names = self._process(tree).names

    def _process(self, workloads: Tree) -> Process:
        process = self._processes.get(workloads.folder)
        if process is None or not process.is_running:
            given = self._options
            folders = self._tree.folder, workloads.folder
            process = Process(*folders, self._core, given.device, given.threads, given.data)
            self._processes[workloads.folder] = process
        return process

    def prepare(self, name: str) -> Process:
        """Return a process with a workload prepared."""
        own = next((each for each in (name, RENAMED.get(name)) if each in self.names), None)
        process = self._process(self._spare if own is None else self._tree)
        process.ask("prepare", own or name)
        return process

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


def compare(
    base: Tree, here: Tree, workloads: Sequence[Workload], options: Options, log: Log = lambda message: None
) -> tuple[list[Row], list[str]]:
    """Measure workloads in two versions.

    Args:
        base: the version to compare with.
        here: the version that has the workloads.
        workloads: to measure.
        options: of the comparison.
        log: called with a line for each workload.

    Returns:
        The rows, and the names of all workloads of the base.

    Raises:
        InputError: `busy` without two cores, or for a GPU.
        PermutohedralError: a version does not compile.
        WorkerError: the workloads of a version are not found.
    """
    if options.busy:
        cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_setaffinity") else []
        if options.device != "cpu" or len(cores) < 2:
            raise InputError("busy: needs device 'cpu', Linux and two cores")
        # the processes inherit it
        os.sched_setaffinity(0, cores)
    versions: dict[str, Version] = {}
    rows: list[Row] = []
    try:
        for version, tree in (("base", base), ("here", here)):
            log(f"starting {tree.name}; its native core is compiled first, which takes minutes, if it is new")
            versions[version] = Version(tree, here, options)
        with _spinning(options.busy) as spin:
            for number, workload in enumerate(workloads, 1):
                rows.append(_measure(workload, versions, options, spin))
                log(f"{number}/{len(workloads)} {_summarize(rows[-1])}")
    except KeyboardInterrupt:
        log(f"interrupted: {len(rows)} of {len(workloads)} workloads are reported")
    finally:
        for each in versions.values():
            each.close()
    return rows, versions["base"].names if "base" in versions else []


def _measure(workload: Workload, versions: dict[str, Version], options: Options, spin: Callable[[bool], None]) -> Row:
    """Return the figures of a workload: the versions take turns, in an order that alternates."""
    row = Row(workload.name, workload.unit)
    processes: dict[str, Process] = {}
    longest = 0.0
    for version, each in versions.items():
        try:
            processes[version] = each.prepare(workload.name)
            # the first call also compiles, allocates and reads from disk
            processes[version].ask("run", 0, 1, False)
            started = time.perf_counter()
            processes[version].ask("run", 1, 1, False)
            longest = max(longest, time.perf_counter() - started)
        except WorkerError as error:
            row.failures[version] = str(error)
    if row.failures:
        return row
    loads = ("quiet", "busy") if options.busy else ("quiet",)
    row.samples = {version: {load: [] for load in loads} for version in versions}
    share = options.seconds / (len(versions) * len(loads))
    calls = max(1, min(_MOST_CALLS, int(share / _TURNS / longest)))
    turns = _TURNS if options.busy else max(_FEWEST_TURNS, min(_TURNS, int(share / longest)))
    # a short call follows one that wakes threads and fills caches
    warm = calls > 1
    try:
        for turn in range(turns):
            for load in loads:
                spin(load == "busy")
                for version in list(processes)[:: 1 if turn % 2 else -1]:
                    reply = processes[version].ask("run", 2 + turn * calls, calls, warm)
                    row.samples[version][load] += reply["samples"]
            spin(False)
        for version in processes:
            row.megabytes[version] = processes[version].ask("memory")["megabytes"] if workload.prepare else None
    except WorkerError as error:
        row.failures[version] = str(error)
    finally:
        spin(False)
    return row


# ends with its parent
_SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextmanager
def _spinning(wanted: bool) -> Iterator[Callable[[bool], None]]:
    """Yield a switch of a process that keeps one core busy."""
    if not wanted:
        yield lambda on: None
        return
    process = subprocess.Popen([sys.executable, "-S", "-c", _SPIN])
    os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    process.send_signal(signal.SIGSTOP)
    try:
        yield lambda on: process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()


def _summarize(row: Row) -> str:
    """Return a line about a row that was just measured."""
    if row.failures:
        return f"{row.name}: failed ({', '.join(row.failures)})"
    busy = (
        f", busy {row.busy_ratio('base'):.2f} and {row.busy_ratio('here'):.2f}" if "busy" in row.samples["here"] else ""
    )
    figures = " to ".join(format_number(row.median(version)) for version in ("base", "here"))
    return f"{row.name}: {figures} {row.unit}, {row.ratio:.2f}{busy}"


def format_rows(rows: Sequence[Row], only_base: Sequence[str], base: str) -> str:
    """Format a comparison: changed rows first, those that became slower at the top."""
    measured = sorted((row for row in rows if not row.failures), key=lambda row: -row.ratio)
    busy = any("busy" in row.samples["here"] for row in measured)
    changed = [row for row in measured if not _UNCHANGED[0] <= row.ratio <= _UNCHANGED[1]]
    titles = ["workload", base, "quartiles", "here", "quartiles", "ratio", "MB", "here"]
    titles += ["busy", "here"] if busy else []
    table = [titles]
    table += [_cells(row, busy) for row in changed]
    table += [["within 5 %"] + [""] * (len(titles) - 1)]
    table += [_cells(row, busy) for row in measured if row not in changed]
    lines = [align(table), ""]
    if busy:
        over = [row.name for row in measured if row.busy_ratio("here") > _BUSY_LIMIT]
        lines.append(f"busy over quiet time above {_BUSY_LIMIT}: {', '.join(over) or 'none'}")
    lines += [f"failed ({version}): {row.name}: {why}" for row in rows for version, why in row.failures.items()]
    lines += [f"only in {base}: {', '.join(only_base)}"] if only_base else []
    return "\n".join(lines)


def _cells(row: Row, busy: bool) -> list[str]:
    cells = [row.name]
    for version in ("base", "here"):
        low, _, high = statistics.quantiles(row.samples[version]["quiet"], n=4, method="inclusive")
        cells += [f"{format_number(row.median(version))} {row.unit}", f"{format_number(low)}-{format_number(high)}"]
    cells.append(f"{row.ratio:.2f}")
    peaks = (row.megabytes.get(version) for version in ("base", "here"))
    cells += ["" if peak is None else format_number(peak) for peak in peaks]
    return [*cells, *(f"{row.busy_ratio(version):.2f}" for version in ("base", "here") if busy)]


def main(arguments: list[str]) -> int:
    """Compare, print the table, write the file; the exit code is 1 if a workload failed here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("base", help="commit, or folder with the sources")
    parser.add_argument("--only", action="append", help="workload, or all that start with it; may be repeated")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--threads", type=int, default=cores, help=f"default: all cores ({cores})")
    parser.add_argument("--busy", action="store_true", help="also next to a process that keeps one of two cores busy")
    parser.add_argument("--seconds", type=float, default=6.0, help="of measurement for each row, about (default: 6)")
    parser.add_argument("--data", type=Path, default=os.environ.get("PERMUTOHEDRAL_DATA"))
    parser.add_argument("--json", type=Path, help="write all samples here")
    given = parser.parse_args(arguments)
    from benchmarks.runner import WORKLOADS

    data = None if given.data is None else Path(given.data).resolve()
    options = Options(given.device, given.threads, given.busy, given.seconds, data)
    try:
        workloads = select(WORKLOADS, given.only, given.device)
        base, here = find_tree(given.base), Tree(ROOT, "here")
        rows, names = compare(base, here, workloads, options, lambda line: print(line, file=sys.stderr, flush=True))
    except (PermutohedralError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    known = {*RENAMED.values(), *(workload.name for workload in WORKLOADS)}
    print(format_rows(rows, [name for name in names if name not in known], base.name))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any("here" in row.failures for row in rows))
