"""Fill the tables of README.md and docs/ from results/: `make tables`.

A region stands between `<!-- table: NAME -->` and `<!-- end of table -->`. NAME is an entry of `BENCHMARKS`, or
`run-time-DEVICE` for the table of `results/run-time-DEVICE.json`, or `results/NAME.csv#Heading` for the table with that
heading of an experiment. `#Heading: A; B` shows the rows of these names only, and `#time` says how long all rows took.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import readme

from benchmarks import run_time
from experiments.markdown import markdown_table
from experiments.provenance import stored_time
from experiments.registry import load_experiment
from experiments.training import RunOptions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
_REGION = re.compile(r"(<!-- table: (?P<name>.+?) -->\n)(?P<body>.*?)(<!-- end of table -->)", flags=re.DOTALL)

MEAN_FIELDS = (
    "crf-375x500-21-5",
    "crf-1024x1024-21-10",
    "crf-training-375x500-21-5",
)
# the report, and the workloads of the table: whole names, or their beginnings before a hyphen
BENCHMARKS = {
    "readme": ("benchmark-cpu.json", ("W1", "W4", "W7-forward")),
    "cpu": ("benchmark-cpu.json", ("W1", "W1b", "W2", "W3", "W4", "memory")),
    "cpu-layers": ("benchmark-cpu.json", ("W7", "layer", "step-unet")),
    "cpu-crf": ("benchmark-cpu.json", MEAN_FIELDS),
    "cpu-upsampling": ("benchmark-cpu.json", ("upsample-solver",)),
    "gpu": ("benchmark-h200.json", ("G1", "G1L", "H1", "G3", "photographs", "first-call")),
    "gpu-layers": (
        "benchmark-h200.json",
        ("C-training-fp32", "C-forward-bf16", "C-training-bf16", "C-built-bf16", "captured-layer", "captured-unet"),
    ),
    "gpu-convolution": ("benchmark-h200.json", ("G2-32-TF32",)),
    "gpu-crf": ("benchmark-h200.json", (*MEAN_FIELDS, "crf-batch", "energy-loss")),
    "gpu-upsampling": ("benchmark-h200.json", ("upsample-gaussian",)),
    "gpu-encoding": ("benchmark-h200.json", ("E3", "E3b", "E6", "E6b")),
}


def fill(text: str) -> str:
    """Fill every region of a page.

    >>> "not been measured" in fill("<!-- table: results/points.csv#Nothing -->\\n<!-- end of table -->")
    True
    """
    return _REGION.sub(lambda match: f"{match[1]}{_keep_together(render(match['name']))}\n{match[4]}", text)


def _keep_together(table: str) -> str:
    """Replace the space before a unit or a deviation by one at which browsers do not break the line."""
    return re.sub(r"(?<=±) | (?=(?:ms|s|ns|MB)\b)", "\u00a0", table)


def render(name: str) -> str:
    """Return the table of a region in Markdown."""
    try:
        if name in BENCHMARKS:
            return benchmark_table(*BENCHMARKS[name])
        if name.startswith("run-time-"):
            return run_time_table(json.loads((RESULTS / f"{name}.json").read_text()))
        path, _, rest = name.partition("#")
        heading, _, names = rest.partition(": ")
        if heading == "time":
            return time_line(ROOT / path)
        return experiment_table(ROOT / path, heading, names.split("; ") if names else None)
    except FileNotFoundError:
        return "*This has not been measured yet.*"


def time_line(path: Path) -> str:
    """Return how long the rows of an experiment took, and where."""
    times = stored_time(path)
    if not times:
        raise FileNotFoundError(path)
    return f"All rows took {times}."


def experiment_table(path: Path, heading: str, rows: list[str] | None) -> str:
    """Return the table with this heading, all rows or those with these names, from the results of an experiment."""
    experiment = load_experiment(path.stem)
    results = experiment.read_results(path.parent)
    pages = experiment.report(results, RunOptions(path.parent)) if results else []
    tables = [table for page in pages for table in page.tables if table.heading == heading]
    if not tables:
        raise FileNotFoundError(path)
    return tables[0].markdown(rows)


def benchmark_table(file: str, names: tuple[str, ...]) -> str:
    """Return rows of a benchmark report: ours, then the peers."""
    results = json.loads((RESULTS / file).read_text())["results"]
    chosen: dict[str, dict[int, Any]] = {}
    for result in results:
        workload = result["workload"]
        is_wanted = workload in names or workload.startswith(tuple(f"{name}-" for name in names))
        if is_wanted and "failed" not in result:
            chosen.setdefault(workload, {})[result["threads"]] = result
    if not chosen:
        raise FileNotFoundError(file)
    on_gpu = any(result["device"] == "cuda" for result in results)
    rows = [_benchmark_row(runs, on_gpu) for runs in chosen.values()]
    times = ["ours", "kernels"] if on_gpu else ["ours, 1 thread", "2 threads"]
    headers = ["", *times, "error", "others in the same run", "fastest recorded elsewhere, scaled"]
    filled = [column for column in range(len(headers)) if any(row[column] for row in rows)]
    return markdown_table([headers[column] for column in filled], [[row[column] for column in filled] for row in rows])


def run_time_table(report: dict[str, Any]) -> str:
    """Return times of layers over that of the faster `Conv2d`: forward / forward and backward."""
    titles, cells = [""], {"Conv2d 5 x 5, the faster layout": [""] * len(run_time.CHANNELS)}
    for column, channels in enumerate(run_time.CHANNELS):
        titles.append(f"{channels} channels" if channels > 1 else "1 channel")
        pair = [_medians(report, f"run-time-{channels}-{passes}") for passes in ("forward", "training")]
        fastest = [min(medians.pop(name) for name in run_time.CONVOLUTIONS) for medians in pair]
        cells["Conv2d 5 x 5, the faster layout"][column] = " / ".join(f"{value:.3g}" for value in fastest) + " ms"
        for name in pair[0]:
            ratios = (_ratio(medians[name] / best) for medians, best in zip(pair, fastest, strict=True))
            cells.setdefault(name, [""] * len(run_time.CHANNELS))[column] = " / ".join(ratios)
    return markdown_table(titles, [[name, *line] for name, line in cells.items()])


def _medians(report: dict[str, Any], workload: str) -> dict[str, float]:
    result = next(each for each in report["results"] if each["workload"] == workload)
    return {row["name"]: row["median"] for row in (result["ours"], *result["peers"])}


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _benchmark_row(runs: dict[int, Any], on_gpu: bool) -> list[str]:
    first, last = runs[min(runs)], runs[max(runs)]
    unit, ours = first["unit"], last["ours"]
    if on_gpu:
        times = [_figure(ours["median"], unit), _figure(ours["kernels"], unit) if "kernels" in ours else ""]
    else:
        times = [_figure(runs[count]["ours"]["median"], unit) if count in runs else "" for count in (1, 2)]
    others = [
        f"{peer['name']} {_figure(peer['median'], unit)}" + (f" (error {peer['error']:.2g})" if peer["error"] else "")
        for peer in last["peers"]
    ]
    best = min(last["recorded"], key=lambda entry: float(entry["scaled"]), default=None)
    recorded = "" if best is None else f"{best['name']} {_figure(best['scaled'], unit)}"
    error = "" if ours["error"] is None else f"{ours['error']:.2g}"
    return [first["summary"], *times, error, "; ".join(others), recorded]


def _figure(value: float, unit: str) -> str:
    if unit == "ms" and value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def main() -> None:
    """Fill every region, and name the files that changed."""
    for path in readme.pages():
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            path.write_text(filled)
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
