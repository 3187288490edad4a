"""`permutohedral image denoise`: remove noise from images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from permutohedral.apps.io.image import check_output, read_image, write_image
from permutohedral.apps.io.settings import PathLike, Progress, choose_device
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.transparency import fill_hidden
from permutohedral.apps.models.denoiser import Denoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.errors import InputError


@dataclass(frozen=True)
class DenoisedImage(batch.ImageResult):
    """Result of `denoise_image`.

    Attributes:
        sigma: standard deviation of the noise; white is 255.
    """

    sigma: float | None = None

    def _details(self) -> str:
        return f": noise {self.sigma:g} of 255, in {self.seconds:.2f} s"


def denoise_image(
    inputs: Inputs,
    output: PathLike,
    *,
    sigma: float | None = None,
    strength: float = 1.0,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[DenoisedImage]:
    """Remove noise from images with the networks of `Denoiser`.

    Args:
        inputs, output: see `filter_image`.
        sigma: standard deviation of the noise in levels of an 8-bit photo, white is 255; default estimated for each
            image.
        strength: factor of the noise that is removed; less than 1 leaves more texture.
        device, recursive, errors, progress: see `filter_image`, also for the exceptions.

    Returns:
        One result per image.
    """
    if sigma is not None and not 0 <= sigma * strength <= 255:
        raise InputError(f"sigma times strength must be between 0 and 255, where white is, got {sigma * strength:g}")
    denoiser = Denoiser.from_pretrained().to(choose_device(device))
    files = batch.plan_files(inputs, output, recursive)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> DenoisedImage:
        image = read_image(source)
        check_output(output, image)
        noisy = fill_hidden(image.pixels, image.alpha)
        level = estimate_noise(noisy) if sigma is None else sigma / 255
        # in place, since a large image is a large part of the memory
        started = time.perf_counter()
        pixels = denoiser(noisy, min(strength * level, 1.0), report).clamp_(0, 1)
        seconds = round(time.perf_counter() - started, 4)
        if image.alpha is not None:
            pixels = torch.where(image.alpha > 0, pixels, image.pixels)
        write_image(image.with_pixels(pixels), output)
        _, height, width = pixels.shape
        return DenoisedImage(source, output, seconds, None, height, width, round(255 * level, 3))

    return batch.process_files(process, DenoisedImage, files, errors, progress)
