"""Maps that follow the edges of photos: upsampled, solved, and colors spread from strokes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.image import ImageData, check_output, read_image, write_image
from permutohedral.apps.io.maps import Map, check_map_output, list_maps, read_map, write_map
from permutohedral.apps.io.metadata import Metadata
from permutohedral.apps.io.settings import PathLike, Progress, optional_path, to_path
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Sources
from permutohedral.apps.jobs.images import check_same_size, size_of
from permutohedral.apps.jobs.transparency import hide_colors
from permutohedral.errors import InputError
from permutohedral.guided.maps import guide_and_sigma

# without alpha, a pixel whose channels differ by more belongs to a stroke; JPEG changes gray a little
_COLORED = 0.06
_SOLVER_SIGMA_SPACE = 8.0
# colors spread far from few strokes
_COLORIZE_ITERATIONS = 100


@dataclass(frozen=True)
class GuidedResult(batch.FileResult):
    """Result of `upsample_map`, `solve_map` and `colorize_image`.

    Attributes:
        channels: of the result.
        known: share of the samples that were known.
    """

    channels: int | None = None
    known: float | None = None

    def _details(self) -> str:
        return f": {self.width} x {self.height} pixels, in {self.seconds:.2f} s"


def upsample_map(
    sources: Sources,
    guide: PathLike,
    output: PathLike,
    *,
    mode: Literal["gaussian", "affine", "solver"] = "solver",
    sigma_space: float | None = None,
    sigma_luma: float = 0.12,
    sigma_chroma: float = 0.05,
    num_iterations: int | None = None,
    sampling: Literal["area", "point"] = "area",
    smoothness: float = 0.3,
    sample_weight: PathLike | None = None,
    unknown: float | None = None,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedResult]:
    """Upsample small maps to the size of photos, along the edges of the photos.

    Maps are images of 8 or 16 bits, TIFF files of floats, or .npy files `[height, width]` or `[channels, height,
    width]`. The result keeps their units and bits; integers are rounded. NaN and transparent pixels are filled.

    Args:
        sources: maps, or folders of maps.
        guide: photo, or a folder of photos with the names of the maps.
        output: file for the result, or a folder for several.
        mode: see `ph.upsample`.
        sigma_space: bandwidth in pixels of the guide; default by mode.
        sigma_luma: bandwidth in brightness; white is 1.
        sigma_chroma: bandwidth in color, if the guide has colors.
        num_iterations: corrections or iterations of the mode; default by mode.
        sampling: see `ph.upsample`.
        smoothness: see `ph.bilateral_solver`.
        sample_weight: image (white is certain) or .npy file, or a folder of them; 0 is unknown.
        unknown: number that marks unknown samples.
        recursive, errors, progress: see `filter_image`, also for the exceptions.
    """
    photos, weights = to_path("guide", guide), optional_path("sample_weight", sample_weight)
    files = batch.plan_files(sources, output, recursive, photos, weights, list_folder=list_maps, check=check_map_output)

    def compute(
        source: Path, photo: Path, given: Map, guide: Tensor, sigma_guide: list[float], weight: Tensor | None
    ) -> Tensor:
        # swapped arguments would return a small copy of the photo
        if any(extent > room for extent, room in zip(given.values.shape[1:], guide.shape[1:], strict=True)):
            raise InputError(
                f"{source} has {size_of(given.values)} pixels, more than its guide with {size_of(guide)}; pass the map "
                "first, then the photo"
            )
        return ph.upsample(
            given.values, guide, sigma_space=sigma_space, sigma_color=sigma_guide, mode=mode,
            sample_weight=weight, num_iterations=num_iterations, sampling=sampling, smoothness=smoothness,
        )  # fmt: skip

    return _process_maps(compute, files, photos, sigma_luma, sigma_chroma, weights, unknown, errors, progress)


def solve_map(
    sources: Sources,
    guide: PathLike,
    output: PathLike,
    *,
    sample_weight: PathLike | None = None,
    smoothness: float = 0.3,
    sigma_space: float = _SOLVER_SIGMA_SPACE,
    sigma_luma: float = 0.12,
    sigma_chroma: float = 0.05,
    unknown: float | None = None,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedResult]:
    """Smooth maps along the edges of photos of the same size, and fill their holes.

    Args:
        sources, guide, output, sample_weight: see `upsample_map`.
        smoothness: see `ph.bilateral_solver`.
        sigma_space: bandwidth in pixels.
        sigma_luma, sigma_chroma, unknown: see `upsample_map`.
        recursive, errors, progress: see `filter_image`, also for the exceptions.
    """
    photos, weights = to_path("guide", guide), optional_path("sample_weight", sample_weight)
    files = batch.plan_files(sources, output, recursive, photos, weights, list_folder=list_maps, check=check_map_output)

    def compute(
        source: Path, photo: Path, given: Map, guide: Tensor, sigma_guide: list[float], weight: Tensor | None
    ) -> Tensor:
        check_same_size(source, given.values, photo, guide, "upsample a smaller map")
        return ph.bilateral_solver(
            given.values,
            guide,
            sample_weight=weight,
            smoothness=smoothness,
            sigma_space=sigma_space,
            sigma_color=sigma_guide,
        )

    return _process_maps(compute, files, photos, sigma_luma, sigma_chroma, weights, unknown, errors, progress)


def _process_maps(
    compute: Callable[[Path, Path, Map, Tensor, list[float], Tensor | None], Tensor],
    files: Sequence[batch.Pair],
    photos: Path,
    sigma_luma: float,
    sigma_chroma: float,
    weights: Path | None,
    unknown: float | None,
    errors: Errors,
    progress: Progress | None,
) -> list[GuidedResult]:
    def process(source: Path, output: Path, report: Callable[[float], None]) -> GuidedResult:
        given, path = read_map(source, unknown), batch.find_companion(photos, source)
        guide, sigma_guide = guide_and_sigma(_read_photo(path), 2, sigma_luma, sigma_chroma)
        weight = None
        if weights is not None:
            weight = _read_weight(batch.find_companion(weights, source), source, given)
        started = time.perf_counter()
        found = compute(source, path, given, guide, sigma_guide, weight)
        return _write_result(source, output, given, found, time.perf_counter() - started)

    return batch.process_files(process, GuidedResult, files, errors, progress)


def _read_photo(path: Path) -> Tensor:
    if path.suffix.lower() == ".npy":
        raise InputError(f"guide {path} is a map, not a photo; pass the map first, then the photo")
    photo = read_image(path)
    return hide_colors(photo.pixels, photo.alpha)


def _read_weight(path: Path, source: Path, given: Map) -> Tensor:
    found = read_map(path)
    check_same_size(path, found.values, source, given.values)
    levels = 1 if found.image is None else found.image.levels
    return torch.nan_to_num(found.values.mean(dim=0) / levels)


def _write_result(source: Path, output: Path, given: Map, found: Tensor, seconds: float) -> GuidedResult:
    lost = tuple(write_map(found, given, output))
    known = round(float(given.values.isfinite().all(dim=0).float().mean()), 5)
    channels, height, width = found.shape
    return GuidedResult(source, output, None, lost, height, width, round(seconds, 4), channels, known)


def colorize_image(
    sources: Sources,
    strokes: PathLike,
    output: PathLike,
    *,
    sigma_space: float = _SOLVER_SIGMA_SPACE,
    sigma_luma: float = 0.06,
    smoothness: float = 0.1,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedResult]:
    """Color gray images from a few strokes.

    Args:
        sources: gray images; see `filter_image`.
        strokes: image of the same size, or a folder of images with the names of the sources. It is colored on strokes,
            and transparent or gray elsewhere.
        output: see `filter_image`.
        sigma_space: bandwidth in pixels.
        sigma_luma: bandwidth in brightness; white is 1.
        smoothness: see `ph.bilateral_solver`.
        recursive, errors, progress: see `filter_image`, also for the exceptions.
    """
    place = to_path("strokes", strokes)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> GuidedResult:
        image = read_image(source)
        path = batch.find_companion(place, source)
        colors = read_image(path)
        gray = _luma(image.pixels)
        check_output(output, image.with_pixels(gray.expand(3, -1, -1)))
        check_same_size(path, colors.pixels, source, gray)
        drawn = _find_strokes(colors)
        if len(colors.pixels) != 3 or not bool(drawn.any()):
            raise InputError(f"{path} has no strokes: draw in color, on gray or on a transparent image")
        chroma = colors.pixels - _luma(colors.pixels)
        started = time.perf_counter()
        found = ph.bilateral_solver(
            chroma,
            gray,
            sample_weight=drawn,
            smoothness=smoothness,
            sigma_space=sigma_space,
            sigma_color=sigma_luma,
            num_iterations=_COLORIZE_ITERATIONS,
        )
        seconds = time.perf_counter() - started
        colored = replace(image, pixels=gray + found, metadata=_without_gray_profile(image))
        lost = tuple(write_image(colored, output))
        height, width = gray.shape[1:]
        known = round(float(drawn.float().mean()), 5)
        return GuidedResult(source, output, None, lost, height, width, round(seconds, 4), 3, known)

    return batch.process_files(
        process, GuidedResult, batch.plan_files(sources, output, recursive, place), errors, progress
    )


def _luma(pixels: Tensor) -> Tensor:
    """Return the brightness `[1, height, width]` as gray images have it (Rec. 601)."""
    if len(pixels) == 1:
        return pixels
    return (pixels * pixels.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=0, keepdim=True)


def _without_gray_profile(image: ImageData) -> Metadata:
    """Return the metadata without a color profile of gray, which does not apply to colors."""
    metadata = image.metadata
    if len(image.pixels) == 3 or metadata.color_profile is None:
        return metadata
    return replace(metadata, color_profile=None, unreadable=(*metadata.unreadable, "color profile"))


def _find_strokes(colors: ImageData) -> Tensor:
    """Return where strokes are, bool `[height, width]`."""
    # many programs write an alpha channel without transparent pixels
    if colors.alpha is not None and not bool((colors.alpha > 0).all()):
        return colors.alpha[0] > 0
    return colors.pixels.amax(dim=0) - colors.pixels.amin(dim=0) > _COLORED
