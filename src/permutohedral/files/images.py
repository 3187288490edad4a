"""Filters of image files: bilateral filter, denoising and colorization."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.files.batch import (
    Errors,
    FileResult,
    Pair,
    PathLike,
    Sources,
    check_companions,
    find_companion,
    make_folder,
    optional_path,
    plan_files,
    process_files,
)
from permutohedral.files.formats.image import ImageData, check_output, read_image, write_image
from permutohedral.files.image_tiles import filter_in_tiles
from permutohedral.files.settings import Progress
from permutohedral.files.transparency import fill_hidden, filter_by_alpha, hide_colors
from permutohedral.models.image_denoiser import NO_NOISE, ImageDenoiser
from permutohedral.models.noise_level import estimate_noise

# relative error that results in a warning
LARGE_ERROR = 0.01
# window of the structural similarity
_SSIM_WINDOW = 7


@dataclass(frozen=True)
class FilteredImage(FileResult):
    """Result of `filter_image`.

    Attributes:
        height: in pixels.
        width: in pixels.
        channels: without alpha.
        seconds: duration of the filter, without reading and writing.
        method: the method, and the reason if it was chosen automatically.
        relative_error: estimate over all sampled pixels, None unless requested.
        worst_error: largest error at a sampled pixel; white is 1.
    """

    height: int | None = None
    width: int | None = None
    channels: int | None = None
    seconds: float | None = None
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
    method: Literal["separable", "dense", "exact", "auto"] = "auto",
    halo: int = 0,
    tile: int = 2048,
    check: bool = False,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[FilteredImage]:
    """Smooth images and keep their edges with a bilateral filter.

    Large images are filtered in tiles. Alpha is kept, and weights the colors. Outputs are written atomically, and keep
    bits, EXIF and color profile.

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
        InputError: a file cannot be read, or the format of the output cannot hold the image.
        StorageError: an output cannot be written.
    """
    place, files = optional_path(guide), plan_files(sources, output, recursive)
    check_companions(place, files)
    sigmas = sigma_space, sigma_color

    def process(source: Path, output: Path, report: Callable[[float], None]) -> FilteredImage:
        image = read_image(source)
        check_output(output, image)
        visible = hide_colors(image.pixels, image.alpha)
        edges = visible if place is None else _read_guide(place, source, visible)
        estimates, seconds = [], 0.0

        def average(values: Tensor) -> Tensor:
            nonlocal seconds
            started = time.perf_counter()
            filtered = filter_in_tiles(values, edges, *sigmas, report, method=method, halo=halo, tile=tile)
            seconds = time.perf_counter() - started
            if check:
                estimates.append(ph.estimate_bilateral_error(filtered, values, *sigmas, edges))
            return filtered

        pixels = filter_by_alpha(image.pixels, image.alpha, average)
        lost = tuple(write_image(image.with_pixels(pixels), output))
        channels, height, width = pixels.shape
        name = ph.explain_bilateral(image.pixels, *sigmas, edges) if method == "auto" else method
        measured = (estimates[0].relative, estimates[0].worst) if estimates else (None, None)
        return FilteredImage(source, output, None, lost, height, width, channels, round(seconds, 4), name, *measured)

    return process_files(process, FilteredImage, files, errors, progress)


def _read_guide(place: Path, source: Path, pixels: Tensor) -> Tensor:
    path = find_companion(place, source)
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
class DenoisedImage(FileResult):
    """Result of `denoise_image`.

    Attributes:
        sigma: standard deviation of the noise; white is 255.
        model: name of the model, None if there was no noise.
        psnr: of input and output against the reference in dB, infinite if equal; None without a reference.
        ssim: structural similarity of input and output to the reference.
    """

    sigma: float | None = None
    model: str | None = None
    psnr: tuple[float, float] | None = None
    ssim: tuple[float, float] | None = None

    def _details(self) -> str:
        details = f": noise {self.sigma:g}" + ("" if self.model is None else f", {self.model}")
        if self.psnr is not None:
            details += f", PSNR {self.psnr[0]:.2f} to {self.psnr[1]:.2f} dB"
        if self.ssim is not None:
            details += f", SSIM {self.ssim[0]:.4f} to {self.ssim[1]:.4f}"
        return details


def denoise_image(
    sources: Sources,
    output: PathLike,
    *,
    sigma: float | None = None,
    strength: float = 1.0,
    model: str = "auto",
    reference: PathLike | None = None,
    compare: PathLike | None = None,
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
        reference: clean image, or a folder of images with the names of the sources, to measure PSNR and SSIM.
        compare: figure of the images before and after, or a folder for several.
        recursive, errors, progress: see `filter_image`.

    Raises:
        InputError: a file cannot be read, or the format of the output cannot hold the image.
        StorageError: an output cannot be written.
    """
    denoiser = ImageDenoiser(model)
    clean_place, figures = optional_path(reference), optional_path(compare)
    files = plan_files(sources, output, recursive)
    check_companions(clean_place, files)
    _check_figures(figures, files)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> DenoisedImage:
        image = read_image(source)
        check_output(output, image)
        clean = None if clean_place is None else _read_reference(clean_place, source, image)
        noisy = fill_hidden(image.pixels, image.alpha)
        level = estimate_noise(noisy) if sigma is None else sigma / 255
        removed = strength * level
        # in place, since a large image is a large part of the memory
        pixels = denoiser(noisy, removed, report).clamp_(0, 1)
        if image.alpha is not None:
            pixels = torch.where(image.alpha > 0, pixels, image.pixels)
        lost = tuple(write_image(image.with_pixels(pixels), output))
        name = None if removed < NO_NOISE else denoiser.choose(pixels.shape[0], removed)
        result = DenoisedImage(source, output, None, lost, round(255 * level, 3), name)
        if clean is not None:
            result = _measure(result, image.pixels, pixels, clean)
        if figures is not None:
            _draw_comparison(figures, result, image.pixels, pixels)
        return result

    return process_files(process, DenoisedImage, files, errors, progress)


def _check_figures(place: Path | None, files: Sequence[Pair]) -> None:
    """Check before any work that the figures can be written."""
    if place is None:
        return
    from permutohedral.files.figure import check_ending

    check_companions(place, files)
    if len(files) > 1:
        make_folder(place)
    elif not place.parent.is_dir():
        raise InputError(f"cannot write the figure {place}: there is no folder {place.parent}")
    elif not place.is_dir():
        check_ending(place)


def _read_reference(place: Path, source: Path, image: ImageData) -> Tensor:
    path = find_companion(place, source)
    clean = read_image(path).pixels
    if clean.shape != image.pixels.shape:
        raise InputError(
            f"{path} and {source} must have the same size and channels, got {tuple(clean.shape)} and "
            f"{tuple(image.pixels.shape)}"
        )
    return clean


def _measure(result: DenoisedImage, noisy: Tensor, denoised: Tensor, clean: Tensor) -> DenoisedImage:
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    reference = clean.numpy()
    before, after = noisy.numpy(), denoised.numpy()
    with np.errstate(divide="ignore"):
        psnr = [float(peak_signal_noise_ratio(reference, image, data_range=1.0)) for image in (before, after)]
    result = replace(result, psnr=(psnr[0], psnr[1]))
    if min(reference.shape[1:]) < _SSIM_WINDOW:
        return result
    ssim = [float(structural_similarity(reference, i, data_range=1.0, channel_axis=0)) for i in (before, after)]
    return replace(result, ssim=(ssim[0], ssim[1]))


def _draw_comparison(path: Path, result: DenoisedImage, noisy: Tensor, denoised: Tensor) -> None:
    from permutohedral.files.figure import new_figure, save_figure

    if path.is_dir():
        path = path / f"{result.source.stem}.png"
    figure = new_figure(12, 12 * noisy.shape[1] / noisy.shape[2] / 2 + 0.5)
    for number, (title, pixels) in enumerate((("before", noisy), ("after", denoised))):
        axis = figure.add_subplot(1, 2, number + 1)
        axis.imshow(pixels.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        psnr = f", {result.psnr[number]:.2f} dB" if result.psnr else ""
        ssim = f", SSIM {result.ssim[number]:.4f}" if result.ssim else ""
        axis.set_title(title + psnr + ssim)
        axis.set_axis_off()
    save_figure(figure, path)
