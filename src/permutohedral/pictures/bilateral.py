"""Smooths picture files and keeps their edges: one, or a folder of them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError, PermutohedralError
from permutohedral.image_files import read_picture, write_picture


@dataclass(frozen=True)
class Request:
    """What to do with every file.

    Attributes:
        sigma_space: bandwidth in pixels.
        sigma_range: bandwidth in color, white being 1.
        guide: the picture to take the edges from, or the folder of those of the same names; None for the input.
    """

    sigma_space: float
    sigma_range: float
    guide: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        source: the picture.
        output: the filtered one.
        error: why there is none, None if there is one.
        height: in pixels.
        width: in pixels.
        channels: without alpha.
        seconds: that the filter took, without reading and writing.
    """

    source: Path
    output: Path
    error: str | None = None
    height: int | None = None
    width: int | None = None
    channels: int | None = None
    seconds: float | None = None

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"source": str(self.source), "output": str(self.output)}


def filter_file(source: Path, output: Path, request: Request) -> Outcome:
    """Filter one file; what goes wrong with it is told in the outcome."""
    try:
        picture = read_picture(source)
        edges = picture.pixels if request.guide is None else _read_guide(request.guide, source, picture.pixels)
        started = time.perf_counter()
        pixels = ph.bilateral_filter(picture.pixels, request.sigma_space, request.sigma_range, guide=edges)
        seconds = time.perf_counter() - started
        write_picture(picture.with_pixels(pixels), output)
        channels, height, width = pixels.shape
        return Outcome(source, output, None, height, width, channels, round(seconds, 4))
    except PermutohedralError as error:
        return Outcome(source, output, error=error.message)


def _read_guide(guide: Path, source: Path, pixels: Tensor) -> Tensor:
    path = guide / source.name if guide.is_dir() else guide
    edges = read_picture(path).pixels
    if edges.shape[1:] != pixels.shape[1:]:
        raise InputError(
            f"the guide {path} has {edges.shape[2]} x {edges.shape[1]} pixels and the picture {source} "
            f"{pixels.shape[2]} x {pixels.shape[1]}; scale one of them to the size of the other"
        )
    return edges
