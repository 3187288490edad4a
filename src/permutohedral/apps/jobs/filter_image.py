"""`permutohedral image filter`: smooth images and keep their edges."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.image import check_output, read_image, write_image
from permutohedral.apps.io.settings import PathLike, Progress, choose_device, optional_path, warn_of_large_sigma
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.transparency import filter_by_alpha, hide_colors
from permutohedral.filters.tiling import filter_in_tiles

# relative error that results in a warning
LARGE_ERROR = 0.01


@dataclass(frozen=True)
class FilteredImage(batch.ImageResult):
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
        details = super()._details()
        if self.relative_error is None:
            return details
        return f"{details}, relative error about {100 * self.relative_error:.2g} %"

    def notes(self) -> list[str]:
        """Warn about a large error."""
        if self.relative_error is None or self.relative_error <= LARGE_ERROR:
            return []
        return [
            f"{self.output} is far from the exact filter: relative error about {100 * self.relative_error:.2g} %, "
            f"at a pixel {self.worst_error:.2g} or more; the method exact, or a halo of 1, is more accurate"
        ]


def filter_image(
    inputs: Inputs,
    output: PathLike,
    *,
    guide: PathLike | None = None,
    sigma_space: float = 8.0,
    sigma_color: float = 0.1,
    method: Literal["lattice", "dense", "exact", "auto"] = "auto",
    halo: int = 0,
    tile: int = 2048,
    check: bool = False,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[FilteredImage]:
    """Smooth images and keep their edges with a bilateral filter.

    Large images are filtered in tiles. Alpha is kept, and weights the colors. Outputs are written atomically, and keep
    bits and metadata as far as the format holds them.

    Args:
        inputs: image file, folder, a list of these, or "-" for stdin.
        output: image file, "-" for stdout, or a folder for several images.
        guide: image whose edges are kept, or a folder of images with the names of the inputs; default the input.
        sigma_space: bandwidth in pixels.
        sigma_color: bandwidth in color; white is 1.
        method: see `ph.bilateral_filter`.
        halo: see `ph.bilateral_filter`.
        tile: extent of a tile in pixels; smaller tiles need less memory and report progress more often.
        check: estimate the error.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps"; "auto" is a CUDA GPU if there is one.
        recursive: also process the folders in a folder.
        errors: "raise" ends with the first error, "report" stores errors in the results.
        progress: called with the number of finished images, their total, and the name of the current one.

    Returns:
        One result per image.

    Raises:
        DataError: a file is missing or damaged.
        InputError: an argument does not fit, or the format of the output cannot hold the image.
        StorageError: an output cannot be written.
    """
    place = optional_path("guide", guide)
    files = batch.plan_files(inputs, output, recursive, place)
    where = choose_device(device)
    warn_of_large_sigma(sigma_color)
    sigmas = sigma_space, sigma_color

    def process(source: Path, output: Path, report: Callable[[float], None]) -> FilteredImage:
        image = read_image(source)
        check_output(output, image)
        visible = hide_colors(image.pixels, image.alpha)
        edges = (visible if place is None else _read_guide(place, source, visible)).to(where)
        estimates, seconds, name = [], 0.0, str(method)

        def average(values: Tensor) -> Tensor:
            nonlocal seconds, name
            started = time.perf_counter()
            values = values.to(where)
            filtered = filter_in_tiles(values, edges, *sigmas, report, method=method, halo=halo, tile=tile)
            result = filtered.cpu()
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
            return result

        pixels = filter_by_alpha(image.pixels, image.alpha, average)
        write_image(image.with_pixels(pixels), output)
        channels, height, width = pixels.shape
        measured = (estimates[0].relative, estimates[0].worst) if estimates else (None, None)
        return FilteredImage(source, output, round(seconds, 4), None, height, width, channels, name, *measured)

    return batch.process_files(process, FilteredImage, files, errors, progress)


def _read_guide(place: Path, source: Path, pixels: Tensor) -> Tensor:
    path = batch.find_companion(place, source)
    edges = read_image(path).pixels
    batch.check_same_size(path, edges, source, pixels)
    return edges
