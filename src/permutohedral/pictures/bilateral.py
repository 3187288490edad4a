"""Smooths picture files and keeps their edges."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.choice import explain_bilateral
from permutohedral.filters.estimate import estimate_bilateral_error
from permutohedral.functional import GaussianMethod
from permutohedral.pictures.batch import Outcome, Progress, Request, companion
from permutohedral.pictures.files import check_output, read_picture, write_picture
from permutohedral.pictures.tiles import filter_in_tiles
from permutohedral.pictures.transparency import filter_by_alpha, hide_colors

# relative to the exact result, beyond which a check warns
LARGE_ERROR = 0.01


@dataclass(frozen=True)
class Filtered(Outcome):
    """What became of one file.

    Attributes:
        height: in pixels.
        width: in pixels.
        channels: without alpha.
        seconds: that the filter took, without reading and writing.
        method: which one it was, and why if it was chosen.
        relative_error: estimated, None unless asked for; of all sampled pixels together.
        worst_error: the largest at a sampled pixel, white being 1.
    """

    height: int | None = None
    width: int | None = None
    channels: int | None = None
    seconds: float | None = None
    method: str | None = None
    relative_error: float | None = None
    worst_error: float | None = None

    def describe(self) -> str:
        """Size and time, after what every file has."""
        if self.error is not None:
            return super().describe()
        told = f"{super().describe()}: {self.width} x {self.height} pixels, filtered in {self.seconds:.2f} s"
        if self.relative_error is None:
            return told
        return f"{told}, relative error about {100 * self.relative_error:.2g} %"

    def note(self) -> str | None:
        """What the result lacks, and whether it is far from what was asked for."""
        notes = [super().note()]
        if self.relative_error is not None and not self.relative_error <= LARGE_ERROR:
            notes.append(
                f"{self.output} is far from the exact filter: relative error about {100 * self.relative_error:.2g} %, "
                f"at a pixel {self.worst_error:.2g} or more; --method exact or --halo 1 come closer"
            )
        told = [note for note in notes if note is not None]
        return "; ".join(told) if told else None


@dataclass(frozen=True)
class Bilateral(Request):
    """A bilateral filter, or with a guide a joint bilateral one.

    Attributes:
        sigma_space: bandwidth in pixels.
        sigma_range: bandwidth in color, white being 1.
        guide: the picture to take the edges from, or the folder of those of the same names; None for the input.
        method: see `ph.gaussian_filter`.
        halo: see `ph.gaussian_filter`.
        check: estimate the error.
    """

    outcome: ClassVar[type[Outcome]] = Filtered

    sigma_space: float
    sigma_range: float
    guide: Path | None = None
    method: GaussianMethod = "separable"
    halo: int = 0
    check: bool = False

    def process(self, source: Path, output: Path, progress: Progress) -> Filtered:
        """Filter one file."""
        picture = read_picture(source)
        check_output(output, picture)
        visible = hide_colors(picture.pixels, picture.alpha)
        edges = visible if self.guide is None else _read_guide(self.guide, source, visible)
        estimates = []
        seconds = 0.0

        def average(values: Tensor) -> Tensor:
            nonlocal seconds
            sigmas, started = (self.sigma_space, self.sigma_range), time.perf_counter()
            filtered = filter_in_tiles(values, edges, *sigmas, progress, method=self.method, halo=self.halo)
            seconds = time.perf_counter() - started
            if self.check:
                estimates.append(estimate_bilateral_error(filtered, values, *sigmas, edges))
            return filtered

        pixels = filter_by_alpha(picture.pixels, picture.alpha, average)
        lost = tuple(write_picture(picture.with_pixels(pixels), output))
        channels, height, width = pixels.shape
        measured = (estimates[0].relative, estimates[0].worst) if estimates else (None, None)
        method = self._method_of(picture.pixels, edges)
        return Filtered(source, output, None, lost, height, width, channels, round(seconds, 4), method, *measured)

    def _method_of(self, pixels: Tensor, edges: Tensor) -> str:
        if self.method != "auto":
            return self.method
        return explain_bilateral(pixels, self.sigma_space, self.sigma_range, edges)


def _read_guide(guide: Path, source: Path, pixels: Tensor) -> Tensor:
    path = companion(guide, source)
    edges = read_picture(path).pixels
    if edges.shape[1:] != pixels.shape[1:]:
        raise InputError(
            f"the guide {path} has {edges.shape[2]} x {edges.shape[1]} pixels and the picture {source} "
            f"{pixels.shape[2]} x {pixels.shape[1]}; scale one of them to the size of the other"
        )
    return edges
