"""Noisy images of the experiment, and their features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from experiments.data.bsds500 import GrayImage, add_noise, load_colors

Space = Literal["gray", "gray_blurred", "color", "color_gradient"]
Split = Literal["train", "validation", "test"]

# standard deviation in pixels of the blur in the additional guides
_BLUR = 2.0


@dataclass(frozen=True)
class NoisyImage:
    """A noisy image and its guides.

    Attributes:
        name: such as "test/100007".
        clean: pixels without noise, `[points, channels]`.
        noisy: with noise, `[points, channels]`.
        guide: noisy image without scale, and the additional guide if there is one, `[points, guides]`.
        extents: height and width.
    """

    name: str
    clean: Tensor
    noisy: Tensor
    guide: Tensor
    extents: tuple[int, int]

    def features(self, sigma_space: float, sigma_color: float, sigma_guide: float | None = None) -> Tensor:
        """Return positions and guides divided by their scales, `[points, d]`."""
        channels = self.noisy.shape[1]
        scales = [sigma_color] * channels + [sigma_guide] * (self.guide.shape[1] - channels)
        return ph.features.join(
            ph.features.positions(self.extents, sigma_space), self.guide / torch.tensor(scales, dtype=self.guide.dtype)
        )


# rows that run one after the other use the same images
@lru_cache(maxsize=3)
def read_colors(split: Split, folder: Path | None, limit: int | None) -> dict[str, Tensor]:
    """Read color images of a split, evenly spread over their names."""
    return load_colors("val" if split == "validation" else split, folder, limit)


def add_guides(name: str, pixels: Tensor, space: Space, size: int | None, sigma: float, seed: int) -> NoisyImage:
    """Add noise to the central square of `size` pixels, or the whole of `pixels [3, height, width]`.

    The additional guide of "gray_blurred" is the noisy image blurred with a Gaussian. That of "color_gradient" is the
    length of the gradient of the noisy gray image, blurred in the same way.
    """
    if size is not None:
        top, left = (max(0, (extent - size) // 2) for extent in pixels.shape[-2:])
        pixels = pixels[:, top : top + size, left : left + size]
    clean = pixels if space.startswith("color") else pixels.mean(dim=0, keepdim=True)
    noisy = add_noise(GrayImage(name, clean), sigma, seed)
    guides = [noisy]
    blurred = _blur(noisy.mean(dim=0, keepdim=True))
    if space == "gray_blurred":
        guides.append(blurred)
    elif space == "color_gradient":
        down, across = torch.gradient(blurred[0])
        guides.append(torch.hypot(down, across)[None])
    flat_clean, flat_noisy, guide = (each.flatten(1).T.contiguous() for each in (clean, noisy, torch.cat(guides)))
    return NoisyImage(name, flat_clean, flat_noisy, guide, (clean.shape[1], clean.shape[2]))


def _blur(image: Tensor) -> Tensor:
    """Blur `image [1, height, width]`."""
    reach = round(3 * _BLUR)
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / _BLUR) ** 2)
    taps /= taps.sum()
    padded = functional.pad(image[None], (reach,) * 4, mode="replicate")
    columns = functional.conv2d(padded, taps[None, None, :, None])
    return functional.conv2d(columns, taps[None, None, None, :])[0]
