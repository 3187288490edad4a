"""Filters of image files: bilateral filter and denoising."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.image import check_output, read_image, write_image
from permutohedral.apps.io.settings import PathLike, Progress, optional_path
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Sources
from permutohedral.apps.jobs.image_tiles import filter_in_tiles
from permutohedral.apps.jobs.transparency import fill_hidden, filter_by_alpha, hide_colors
from permutohedral.apps.models.image_denoiser import NO_NOISE, Denoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.errors import InputError
from permutohedral.filters.units import warn_of_large_sigma

# relative error that results in a warning
LARGE_ERROR = 0.01


@dataclass(frozen=True)
class FilteredImage(batch.FileResult):
    """Result of `filter_image`.

    Attributes:
        channels: without alpha.
        method: the method, and the reason if it was chosen automatically.
        relative_error: estimate over all sampled pixels, None unless requested.
        worst_error: largest error at a sampled pixel; white is 1.
    """

    channels: int | None = None
    method: str | None = None
    relative_error: float | None = None
    worst_error: float | None = None

    def _details(self) -> str:
        details = f": {self.width} x {self.height} pixels, filtered in {self.seconds:.2f} s"
        if self.relative_error is None:
            return details
        return f"{details}, relative error about {100 * self.relative_error:.2g} %"

    def notes(self) -> list[str]:
        """Return warnings about lost metadata and about a large error."""
        notes = super().notes()
        if self.relative_error is not None and not self.relative_error <= LARGE_ERROR:
            notes.append(
                f"{self.output} is far from the exact filter: relative error about {100 * self.relative_error:.2g} %, "
                f"at a pixel {self.worst_error:.2g} or more; the method exact, or a halo of 1, is more accurate"
            )
        return notes


def filter_image(
    sources: Sources,
    output: PathLike,
    *,
    guide: PathLike | None = None,
    sigma_space: float = 8.0,
    sigma_color: float = 0.1,
    method: Literal["lattice", "dense", "exact", "auto"] = "auto",
    halo: int = 0,
    tile: int = 2048,
    check: bool = False,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[FilteredImage]:
    """Smooth images and keep their edges with a bilateral filter.

    Large images are filtered in tiles. Alpha is kept, and weights the colors. Outputs are written atomically, and keep
    bits and metadata as far as the format holds them.

    Args:
        sources: image files, folders, or "-" for stdin.
        output: image file, "-" for stdout, or a folder for several images.
        guide: image whose edges are kept, or a folder of images with the names of the sources; default the source.
        sigma_space: bandwidth in pixels.
        sigma_color: bandwidth in color; white is 1.
        method: see `ph.bilateral_filter`.
        halo: see `ph.bilateral_filter`.
        tile: extent of a tile in pixels; smaller tiles need less memory and report progress more often.
        check: estimate the error.
        recursive: also process the folders in a folder.
        errors: "raise" ends with the first error, "report" stores errors in the results.
        progress: called with the number of finished images, their total, and the name of the current one.

    Raises:
        DataError: a file is missing or damaged.
        InputError: an argument does not fit, or the format of the output cannot hold the image.
        StorageError: an output cannot be written.
    """
    place = optional_path("guide", guide)
    files = batch.plan_files(sources, output, recursive, place)
    warn_of_large_sigma(sigma_color)
    sigmas = sigma_space, sigma_color

    def process(source: Path, output: Path, report: Callable[[float], None]) -> FilteredImage:
        image = read_image(source)
        check_output(output, image)
        visible = hide_colors(image.pixels, image.alpha)
        edges = visible if place is None else _read_guide(place, source, visible)
        estimates, seconds, name = [], 0.0, str(method)

        def average(values: Tensor) -> Tensor:
            nonlocal seconds, name
            started = time.perf_counter()
            filtered = filter_in_tiles(values, edges, *sigmas, report, method=method, halo=halo, tile=tile)
            seconds = time.perf_counter() - started
            if method == "auto":
                name = str(
                    ph.accuracy.explain_bilateral(values, edges, sigma_space=sigma_space, sigma_color=sigma_color)
                )
            if check:
                estimates.append(
                    ph.accuracy.estimate_bilateral_error(
                        filtered, values, sigma_space=sigmas[0], sigma_color=sigmas[1], guide=edges
                    )
                )
            return filtered

        pixels = filter_by_alpha(image.pixels, image.alpha, average)
        lost = tuple(write_image(image.with_pixels(pixels), output))
        channels, height, width = pixels.shape
        measured = (estimates[0].relative, estimates[0].worst) if estimates else (None, None)
        return FilteredImage(source, output, None, lost, height, width, round(seconds, 4), channels, name, *measured)

    return batch.process_files(process, FilteredImage, files, errors, progress)


def _read_guide(place: Path, source: Path, pixels: Tensor) -> Tensor:
    path = batch.find_companion(place, source)
    edges = read_image(path).pixels
    check_same_size(path, edges, source, pixels)
    return edges


def size_of(pixels: Tensor) -> str:
    """Return width and height of `[..., height, width]` for messages."""
    return f"{pixels.shape[-1]} x {pixels.shape[-2]}"


def check_same_size(path: Path, found: Tensor, source: Path, pixels: Tensor, advice: str = "scale one of them") -> None:
    """Raise `InputError` unless the content of two files `[..., height, width]` has the same size."""
    if found.shape[-2:] != pixels.shape[-2:]:
        raise InputError(f"{path} has {size_of(found)} pixels, but {source} has {size_of(pixels)}; {advice}")


@dataclass(frozen=True)
class DenoisedImage(batch.FileResult):
    """Result of `denoise_image`.

    Attributes:
        sigma: standard deviation of the noise; white is 255.
        model: name of the model, None if there was no noise.
    """

    sigma: float | None = None
    model: str | None = None

    def _details(self) -> str:
        return f": noise {self.sigma:g}" + ("" if self.model is None else f", {self.model}")


def denoise_image(
    sources: Sources,
    output: PathLike,
    *,
    sigma: float | None = None,
    strength: float = 1.0,
    model: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[DenoisedImage]:
    """Remove noise from images with a pretrained network.

    Args:
        sources, output: see `filter_image`.
        sigma: standard deviation of the noise, white is 255; default estimated for each image.
        strength: factor of the noise that is removed; less than 1 leaves more texture.
        model: name of a shipped model, default "auto".
        recursive, errors, progress: see `filter_image`, also for the exceptions.
    """
    denoiser = Denoiser(model)
    if sigma is not None and not 0 <= sigma * strength <= 255:
        raise InputError(f"sigma times strength must be between 0 and 255, where white is, got {sigma * strength:g}")

    def process(source: Path, output: Path, report: Callable[[float], None]) -> DenoisedImage:
        image = read_image(source)
        check_output(output, image)
        noisy = fill_hidden(image.pixels, image.alpha)
        level = estimate_noise(noisy) if sigma is None else sigma / 255
        removed = strength * level
        # in place, since a large image is a large part of the memory
        started = time.perf_counter()
        pixels = denoiser(noisy, removed, report).clamp_(0, 1)
        seconds = round(time.perf_counter() - started, 4)
        if image.alpha is not None:
            pixels = torch.where(image.alpha > 0, pixels, image.pixels)
        lost = tuple(write_image(image.with_pixels(pixels), output))
        name = None if removed < NO_NOISE else denoiser.choose(pixels.shape[0], removed)
        height, width = pixels.shape[1:]
        return DenoisedImage(source, output, None, lost, height, width, seconds, round(255 * level, 3), name)

    return batch.process_files(process, DenoisedImage, batch.plan_files(sources, output, recursive), errors, progress)
