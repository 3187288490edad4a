"""How close the lattice comes to the exact Gaussian filter: writes results/accuracy.json and docs/research/accuracy.md.

Run as `PYTHONPATH=. python tools/accuracy.py`. The exact filter is the sum over all pairs of points, in float64. The
page also shows the figures of `tools/accuracy_pictures.py`, which takes longer; `--render` writes the page from
earlier figures.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accuracy_pictures
import torch
from torch import Tensor

import permutohedral as ph
from experiments.markdown import markdown_table
from experiments.quality import relative_error
from permutohedral.ops.binding import bind

ROOT = Path(__file__).resolve().parents[1]
JSON_FILE = ROOT / "results" / "accuracy.json"
PAGE = ROOT / "docs" / "research" / "accuracy.md"

NUM_POINTS = 20_000
NUM_EXACT = 1_000
METHODS: dict[str, dict[str, Any]] = {
    "lattice": {"method": "lattice"},
    "lattice, halo 1": {"method": "lattice", "halo": 1},
    "lattice, halo 2": {"method": "lattice", "halo": 2},
    "dense": {"method": "dense"},
}
# beyond this many lattice points a halo is left out of the table
MOST_LATTICE_POINTS = 3_000_000
# and beyond this dimension all but the lattice method: the others have too many taps
MOST_DIMENSIONS = 5
DIMENSIONS = (1, 2, 3, 4, 5, 6, 8, 10, 12)


def cloud(dimension: int, density: float) -> tuple[Tensor, Tensor]:
    """Points uniform in a cube with `density` of them in a unit of volume, and a smooth signal of mean zero."""
    # waves of about six standard deviations, which the filter weakens and does not wipe out
    return cube(dimension, (NUM_POINTS / density) ** (1 / dimension), wavelength=6.0)


def cube(dimension: int, side: float, wavelength: float) -> tuple[Tensor, Tensor]:
    """Points uniform in a cube, and waves in eight directions; all in standard deviations."""
    generator = torch.Generator().manual_seed(dimension)
    features = side * torch.rand(NUM_POINTS, dimension, generator=generator, dtype=torch.float64)
    waves = torch.randn(8, dimension, generator=generator, dtype=torch.float64)
    waves = 2 * math.pi / wavelength * waves / waves.norm(dim=1, keepdim=True)
    phases = 2 * math.pi * torch.rand(8, generator=generator, dtype=torch.float64)
    return features, (features @ waves.T + phases).cos().sum(dim=1, keepdim=True)


def photograph(name: str, sigma_space: float, sigma_color: float) -> tuple[Tensor, Tensor]:
    """Pixels of a picture of scikit-image: position and color, and the color again as values."""
    from skimage import data

    pixels = torch.from_numpy(getattr(data, name)()).double() / 255
    image = pixels.reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
    return ph.features.bilateral(image, sigma_space=sigma_space, sigma_color=sigma_color), ph.features.colors(image)


def exact_filter(values: Tensor, features: Tensor, rows: Tensor) -> Tensor:
    """Return the normalized Gaussian filter at some of the points, `[rows, channels]`, by brute force."""
    results = []
    for targets in features[rows].split(50):
        weights = (-0.5 * torch.cdist(targets, features).square()).exp()
        results.append(weights @ values / weights.sum(dim=1, keepdim=True))
    return torch.cat(results)


def measure(name: str, make: Callable[[], tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Relative L2 errors of all methods on one problem, and the numbers of lattice points behind them."""
    features, values = make()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(features.shape[0], generator=generator)[:NUM_EXACT]
    exact = exact_filter(values, features, rows)
    row: dict[str, Any] = {"name": name, "dimension": features.shape[1], "points": features.shape[0], "methods": {}}
    for method, options in METHODS.items():
        lattice_points = _count_lattice_points(features, options)
        if lattice_points is None:
            continue
        result = ph.gaussian_filter(values, features, **options)[rows]
        error = relative_error(result, exact)
        row["methods"][method] = {"error": error, "lattice_points": lattice_points}
        print(f"{name}: {method}: {error:.4f} with {lattice_points:,} lattice points", flush=True)
    return row


def _count_lattice_points(features: Tensor, options: dict[str, Any]) -> int | None:
    """Of the lattice behind a method; None if it would be too large."""
    halo = options.get("halo", 0)
    if features.shape[1] > MOST_DIMENSIONS and options != METHODS["lattice"]:
        return None
    taps = ph.lattice.Neighborhood(features.shape[1], halo).filter_size
    occupied = ph.build_lattice(features, neighborhood_size=0).num_lattice_points
    if occupied * taps > 20 * MOST_LATTICE_POINTS:
        return None
    count = ph.build_lattice(features, neighborhood_size=0, halo=halo).num_lattice_points if halo else occupied
    return count if count <= MOST_LATTICE_POINTS else None


def measure_rounding(sigma_space: float, noise: float) -> dict[str, Any]:
    """Compare float32 with float64: lattice points that only one of them touches, and results."""
    features, values = photograph("astronaut", sigma_space, 0.1)
    colors = noise * torch.randn(values.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    single = torch.cat([features[:, :2], features[:, 2:] + colors / 0.1], dim=1).float()
    signal = (values + colors).float()
    keys = [ph.build_lattice(each, neighborhood_size=0).source.keys for each in (single, single.double())]
    # those of either less those of both
    different = 2 * len(bind(keys[0]).index_keys(torch.cat(keys))[0]) - len(keys[0]) - len(keys[1])
    row: dict[str, Any] = {"sigma_space": sigma_space, "noise": noise, "lattice_points": len(keys[1])}
    row["different_lattice_points"] = different
    moved = single + torch.rand(5, generator=torch.Generator().manual_seed(1))
    for name, method, at in (
        ("lattice", "lattice", single),
        ("dense", "dense", single),
        ("moved", "lattice", moved),
    ):
        results = [ph.gaussian_filter(signal.to(each.dtype), each, method=method) for each in (at, at.double())]  # type: ignore[call-overload]
        difference = (results[0].double() - results[1]).abs()
        row[name] = {"largest": float(difference.max()), "above": int((difference > 1e-4).sum())}
        print(f"rounding, {sigma_space:g} pixels, noise {noise:.2f}: {name}: {row[name]}", flush=True)
    return row


def run() -> dict[str, Any]:
    """Measure every problem."""
    rows = []
    for dimension in DIMENSIONS:
        for density in (100.0, 1.0):
            name = f"cloud, {density:g} point{'s' * (density != 1)} per unit"
            rows.append(measure(name, lambda d=dimension, p=density: cloud(d, p)))  # type: ignore[misc]
    for dimension in DIMENSIONS[1::2]:
        # as long as the cloud: the exact filter leaves little of them
        rows.append(measure("cloud of half a unit", lambda d=dimension: cube(d, 0.5, wavelength=0.5)))  # type: ignore[misc]
    for dimension in DIMENSIONS[3:]:
        rows.append(measure("cloud of four units", lambda d=dimension: cube(d, 4.0, wavelength=6.0)))  # type: ignore[misc]
    rows.append(measure("photograph camera, gray, 4 pixels, 0.1", lambda: photograph("camera", 4.0, 0.1)))
    rows.append(measure("photograph astronaut, 16 pixels, 0.1", lambda: photograph("astronaut", 16.0, 0.1)))
    rows.append(measure("photograph astronaut, 4 pixels, 0.1", lambda: photograph("astronaut", 4.0, 0.1)))
    return {
        "what": "relative L2 error against the exact normalized Gaussian filter",
        "command": "PYTHONPATH=. python tools/accuracy.py",
        "version": ph.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "backend": ph.backends.explain().name,
        "rows": rows,
        "rounding": [measure_rounding(4.0, 0.0), measure_rounding(16.0, 0.0), measure_rounding(16.0, 25 / 255)],
    }


INTRODUCTION = """# Accuracy

Generated by `PYTHONPATH=. python tools/accuracy.py` from `results/accuracy.json`. Do not edit.

The lattice approximates the Gaussian filter. The table gives the relative L2 error of `gaussian_filter` against the
exact filter over all pairs of points, in float64 at {exact:,} random points. For your own data, call
`estimate_error` or `estimate_bilateral_error`.

*Clouds* are {points:,} points uniform in a cube, 100 or 1 per unit of volume, with waves six standard deviations long
as values. The cube has a side of half a standard deviation in *clouds of half a unit*, and of four in *clouds of four
units*. *Photographs* are pixels with position and color as features; white is 1.

- **lattice**: d+1 passes over the occupied lattice points, the default.
- **halo 1**: the same passes, with the untouched lattice points one step away inserted.

The dense method, with all taps of size 2, has the errors of halo 1 to the last digit shown.
"""

PICTURES = """## Photographs

Color photographs of 481 x 321 pixels (BSDS500, {names}) are filtered clean and with noise of 25/255.
*error* is the relative L2 error, the mean of the photographs. *worst* is the largest error of a channel at any pixel.
The lattice is coarse where noise or edges are wide compared with the bandwidth in color.

`method="auto"` uses the method closest to the exact filter among those that cost about as much as the lattice.
`explain_bilateral` prints the estimated costs.

- **exact**: the sum over a window of 3 or 2.5 standard deviations, which leaves out 1.1 or 4.4 % of the mass.
- **grid**: on the CPU, a grid over positions and over the principal axes of the colors, with B-splines. It takes guides
  of up to three channels, without gradients or tracing.

Times are processor times of one core. Goals are a relative error of {error:g}, {worst:g} at the worst pixel, and
{time:g} times the time of the lattice. At 8 pixels, `auto` misses that of the worst pixel on clean photographs for
bandwidths in color from 0.05 on: the grid would take too long. Its costs are those of one processor; on
others, exact windows may take twice the time of the lattice. The table shows one of five bandwidths in color;
`results/accuracy-pictures.json` has all.
"""

ROUNDING = """## Rounding

The lattice filter in float32 and in float64 agrees to rounding, except for some hundred values of a million, which
differ by thousandths. There the lattices differ: a point on a face of its simplex has a corner of weight zero, and
rounding decides whether that lattice point exists. The separable blur passes only through existing lattice points. The
dense and the exact method agree to rounding.

**With a halo, results do not depend on rounding.** `halo=1` takes three times as long for a gray image, and
twelve times for a color image at 4 pixels and 0.1, so it is not the default.

Pixels of a clean image lie on faces because their features are multiples of one step. Shifting all features by random
numbers, `gaussian_filter(values, features + torch.rand(dimension))`, moves the lattice against them (*moved*).
"""

ROUNDING_HEADERS = [
    "photograph astronaut",
    "lattice points",
    "different",
    "lattice: largest difference",
    "values above 1e-4",
    "dense: largest difference",
    "moved: largest difference",
]


def _rounding_cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['sigma_space']:g} pixels, 0.1, noise {round(255 * row['noise'])}/255",
        f"{row['lattice_points']:,}",
        f"{row['different_lattice_points']}",
        f"{row['lattice']['largest']:.1e}",
        f"{row['lattice']['above']} of {3 * 512 * 512:,}",
        f"{row['dense']['largest']:.1e}",
        f"{row['moved']['largest']:.1e}",
    ]


def render(report: dict[str, Any], pictures: dict[str, Any]) -> str:
    """Return the page in Markdown, with the figures of both tools."""
    shown = ["lattice", "lattice, halo 1"]
    rows = []
    for row in report["rows"]:
        found = row["methods"]
        problem = [str(row["dimension"]), re.sub(" points? per unit$", "", row["name"])]
        errors = [f"{found[method]['error']:.4f}" if method in found else "" for method in shown]
        counts = [found[method]["lattice_points"] for method in shown if method in found]
        rows.append([*problem, *errors, f"{counts[1] / counts[0]:.1f}" if counts[1:] else ""])
    both = [row["methods"] for row in report["rows"] if "lattice, halo 2" in row["methods"]]
    difference = max(abs(found["lattice, halo 2"]["error"] - found["dense"]["error"]) for found in both)
    lines = [
        INTRODUCTION.format(exact=NUM_EXACT, points=NUM_POINTS),
        "## Relative L2 error",
        "",
        markdown_table(["d", "points", *shown, "lattice points, halo 1 / lattice"], rows, text_columns=range(5)),
        "",
        "With a halo of 2 no path is lost: its error differs from that of the dense filter by at most",
        f"{difference:.0e} in {len(both)} rows. An empty cell had too many taps or lattice points to try.",
        "",
        PICTURES.format(
            names=", ".join(pictures["photographs"]),
            error=accuracy_pictures.GOAL_ERROR,
            worst=accuracy_pictures.GOAL_WORST,
            time=accuracy_pictures.GOAL_TIME,
        ),
        *accuracy_pictures.render(pictures),
        "",
        ROUNDING,
        markdown_table(ROUNDING_HEADERS, [_rounding_cells(row) for row in report["rounding"]], text_columns=range(7)),
        "",
        f"permutohedral {report['version']}, torch {report['torch']}, backend {report['backend']}, float64.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure unless `--render` is given, and write the page."""
    parser = argparse.ArgumentParser(description="Measure how close the lattice comes to the exact Gaussian filter.")
    parser.add_argument("--render", action="store_true", help="write the page alone")
    if not parser.parse_args().render:
        JSON_FILE.write_text(json.dumps(run(), indent=2) + "\n")
    PAGE.write_text(render(*(json.loads(path.read_text()) for path in (JSON_FILE, accuracy_pictures.JSON_FILE))))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
