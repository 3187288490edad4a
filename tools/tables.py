"""Fill the tables of README.md and docs/ from results/: `PYTHONPATH=. python tools/tables.py`.

A region stands between `<!-- table: NAME -->` and `<!-- end of table -->`. NAME is

- `results/NAME.csv#Heading`, made from the results of an experiment; `#time` says how long all rows took,
- `results/benchmark-NAME.json#TABLE`, the workloads of a table of `python -m benchmarks`,
- `run-time-DEVICE`, from `results/run-time-DEVICE.json`.

`#Heading: A; B` shows the rows A and B only, by name.
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

# README.md shows rows of several tables
README = "results/benchmark-cpu.json#: photo-1024; sphere-1m; learned-forward"


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
        name = README if name == "readme" else name
        if name.startswith("run-time-"):
            return run_time_table(json.loads((RESULTS / f"{name}.json").read_text()))
        path, _, rest = name.partition("#")
        heading, _, names = rest.partition(": ")
        rows = names.split("; ") if names else None
        if path.endswith(".json"):
            return benchmark_table(ROOT / path, heading, rows)
        if heading == "time":
            return time_line(ROOT / path)
        return experiment_table(ROOT / path, heading, rows)
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


def benchmark_table(path: Path, table: str, names: list[str] | None = None) -> str:
    """Return the rows of a table of a benchmark report, or those with these names: ours, then the others."""
    runs: dict[str, dict[int, Any]] = {}
    for result in json.loads(path.read_text())["results"]:
        is_wanted = result["workload"] in names if names else result["table"] == table
        if is_wanted and "failed" not in result:
            runs.setdefault(result["workload"], {})[result["threads"]] = result
    if not runs:
        raise FileNotFoundError(path)
    on_gpu = any(result["device"] == "cuda" for each in runs.values() for result in each.values())
    rows = [_benchmark_row(each, on_gpu) for each in runs.values()]
    times = ["ours", "kernels"] if on_gpu else ["ours, 1 thread", "2 threads"]
    headers = ["", *times, "error", "other libraries", "for comparison"]
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
    return {row["name"]: row["median"] for row in (result["ours"], *result["others"])}


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _benchmark_row(runs: dict[int, Any], on_gpu: bool) -> list[str]:
    first, last = runs[min(runs)], runs[max(runs)]
    unit, ours = first["unit"], last["ours"]
    if on_gpu:
        times = [_with_quartiles(ours, unit), _figure(ours["kernels"], unit) if "kernels" in ours else ""]
    else:
        times = [_with_quartiles(runs[count]["ours"], unit) if count in runs else "" for count in (1, 2)]
    others: dict[bool, list[str]] = {True: [], False: []}
    for other in last["others"]:
        error = f" (error {other['error']:.2g})" if other["error"] else ""
        others[other["is_peer"]].append(f"{other['name']} {_figure(other['median'], unit)}{error}")
    error = "" if ours["error"] is None else f"{ours['error']:.2g}"
    return [first["summary"], *times, error, "; ".join(others[True]), "; ".join(others[False])]


def _with_quartiles(figures: dict[str, Any], unit: str) -> str:
    low, high = (_figure(value, "").strip() for value in figures["quartiles"])
    return f"{_figure(figures['median'], unit)} ({low} to {high})"


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
