"""Fills the tables of README.md and docs/ from the figures under results/: make tables.

NAME of a region is a table below, or a report under results/, whose first table it then shows. What has not been
measured yet says so. Regions of other names, such as those of the reliability report, are left alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import crf_tables
import regions
import upsampling_tables

from permutohedral.experiments.experiment import load_experiment
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"

# workloads that a reader of the README can picture
_WORKLOADS = {
    "W1": "bilateral filter, 1024 x 1024 color, 16 px / 0.1",
    "W1b": "the same, 4 px / 0.05",
    "W2": "bilateral filter, 481 x 321 gray, 4 px / 0.1",
    "W3": "21 channels, 500 x 375 color, 80 px / 13 of 255",
    "W3-reused": "the same, lattice built before",
    "W4": "32 channels at a million points near a sphere",
}

Row = list[str]


def files() -> list[Path]:
    """The files that may hold regions."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill(text: str) -> str:
    """The same text with every region filled from what is under results/.

    >>> "not been measured" in fill("<!-- table: results/nothing/report.md -->\\n<!-- end of table -->")
    True
    """
    return regions.fill(text, render)


def render(name: str) -> str | None:
    """The table of this name in Markdown; None if it is not one of ours."""
    if name not in _TABLES and not name.startswith("results/"):
        return None
    try:
        return _first_table(ROOT / name) if name.startswith("results/") else _TABLES[name]()
    except FileNotFoundError:
        return "*This has not been measured yet.*"


def _first_table(path: Path) -> str:
    """The first Markdown table of a report."""
    lines = path.read_text().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("|")), None)
    if start is None:
        raise FileNotFoundError(path)
    end = next((number for number in range(start, len(lines)) if not lines[number].startswith("|")), len(lines))
    return "\n".join(lines[start:end])


def denoising() -> str:
    """Mean PSNR of every row: the paper's rows in its order, then ours by quality."""
    found = {path.stem: json.loads(path.read_text()) for path in (RESULTS / "denoising").glob("*.json")}
    # the choice of the scale lies beside the rows
    found = {name: result for name, result in found.items() if isinstance(result["metrics"].get("psnr"), float)}
    if not found:
        raise FileNotFoundError(RESULTS / "denoising")
    of_paper = load_experiment("denoising").rows
    ours = sorted(found.keys() - set(of_paper), key=lambda name: float(found[name]["metrics"]["psnr"]))
    rows = []
    for name in [*(name for name in of_paper if name in found), *ours]:
        config, metrics = found[name]["config"], found[name]["metrics"]
        paper = "" if config.get("paper") is None else f"{config['paper']:.2f}"
        weights = f"{metrics['weights']:,}" if metrics.get("weights") else ""
        rows.append([config["title"], weights, paper, f"{metrics['psnr']:.2f}"])
    return markdown_table(["method", "weights", "paper, dB", "ours, dB"], rows)


def mnist() -> str:
    """Accuracy of every row, mean over the seeds, the paper's in parentheses."""
    summary = json.loads((RESULTS / "mnist" / "mnist.json").read_text())["summary"]
    columns = ["original", "100 %", "60 %", "20 %"]
    rows = []
    for row in summary:
        paper = row["paper"] or {}
        cells = [
            f"{row['mean'][column]:.4f}" + (f" ({paper[column]:.4f})" if column in paper else "") for column in columns
        ]
        rows.append([row["title"], *cells])
    return markdown_table(["network", *columns], rows)


def _measured(result: dict[str, Any], peer: str) -> str:
    times = [entry["median"] for entry in result["peers"] if entry["name"] == peer]
    return _time(times[0]) if times else ""


def _time(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"


def cpu() -> str:
    """Times on the CPU beside the libraries that ran with the same inputs."""
    results = json.loads((RESULTS / "benchmark-cpu.json").read_text())["results"]
    found = {(result["workload"], result["threads"]): result for result in results if "refused" not in result}
    rows = []
    for name, words in _WORKLOADS.items():
        if (name, 1) not in found or (name, 2) not in found:
            continue
        one, two = found[name, 1], found[name, 2]
        errors = {entry["name"]: entry["error"] for entry in two["peers"]}
        opencv = _measured(two, "OpenCV")
        if opencv:
            opencv += f", error {errors['OpenCV']:.4f}"
        ours = [_time(one["ours"]["median"]), _time(two["ours"]["median"]), f"{two['ours']['error']:.4f}"]
        rows.append([words, *ours, _measured(one, "pydensecrf2"), opencv])
    titles = ["", "1 thread", "2 threads", "error", "pydensecrf2, 1 thread, same error", "OpenCV, 2 threads"]
    return markdown_table(titles, rows)


def layers() -> str:
    """The layer beside a plain convolution, and the learned filter beside plain torch, with two threads."""
    results = json.loads((RESULTS / "benchmark-cpu.json").read_text())["results"]
    wanted = ("layer-forward", "layer-training", "W7-forward", "W7-backward")
    rows = []
    for result in results:
        if result["workload"] in wanted and result["threads"] == 2 and "refused" not in result:
            peers = "; ".join(f"{entry['name']} {_time(entry['median'])}" for entry in result["peers"])
            recorded = "; ".join(f"{entry['name']} {_time(entry['scaled'])}" for entry in result["recorded"])
            rows.append([result["summary"], _time(result["ours"]["median"]), peers, recorded])
    return markdown_table(["", "ours", "same run", "recorded elsewhere, scaled"], rows)


def _gpu_results() -> list[dict[str, Any]]:
    results = json.loads((RESULTS / "benchmark-h200.json").read_text())["results"]
    return [result for result in results if "refused" not in result]


def _best_other(result: dict[str, Any], unit: str = " ms") -> str:
    """The fastest peer of the same run, else the fastest of those recorded."""
    peers = [(entry["median"], entry["name"]) for entry in result["peers"]]
    recorded = [(entry["value"], f"{entry['name']}, recorded") for entry in result["recorded"]]
    if not peers and not recorded:
        return ""
    value, name = min(peers or recorded)
    return f"{value:.3g}{unit} ({name})"


def _gpu_rows(results: Iterable[dict[str, Any]]) -> list[Row]:
    rows = []
    for result in results:
        ours = result["ours"]
        kernels = "" if ours.get("kernels") is None else f"{ours['kernels']:.3g} ms"
        error = "" if ours.get("error") is None else f"{ours['error']:.2g}"
        rows.append([result["summary"], f"{ours['median']:.3g} ms", kernels, error, _best_other(result)])
    return rows


_GPU_TITLES = ["", "ours", "of it kernels", "error", "fastest other"]


def gpu() -> str:
    """Times on the GPU between events, which include waiting for the host, and the kernels' part of them."""
    return markdown_table(_GPU_TITLES, _gpu_rows(result for result in _gpu_results() if result["unit"] == "ms"))


def gpu_filters() -> str:
    """Of these, filters and lattices."""
    wanted = ("G1", "G1L", "H1", "G3-d3", "G3-d5")
    return markdown_table(_GPU_TITLES, _gpu_rows(result for result in _gpu_results() if result["workload"] in wanted))


def gpu_convolution() -> str:
    """Nanoseconds for each lattice point and tap."""
    rows = [
        [
            result["summary"],
            f"{result['ours']['median']:.3g}",
            f"{result['ours']['error']:.2g}",
            _best_other(result, ""),
        ]
        for result in _gpu_results()
        if result["unit"] == "ns"
    ]
    return markdown_table(["", "ours", "error", "fastest other"], rows)


def gpu_inputs() -> str:
    """Wall times on the GPU of calls whose inputs change from one to the next."""
    measured = json.loads((RESULTS / "gpu-inputs-h200.json").read_text())["milliseconds"]
    rows = [
        [name, *(f"{figures[part]:.2f}" for part in ("median", "p90", "max", "kernels"))]
        for name, figures in measured.items()
    ]
    return markdown_table(["", "median, ms", "90th percentile", "largest", "kernels alone"], rows)


def noise_levels() -> str:
    """The estimate of the noise before and now, and what denoising gains with it."""
    metrics = json.loads((ROOT / "results" / "denoising" / "noise_levels.json").read_text())["metrics"]
    rows = []
    for noise, found in sorted(metrics["estimates"].items(), key=lambda row: float(row[0])):
        estimates = [
            f"{found[name]['median']:.2f} ({found[name]['p5']:.2f} to {found[name]['p95']:.2f})"
            for name in ("median", "patches")
        ]
        gained = metrics["gains"].get(noise, {})
        gains = [f"{gained[name]:+.2f}" if gained else "" for name in ("known", "median", "patches")]
        rows.append([noise, *estimates, *gains])
    header = ["Noise, of 255", "estimate before: median (5 % to 95 %)", "now", "gain if known, dB", "before", "now"]
    return markdown_table(header, rows)


def segmentation() -> str:
    """Wrong pixels of rough labels after `permutohedral segment`, with the defaults and with one number changed."""
    measured = json.loads((RESULTS / "segmentation.json").read_text())
    kinds = list(dict.fromkeys(row["labels"] for row in measured["rows"]))
    before = {row["labels"]: f"{100 * row['wrong_before']:.2f}" for row in measured["rows"]}
    cells: dict[str, dict[str, str]] = {"as given": before}
    for row in measured["rows"]:
        changes = ", ".join(f"`--{name.replace('_', '-')} {value:g}`" for name, value in row["changes"].items())
        harmed = f" ({row['harmed']} harmed)" if row["harmed"] else ""
        cells.setdefault(changes or "defaults", {})[row["labels"]] = f"{100 * row['wrong_after']:.2f}{harmed}"
    return markdown_table(["wrong, %", *kinds], [[name, *(row[kind] for kind in kinds)] for name, row in cells.items()])


def playground() -> str:
    """Milliseconds until the page of `permutohedral playground` shows something."""
    measured = json.loads((RESULTS / "playground.json").read_text())
    rows = [
        [words, f"{measured['milliseconds'][name]['median']:,.0f}", "" if goal is None else f"{goal:,}"]
        for name, words, goal in (
            ("filter", "from a moved slider to the picture, in the median", 250),
            ("preview", "to the smaller picture that comes first where that takes longer", 80),
            ("page", "from the command to the page", 4000),
            ("first picture", "from the command to the first filtered picture", None),
        )
    ]
    return markdown_table([name_machine(measured["hardware"]), "milliseconds", "goal"], rows)


def levels() -> str:
    """Times of pyramids and of filters on them, and what these multiply, by the kind of points."""
    rows = []
    for name, row in json.loads((RESULTS / "levels-cpu.json").read_text())["rows"].items():
        times, ratio, products = row["milliseconds"], row["ratio"], row["products"]
        cells = [name, *(f"{times[each]:.1f}" for each in ("lattice", "pyramid", "flat")), f"{ratio['pyramid']:.2f}"]
        for way in ("interpolated", "mixed", "learned"):
            cells += [f"{times[way]:.1f}", f"{ratio[way]:.2f}", f"{products[way] / products['flat']:.2f}"]
        rows.append(cells)
    heads = ["100,000 points", "lattice, ms", "four levels, ms", "one convolution, ms", "ratio of four levels"]
    for way in ("interpolated", "with mixed channels", "learned"):
        heads += [f"{way}, ms", "ratio", "products"]
    return markdown_table(heads, rows)


def large_arrays() -> str:
    """What two workers did with arrays beyond their memory."""
    names = {
        "points": "points, 3 features",
        "volume": "volume, 2 voxels / 0.2",
        "picture": "color picture, 16 px / 0.1",
    }
    found = {name: json.loads((RESULTS / "large-arrays" / f"{name}.json").read_text()) for name in names}
    rows = [
        [
            names[name],
            f"{row['samples'] / 1e6:,.0f}",
            str(row["memory_limit"]),
            f"{row['largest_mib']:,} MiB",
            f"{row['spilled_bytes'] / 2**20:.0f} MiB",
            f"{row['seconds']:.0f} s",
            f"{row['per_processor_second'] / 1e6:.1f}",
            f"{row['overhead']:.2f}" if "overhead" in row else "",
        ]
        for name, row in found.items()
    ]
    header = ["array", "million samples", "limit of a worker", "largest memory of one", "spilled", "time"]
    told = markdown_table([*header, "million samples per processor second", "of a loop over the same tiles"], rows)
    return f"{told}\n\n{_commands(found)}"


def large_arrays_beside() -> str:
    """The bilateral filter of volumes beside SimpleITK's."""
    found = json.loads((RESULTS / "large-arrays" / "simpleitk.json").read_text())
    rows = [
        [
            f"{row['sigma_space']:g} voxels / {row['sigma_range']:g}",
            f"{row['ours_per_second'] / 1e6:.2f}",
            f"{row['theirs_per_second'] / 1e6:.4f}",
            f"{row['ratio']:,.0f}",
            f"{100 * row['relative_difference']:.2f} %",
        ]
        for row in found["rows"]
    ]
    header = ["bandwidths", "ours, Mvoxel/s", f"SimpleITK {found['version']}, Mvoxel/s", "times", "relative difference"]
    return f"{markdown_table(header, rows)}\n\n{_commands({'simpleitk': found})}"


def large_arrays_kills() -> str:
    """Workers that are killed, in a sentence."""
    found = json.loads((RESULTS / "large-arrays" / "kills.json").read_text())
    same = "the same checksum" if found["same_checksum"] else "**another checksum**"
    calm, killed = found["undisturbed"]["seconds"], found["killed"]["seconds"]
    told = (
        f"A volume of {found['side']}^3 voxels took {calm:.0f} s, and {killed:.0f} s with two workers killed on the way"
    )
    return f"{told}, {found['time_ratio']:.2f} times as long, with {same}. {_commands({'kills': found})}"


def large_arrays_workers() -> str:
    """Results on several numbers of workers, in a sentence."""
    found = json.loads((RESULTS / "large-arrays" / "workers.json").read_text())
    same = "the same checksums" if found["same_checksums"] else "**different checksums**"
    volume, points = f"{found['side']}^3 voxels", f"{found['points'] / 1e6:g} million points"
    return f"{volume} and {points} on 1, 2 and 4 workers had {same}. {_commands({'workers': found})}"


def _commands(found: dict[str, Any]) -> str:
    """Which commands made rows, on what machine."""
    commands = ", ".join(f"`{row['command']}`" for row in found.values())
    loads = ", ".join(f"{row['load_before']:.1f}" for row in found.values())
    first = next(iter(found.values()))
    return f"On {first['cores']} cores, {first['processor']}, with a load of {loads} before: {commands}."


_TABLES: dict[str, Callable[[], str]] = {
    "playground": playground,
    **upsampling_tables.TABLES,
    "levels": levels,
    "large-arrays": large_arrays,
    "large-arrays-beside": large_arrays_beside,
    "large-arrays-kills": large_arrays_kills,
    "large-arrays-workers": large_arrays_workers,
    "segmentation": segmentation,
    "denoising": denoising,
    "noise-levels": noise_levels,
    "mnist": mnist,
    "cpu": cpu,
    "layers": layers,
    "gpu": gpu,
    "gpu-filters": gpu_filters,
    "gpu-convolution": gpu_convolution,
    "gpu-inputs": gpu_inputs,
    "crf-speed": crf_tables.speed,
    "crf-backward": crf_tables.backward,
}


def main() -> None:
    """Fill every region, and name the files that changed."""
    for path in files():
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            path.write_text(filled)
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
