"""Smooths picture files and keeps their edges."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.pictures.batch import Outcome, Progress, Request, companion
from permutohedral.pictures.files import check_output, read_picture, write_picture
from permutohedral.pictures.tiles import filter_in_tiles
from permutohedral.pictures.transparency import filter_by_alpha, hide_colors


@dataclass(frozen=True)
class Filtered(Outcome):
    """What became of one file.

    Attributes:
        height: in pixels.
        width: in pixels.
        channels: without alpha.
        seconds: that the filter took, without reading and writing.
    """

    height: int | None = None
    width: int | None = None
    channels: int | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """Size and time, after what every file has."""
        if self.error is not None:
            return super().describe()
        return f"{super().describe()}: {self.width} x {self.height} pixels, filtered in {self.seconds:.2f} s"


@dataclass(frozen=True)
class Bilateral(Request):
    """A bilateral filter, or with a guide a joint bilateral one.

    Attributes:
        sigma_space: bandwidth in pixels.
        sigma_range: bandwidth in color, white being 1.
        guide: the picture to take the edges from, or the folder of those of the same names; None for the input.
    """

    outcome: ClassVar[type[Outcome]] = Filtered

    sigma_space: float
    sigma_range: float
    guide: Path | None = None

    def process(self, source: Path, output: Path, progress: Progress) -> Filtered:
        """Filter one file."""
        picture = read_picture(source)
        check_output(output, picture)
        visible = hide_colors(picture.pixels, picture.alpha)
        edges = visible if self.guide is None else _read_guide(self.guide, source, visible)
        started = time.perf_counter()
        pixels = filter_by_alpha(
            picture.pixels,
            picture.alpha,
            lambda values: filter_in_tiles(values, edges, self.sigma_space, self.sigma_range, progress),
        )
        seconds = time.perf_counter() - started
        lost = tuple(write_picture(picture.with_pixels(pixels), output))
        channels, height, width = pixels.shape
        return Filtered(source, output, None, lost, height, width, channels, round(seconds, 4))


def _read_guide(guide: Path, source: Path, pixels: Tensor) -> Tensor:
    path = companion(guide, source)
    edges = read_picture(path).pixels
    if edges.shape[1:] != pixels.shape[1:]:
        raise InputError(
            f"the guide {path} has {edges.shape[2]} x {edges.shape[1]} pixels and the picture {source} "
            f"{pixels.shape[2]} x {pixels.shape[1]}; scale one of them to the size of the other"
        )
    return edges
