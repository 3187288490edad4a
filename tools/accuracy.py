"""How close the lattice comes to the exact Gaussian filter: writes results/accuracy.json and docs/accuracy.md.

Run as `make accuracy`. The exact filter is the sum over all pairs of points, in float64.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.quality import relative_error

ROOT = Path(__file__).resolve().parents[1]
JSON_FILE = ROOT / "results" / "accuracy.json"
PAGE = ROOT / "docs" / "accuracy.md"

NUM_POINTS = 20_000
NUM_EXACT = 1_000
METHODS: dict[str, dict[str, Any]] = {
    "separable": {"method": "separable"},
    "separable, halo 1": {"method": "separable", "halo": 1},
    "separable, halo 2": {"method": "separable", "halo": 2},
    "dense": {"method": "dense"},
}
# beyond this many lattice points a halo is left out of the table
MOST_LATTICE_POINTS = 3_000_000


def cloud(dimension: int, density: float) -> tuple[Tensor, Tensor]:
    """Points uniform in a cube with `density` of them in a unit of volume, and a smooth signal of mean zero."""
    generator = torch.Generator().manual_seed(dimension)
    side = (NUM_POINTS / density) ** (1 / dimension)
    features = side * torch.rand(NUM_POINTS, dimension, generator=generator, dtype=torch.float64)
    # waves of about six standard deviations, which the filter weakens and does not wipe out
    waves = torch.randn(8, dimension, generator=generator, dtype=torch.float64)
    waves = 2 * math.pi / 6 * waves / waves.norm(dim=1, keepdim=True)
    phases = 2 * math.pi * torch.rand(8, generator=generator, dtype=torch.float64)
    return features, (features @ waves.T + phases).cos().sum(dim=1, keepdim=True)


def photograph(name: str, sigma_space: float, sigma_range: float) -> tuple[Tensor, Tensor]:
    """Pixels of a picture of scikit-image: position and color, and the color again as values."""
    from skimage import data

    pixels = torch.from_numpy(getattr(data, name)()).double() / 255
    image = pixels.reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
    return ph.bilateral_features(image, sigma_space, sigma_range), ph.color_features(image)


def exact_filter(values: Tensor, features: Tensor, rows: Tensor) -> Tensor:
    """The normalized Gaussian filter at some of the points, `[rows, channels]`, by brute force."""
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
    taps = ph.Neighborhood(features.shape[1], halo).filter_size
    occupied = ph.build_lattice(features, neighborhood_size=0).num_lattice_points
    if occupied * taps > 20 * MOST_LATTICE_POINTS:
        return None
    count = ph.build_lattice(features, neighborhood_size=0, halo=halo).num_lattice_points if halo else occupied
    return count if count <= MOST_LATTICE_POINTS else None


def run() -> dict[str, Any]:
    """Measure every problem."""
    rows = []
    for dimension in range(1, 6):
        for density in (100.0, 1.0):
            name = f"cloud, {density:g} point{'s' * (density != 1)} per unit"
            rows.append(measure(name, lambda d=dimension, p=density: cloud(d, p)))  # type: ignore[misc]
    rows.append(measure("photograph camera, gray, 4 pixels, 0.1", lambda: photograph("camera", 4.0, 0.1)))
    rows.append(measure("photograph astronaut, 16 pixels, 0.1", lambda: photograph("astronaut", 16.0, 0.1)))
    rows.append(measure("photograph astronaut, 4 pixels, 0.1", lambda: photograph("astronaut", 4.0, 0.1)))
    return {
        "what": "relative L2 error against the exact normalized Gaussian filter",
        "command": "make accuracy",
        "version": ph.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "backend": ph.explain_backend().partition(":")[0],
        "rows": rows,
    }


INTRODUCTION = """# Accuracy

Generated by `make accuracy` (`tools/accuracy.py`); the figures are in `results/accuracy.json`. Do not edit.

The lattice approximates the Gaussian filter. The tables give the relative L2 error of `gaussian_filter` with
homogeneous normalization against the exact filter, which sums over all pairs of points, in float64, at {exact:,}
randomly drawn points. That the code agrees with its own definition to rounding is for the tests to show; this page
is about the definition.

*Clouds* are {points:,} points uniform in a cube, with 100 or 1 of them to a volume of one standard deviation in
every direction (so the cube is the smaller the higher d is), carrying waves six standard deviations long, of mean
zero: nothing hides an error. *Photographs* are pixels with position and color as features (bandwidths in pixels and
in color, white being 1), carrying the color.

- **separable**: d+1 passes over the occupied lattice points, the default.
- **halo 1**: the same passes, with the untouched lattice points one step away inserted.
- **dense**: one convolution with all taps of size 2: the same kernel, and no path of it gets lost.
"""


def render(report: dict[str, Any]) -> str:
    """The page, in Markdown."""
    shown = ["separable", "separable, halo 1", "dense"]
    errors, counts = [], []
    for row in report["rows"]:
        found = row["methods"]
        problem = [str(row["dimension"]), row["name"]]
        errors.append([*problem, *(f"{found[method]['error']:.4f}" for method in shown)])
        counts.append([*problem, *(f"{found[method]['lattice_points']:,}" for method in shown[:2])])
    both = [row["methods"] for row in report["rows"] if "separable, halo 2" in row["methods"]]
    difference = max(abs(found["separable, halo 2"]["error"] - found["dense"]["error"]) for found in both)
    lines = [
        INTRODUCTION.format(exact=NUM_EXACT, points=NUM_POINTS),
        "## Relative L2 error",
        "",
        markdown_table(["d", "points", *shown], errors, text_columns=range(5)),
        "",
        f"With a halo of 2 no path is lost either: its error differs from that of the dense filter by {difference:.0e}",
        f"at most, over the {len(both)} rows where it was tried.",
        "",
        "## Lattice points",
        "",
        "What a halo costs. The dense method needs no more lattice points than the separable one without a halo, but",
        "3^(d+1) - 2^(d+1) taps at each: 5, 19, 65, 211 and 665 for d = 1 to 5.",
        "",
        markdown_table(["d", "points", *shown[:2]], counts, text_columns=range(4)),
        "",
        f"permutohedral {report['version']}, torch {report['torch']}, backend {report['backend']}, float64.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    measured = run()
    JSON_FILE.parent.mkdir(exist_ok=True)
    JSON_FILE.write_text(json.dumps(measured, indent=2) + "\n")
    PAGE.write_text(render(measured))
    print(f"wrote {JSON_FILE.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")
