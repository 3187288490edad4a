"""Removes the noise from picture files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.models.image_denoiser import NO_NOISE, ImageDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.pictures.batch import Outcome, Progress, Request, check_companions, companion, make_folder
from permutohedral.pictures.files import Picture, check_output, read_picture, write_picture
from permutohedral.pictures.transparency import fill_hidden


@dataclass(frozen=True)
class Denoised(Outcome):
    """What became of one file.

    Attributes:
        sigma: standard deviation of the noise, of 255.
        model: that removed it; None where there was none.
        psnr: of input and output against the reference, in dB, infinite where they are equal; None without one.
        ssim: the same, structural similarity.
    """

    sigma: float | None = None
    model: str | None = None
    psnr: tuple[float, float] | None = None
    ssim: tuple[float, float] | None = None

    def describe(self) -> str:
        """Noise, model and measures, around what every file has."""
        if self.error is not None:
            return super().describe()
        scores = ""
        if self.psnr is not None:
            scores += f", PSNR {self.psnr[0]:.2f} to {self.psnr[1]:.2f} dB"
        if self.ssim is not None:
            scores += f", SSIM {self.ssim[0]:.4f} to {self.ssim[1]:.4f}"
        model = "" if self.model is None else f", {self.model}"
        return f"{self.source}: noise {self.sigma:g}{model}, {super().describe()}{scores}"


@dataclass(frozen=True)
class Denoise(Request):
    """Removal of noise, with measures and a figure if they are asked for.

    Attributes:
        denoiser: that does it.
        sigma: standard deviation of the noise, of 255; None to estimate it for each picture.
        reference: the clean picture, or the folder of those of the same names; None if there is none.
        compare: the figure of before and after, or the folder for them; None for none.
        strength: that many times the noise is removed.
    """

    outcome: ClassVar[type[Outcome]] = Denoised

    denoiser: ImageDenoiser
    sigma: float | None = None
    reference: Path | None = None
    compare: Path | None = None
    strength: float = 1.0

    def check(self, files: Sequence[tuple[Path, Path]]) -> None:
        """Find out before any work whether the references are found and the figures can be drawn.

        Raises:
            InputError: there is no such folder, or the ending names no format.
        """
        check_companions(self.reference, files)
        check_companions(self.compare, files)
        if self.compare is None:
            return
        from permutohedral.reporting.figure import check_ending

        if len(files) > 1:
            make_folder(self.compare)
        elif not self.compare.parent.is_dir():
            raise InputError(f"cannot write the figure {self.compare}: there is no folder {self.compare.parent}")
        elif not self.compare.is_dir():
            check_ending(self.compare)

    def process(self, source: Path, output: Path, progress: Progress) -> Denoised:
        """Denoise one file."""
        picture = read_picture(source)
        check_output(output, picture)
        clean = None if self.reference is None else _read_reference(self.reference, source, picture)
        noisy = fill_hidden(picture.pixels, picture.alpha)
        sigma = estimate_noise(noisy) if self.sigma is None else self.sigma / 255
        removed = self.strength * sigma
        # in place: a large picture is a large part of the memory
        pixels = self.denoiser(noisy, removed, progress).clamp_(0, 1)
        if picture.alpha is not None:
            pixels = torch.where(picture.alpha > 0, pixels, picture.pixels)
        lost = tuple(write_picture(picture.with_pixels(pixels), output))
        model = None if removed < NO_NOISE else self.denoiser.choose(pixels.shape[0], removed)
        outcome = Denoised(source, output, lost=lost, sigma=round(255 * sigma, 3), model=model)
        if clean is not None:
            outcome = _score(outcome, picture.pixels, pixels, clean)
        if self.compare is not None:
            _compare(self.compare, outcome, picture.pixels, pixels)
        return outcome


def _read_reference(reference: Path, source: Path, picture: Picture) -> Tensor:
    path = companion(reference, source)
    clean = read_picture(path).pixels
    if clean.shape != picture.pixels.shape:
        raise InputError(
            f"{path} and {source} must have the same size and channels, got {tuple(clean.shape)} and "
            f"{tuple(picture.pixels.shape)}"
        )
    return clean


def _score(outcome: Denoised, noisy: Tensor, denoised: Tensor, clean: Tensor) -> Denoised:
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


def _compare(path: Path, outcome: Denoised, noisy: Tensor, denoised: Tensor) -> None:
    """Draw before and after side by side."""
    from permutohedral.reporting.figure import new_figure, save_figure

    if path.is_dir():
        path = path / f"{outcome.source.stem}.png"
    figure = new_figure(12, 12 * noisy.shape[1] / noisy.shape[2] / 2 + 0.5)
    for number, (title, pixels) in enumerate((("before", noisy), ("after", denoised))):
        axis = figure.add_subplot(1, 2, number + 1)
        axis.imshow(pixels.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        psnr = f", {outcome.psnr[number]:.2f} dB" if outcome.psnr else ""
        ssim = f", SSIM {outcome.ssim[number]:.4f}" if outcome.ssim else ""
        axis.set_title(title + psnr + ssim)
        axis.set_axis_off()
    save_figure(figure, path)
