"""Peers: other libraries for the same operation on the same inputs, each of them optional."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.inputs import FilterProblem
from benchmarks.registry import Absent, Contender

DENSECRF = "pydensecrf2"
OPENCV = "OpenCV"
GRID = "our dense grid, SciPy"

# distribution and module of each library that may take part
LIBRARIES = {DENSECRF: ("pydensecrf2", "pydensecrf"), OPENCV: ("opencv", "cv2"), "SciPy": ("scipy", "scipy")}

Error = Callable[[Tensor], float] | None


def version_of(library: str) -> str | None:
    """Return the version of an installed library of `LIBRARIES`, or None."""
    distribution, module = LIBRARIES[library]
    try:
        if module == "cv2":
            return str(importlib.import_module("cv2").__version__)
        return importlib.metadata.version(distribution)
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return None


def set_threads(threads: int) -> None:
    """Set the number of threads of every library that has threads."""
    torch.set_num_threads(threads)
    if version_of(OPENCV) is not None:
        importlib.import_module("cv2").setNumThreads(threads)


class _DenseCRF:
    """A Gaussian filter through the mean-field interface of pydensecrf2, which exposes no other.

    A step of inference computes softmax(-sum of filtered Q) and leaves the filtered Q in the second scratch
    matrix. Q is written beforehand with the values, so the scratch matrix then holds the filtered values. The
    softmax, and the conversion of the features, are what a step of a field without a filter also does: they
    are the baseline. Adding a filter always filters a channel of ones as well, for the normalization.
    """

    def __init__(self, problem: FilterProblem) -> None:
        self.library: Any = importlib.import_module("pydensecrf.densecrf")
        self.eigen: Any = importlib.import_module("pydensecrf.eigen")
        self.values = problem.values.cpu().numpy()
        self.features = np.ascontiguousarray(problem.features.cpu().numpy().T)
        shape = self.values.shape[::-1]
        self.marginals, self.scratch, self.filtered = (self.eigen.matrixXf(np.zeros(shape, np.float32)) for _ in "012")
        # column by column in memory: its transpose is laid out as the values are
        self.marginals_view = np.asarray(self.marginals).T
        self.filtered_view = np.asarray(self.filtered).T
        self.empty = self.field()
        self.built: Any = None

    def field(self) -> Any:
        """Return a field without a filter."""
        num_points, channels = self.values.shape
        return self.library.DenseCRF(num_points, channels)

    def build(self) -> Any:
        """Build a field with the Gaussian filter: its lattice and the normalization."""
        self.built = self.field()
        # compatibility -1 and not 1: the library's Potts model negates
        self.built.addPairwiseEnergy(self.features, -1.0, self.library.CONST_KERNEL, self.library.NORMALIZE_AFTER)
        return self.built

    def write_values(self) -> None:
        """Restore the values that the last step overwrote."""
        self.marginals_view[:] = self.values

    def step(self, crf: Any) -> Tensor:
        """Run one step of mean field and return the filtered values `[points, channels]`."""
        crf.stepInference(self.marginals, self.scratch, self.filtered)
        return torch.from_numpy(self.filtered_view)

    def convert(self) -> Any:
        """Convert the features, as adding a filter does."""
        return self.eigen.matrixXf(self.features)


# by part: what is timed, its unavoidable extra work, and how the report describes both
_DENSECRF_PARTS: dict[str, tuple[Callable[[_DenseCRF], Any], Callable[[_DenseCRF], Any], str]] = {
    "filter": (
        lambda crf: crf.step(crf.build()),
        lambda crf: (crf.convert(), crf.step(crf.empty)),
        "one mean-field step, the softmax and the conversion of the features subtracted",
    ),
    "reused": (
        lambda crf: crf.step(crf.built),
        lambda crf: crf.step(crf.empty),
        "one mean-field step, the softmax subtracted",
    ),
}


def densecrf(problems: list[FilterProblem], part: str, error: Error = None) -> Contender | Absent:
    """Run pydensecrf2: build and "filter" once, or filter on a "reused" lattice."""
    if version_of(DENSECRF) is None:
        return Absent(DENSECRF)
    run, baseline, note = _DENSECRF_PARTS[part]
    fields = [_DenseCRF(problem) for problem in problems]
    if part == "reused":
        for crf in fields:
            crf.build()

    def before(number: int) -> None:
        crf = fields[number % len(fields)]
        if part != "reused":
            crf.built = None
        crf.write_values()

    return Contender(
        DENSECRF,
        run=lambda number: run(fields[number % len(fields)]),
        before=before,
        baseline=lambda number: baseline(fields[number % len(fields)]),
        error=error,
        note=f"one thread; {note}",
        version=version_of(DENSECRF),
    )


def opencv_bilateral(problems: list[FilterProblem], error: Error) -> Contender | Absent:
    """Filter with cv2.bilateralFilter and its default window."""
    if version_of(OPENCV) is None:
        return Absent(OPENCV)
    pictures = [problem.image for problem in problems if problem.image is not None]
    if not pictures:
        return Absent(OPENCV, "filters images only")
    cv2: Any = importlib.import_module("cv2")
    images = [np.ascontiguousarray(picture.cpu().permute(1, 2, 0).numpy()) for picture in pictures]
    channels = images[0].shape[2]
    space, color = problems[0].sigmas
    # the radius OpenCV takes for a window of size 0
    diameter = 2 * math.floor(1.5 * space + 0.5) + 1

    def run(number: int) -> Any:
        return cv2.bilateralFilter(images[number % len(images)], diameter, color, space)

    def image_error(output: Any) -> float:
        assert error is not None
        return error(torch.from_numpy(output).reshape(-1, channels))

    note = "window cut at 1.5 standard deviations" + (", L1 distance of colors" if channels == 3 else "")
    return Contender(OPENCV, run, error=image_error if error else None, note=note, version=version_of(OPENCV))


def bilateral_grid(problems: list[FilterProblem], error: Error) -> Contender | Absent:
    """Blur a dense grid over the features, with cells of one unit: our own code on scipy.ndimage."""
    if version_of("SciPy") is None:
        return Absent(GRID)
    if problems[0].image is None or problems[0].features.shape[1] > 3:
        return Absent(GRID, "for gray images only: a dense grid of more dimensions does not fit in memory")
    ndimage: Any = importlib.import_module("scipy.ndimage")
    given = [(problem.features.cpu().numpy(), problem.values.cpu().numpy()) for problem in problems]
    margin = 4
    # linear interpolation into the grid and out of it blurs by a variance of 1/6 each
    spread = math.sqrt(1 - 2 / 6)

    def run(number: int) -> Tensor:
        features, values = given[number % len(given)]
        positions = features - features.min(axis=0) + margin
        shape = tuple(int(extent) + margin + 2 for extent in positions.max(axis=0))
        corner = positions.astype(np.int64)
        share = positions - corner
        grids = [np.zeros(int(np.prod(shape)), np.float32) for _ in range(values.shape[1] + 1)]
        masses = [*values.T, None]
        for choice in np.ndindex(*(2,) * len(shape)):
            upper = np.array(choice)
            weight = np.prod(np.where(upper, share, 1 - share), axis=1)
            cell = np.ravel_multi_index(tuple((corner + upper).T), shape)
            for grid, mass in zip(grids, masses, strict=True):
                splatted = np.bincount(cell, weight if mass is None else weight * mass, len(grid))
                np.add(grid, splatted, out=grid, casting="same_kind")
        blurred = [ndimage.gaussian_filter(grid.reshape(shape), spread) for grid in grids]
        *filtered, mass = (ndimage.map_coordinates(grid, positions.T, order=1) for grid in blurred)
        return torch.from_numpy(np.stack(filtered, axis=1) / mass[:, None])

    note = "one thread; cells of one standard deviation"
    return Contender(GRID, run, error=error, note=note, version=version_of("SciPy"), is_peer=False)
