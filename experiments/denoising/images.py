"""Images of the denoising experiments, and the PSNR of a denoiser on them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from experiments.data.bsds500 import GrayImage, add_noise, load_images
from experiments.quality import psnr

Split = Literal["train", "validation", "test"]


# rows that run one after the other use the same images
@lru_cache(maxsize=3)
def read_images(split: Split, folder: Path | None, limit: int | None, size: int | None) -> tuple[GrayImage, ...]:
    """Read images of a split, evenly spread; with `size`, the central square of each."""
    images = load_images("val" if split == "validation" else split, folder, limit)
    return tuple(images if size is None else [center(image, size) for image in images])


def center(image: GrayImage, size: int) -> GrayImage:
    """Return the central square of `size` pixels."""
    top, left = (max(0, (extent - size) // 2) for extent in image.pixels.shape)
    return GrayImage(image.name, image.pixels[top : top + size, left : left + size])


@torch.no_grad()
def evaluate(model: nn.Module, images: Iterable[GrayImage], sigma: float, seed: int, device: torch.device) -> float:
    """Return the mean over the images of the PSNR in dB."""
    scores = []
    for image in images:
        noisy = add_noise(image, sigma, seed).to(device)
        scores.append(psnr(model(noisy[None, None])[0, 0], image.pixels.to(device)))
    return sum(scores) / len(scores)
