"""What the jobs on maps share: maps that follow the edges of photos."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.image import read_image
from permutohedral.apps.io.maps import Map, check_map_output, list_maps, read_map, write_map
from permutohedral.apps.io.settings import PathLike, Progress, choose_device, optional_path, to_path
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.transparency import hide_colors
from permutohedral.errors import InputError

SIGMA_SPACE, SIGMA_LUMA, SIGMA_CHROMA = 8.0, 0.12, 0.05


@dataclass(frozen=True)
class GuidedMap(batch.ImageResult):
    """Result of `upsample_map`, `solve_map`, `fill_map` and `colorize_image`.

    Attributes:
        channels: of the result.
        known: share of the samples that were known.
    """

    channels: int | None = None
    known: float | None = None


class Task(NamedTuple):
    """One map `[channels, h, w]` with NaN where it is unknown, its guide, and the names of their files."""

    values: Tensor
    guide: Tensor
    sigma_color: list[float]
    sample_weight: Tensor | None
    source: Path
    photo: Path

    def check_same_size(self) -> None:
        """Raise `InputError` unless the map has the size of its guide."""
        batch.check_same_size(self.source, self.values, self.photo, self.guide, "upsample a smaller map")

    def solve(self, smoothness: float, sigma_space: float) -> Tensor:
        """Smooth the map along the edges of the guide, and fill its holes."""
        self.check_same_size()
        return ph.bilateral_solver(
            self.values, self.guide, sample_weight=self.sample_weight, smoothness=smoothness, sigma_space=sigma_space,
            sigma_color=self.sigma_color,
        )  # fmt: skip


def process_maps(
    compute: Callable[[Task], Tensor],
    inputs: Inputs,
    output: PathLike,
    guide: PathLike,
    sample_weight: PathLike | None,
    unknown: float | None,
    sigmas: tuple[float, float],
    device: str,
    recursive: bool,
    errors: Errors,
    progress: Progress | None,
) -> list[GuidedMap]:
    """Read maps and their photos, compute on a device, and write the results; see `upsample_map`."""
    photos, weights = to_path("guide", guide), optional_path("sample_weight", sample_weight)
    files = batch.plan_files(inputs, output, recursive, photos, weights, list_folder=list_maps, check=check_map_output)
    where = choose_device(device)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> GuidedMap:
        given, photo = read_map(source, unknown), batch.find_companion(photos, source)
        edges, sigma_color = guide_of(_read_photo(photo).to(where), *sigmas)
        weight = None
        if weights is not None:
            weight = _read_weight(batch.find_companion(weights, source), source, given).to(where)
        started = time.perf_counter()
        found = compute(Task(given.values.to(where), edges, sigma_color, weight, source, photo)).cpu()
        seconds = round(time.perf_counter() - started, 4)
        write_map(found, given, output)
        known = round(float(given.values.isfinite().all(dim=0).float().mean()), 5)
        channels, height, width = found.shape
        return GuidedMap(source, output, seconds, None, height, width, channels, known)

    return batch.process_files(process, GuidedMap, files, errors, progress)


def guide_of(photo: Tensor, sigma_luma: float, sigma_chroma: float) -> tuple[Tensor, list[float]]:
    """Return the guide of a photo, in opponent colors if it has colors, and the bandwidth of each channel."""
    if len(photo) == 1:
        return photo, [sigma_luma]
    # in opponent colors white is at the square root of 3
    return ph.features.opponent_colors(photo), [3**0.5 * sigma_luma, sigma_chroma, sigma_chroma]


def _read_photo(path: Path) -> Tensor:
    if path.suffix.lower() == ".npy":
        raise InputError(f"guide {path} is a map, not a photo; pass the map first, then the photo")
    photo = read_image(path)
    return hide_colors(photo.pixels, photo.alpha)


def _read_weight(path: Path, source: Path, given: Map) -> Tensor:
    found = read_map(path)
    batch.check_same_size(path, found.values, source, given.values)
    levels = 1 if found.image is None else found.image.levels
    return torch.nan_to_num(found.values.mean(dim=0) / levels)
