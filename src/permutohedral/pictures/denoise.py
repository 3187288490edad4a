"""Denoises picture files: one, or a folder of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from permutohedral.errors import InputError, PermutohedralError
from permutohedral.image_files import Picture, read_picture, write_picture
from permutohedral.models.image_denoiser import NO_NOISE, ImageDenoiser, estimate_noise


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        source: the noisy picture.
        output: the denoised one.
        error: why there is none, None if there is one.
        sigma: standard deviation of the noise, of 255.
        model: that removed it; None where there was none.
        psnr: of input and output against the reference, in dB, infinite where they are equal; None without one.
        ssim: the same, structural similarity.
    """

    source: Path
    output: Path
    error: str | None = None
    sigma: float | None = None
    model: str | None = None
    psnr: tuple[float, float] | None = None
    ssim: tuple[float, float] | None = None

    def as_data(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        psnr = self.psnr and [decibels if math.isfinite(decibels) else None for decibels in self.psnr]
        return asdict(self) | {"source": str(self.source), "output": str(self.output), "psnr": psnr}


@dataclass(frozen=True)
class Request:
    """What to do with every file.

    Attributes:
        denoiser: that does it.
        sigma: standard deviation of the noise, of 255; None to estimate it for each picture.
        reference: the clean picture, or the folder of those of the same names; None if there is none.
        compare: the figure of before and after, or the folder for them; None for none.
    """

    denoiser: ImageDenoiser
    sigma: float | None = None
    reference: Path | None = None
    compare: Path | None = None


def denoise_file(source: Path, output: Path, request: Request, progress: Callable[[float], None]) -> Outcome:
    """Denoise one file; what goes wrong with it is told in the outcome."""
    try:
        picture = read_picture(source)
        clean = None if request.reference is None else _read_reference(request.reference, source, picture)
        sigma = estimate_noise(picture.pixels) if request.sigma is None else request.sigma / 255
        # in place: a large picture is a large part of the memory
        pixels = request.denoiser(picture.pixels, sigma, progress).clamp_(0, 1)
        write_picture(picture.with_pixels(pixels), output)
        model = None if sigma < NO_NOISE else request.denoiser.choose(pixels.shape[0], sigma)
        outcome = Outcome(source, output, sigma=round(255 * sigma, 3), model=model)
        if clean is not None:
            outcome = _score(outcome, picture.pixels, pixels, clean)
        if request.compare is not None:
            _compare(request.compare, outcome, picture.pixels, pixels)
        return outcome
    except PermutohedralError as error:
        return Outcome(source, output, error=error.message)


def _read_reference(reference: Path, source: Path, picture: Picture) -> Tensor:
    path = reference / source.name if reference.is_dir() else reference
    clean = read_picture(path).pixels
    if clean.shape != picture.pixels.shape:
        raise InputError(
            f"{path} and {source} must have the same size and channels, got {tuple(clean.shape)} and "
            f"{tuple(picture.pixels.shape)}"
        )
    return clean


def _score(outcome: Outcome, noisy: Tensor, denoised: Tensor, clean: Tensor) -> Outcome:
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    reference = clean.numpy()
    before, after = noisy.numpy(), denoised.numpy()
    with np.errstate(divide="ignore"):
        psnr = [float(peak_signal_noise_ratio(reference, image, data_range=1.0)) for image in (before, after)]
    # the window of the similarity
    if min(reference.shape[1:]) < 7:
        return replace(outcome, psnr=(psnr[0], psnr[1]))
    ssim = [float(structural_similarity(reference, i, data_range=1.0, channel_axis=0)) for i in (before, after)]
    return replace(outcome, psnr=(psnr[0], psnr[1]), ssim=(ssim[0], ssim[1]))


def _compare(path: Path, outcome: Outcome, noisy: Tensor, denoised: Tensor) -> None:
    """Draw before and after side by side."""
    from matplotlib.figure import Figure

    if path.is_dir():
        path = path / f"{outcome.source.stem}.png"
    figure = Figure(figsize=(12, 12 * noisy.shape[1] / noisy.shape[2] / 2 + 0.5), layout="constrained", dpi=120)
    for number, (title, pixels) in enumerate((("before", noisy), ("after", denoised))):
        axis = figure.add_subplot(1, 2, number + 1)
        axis.imshow(pixels.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        psnr = f", {outcome.psnr[number]:.2f} dB" if outcome.psnr else ""
        ssim = f", SSIM {outcome.ssim[number]:.4f}" if outcome.ssim else ""
        axis.set_title(title + psnr + ssim)
        axis.set_axis_off()
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        figure.savefig(partial)
        partial.replace(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write the figure {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
