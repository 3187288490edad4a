"""Random crops of images with noise, made on the training device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.data.bsds500 import GrayImage
from permutohedral.errors import InputError

# keeps the batches of one seed apart from those of the next
_SEEDS = 1_000_000_007


class CropSampler:
    """Draw batches of random crops, flipped and rotated at random, with new noise. Batch i is always the same.

    Args:
        images: to crop.
        crop: height and width of a crop.
        sigma: standard deviation of the noise, for white at 1.
        seed: of everything random.
        device: of the images and of the random numbers.

    >>> sampler = CropSampler([GrayImage("a", torch.rand(20, 30))], crop=8, sigma=0.1, seed=0)
    >>> noisy, clean = sampler.draw(0, batch_size=4)
    >>> noisy.shape
    torch.Size([4, 1, 8, 8])
    """

    def __init__(
        self,
        images: Sequence[GrayImage],
        crop: int,
        sigma: float,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = torch.tensor([image.pixels.shape for image in images])
        if int(sizes.min()) < crop:
            small = images[int(sizes.min(dim=1).values.argmin())]
            raise InputError(
                f"crop must fit every image, got {crop} for {small.name} of {tuple(small.pixels.shape)}; pass less"
            )
        self.crop, self.sigma, self.seed = crop, sigma, seed
        height, width = (int(extent) for extent in sizes.max(dim=0).values)
        pixels = torch.zeros(len(images), height, width)
        for place, image in zip(pixels, images, strict=True):
            place[: image.pixels.shape[0], : image.pixels.shape[1]] = image.pixels
        self.pixels = pixels.to(device)
        self.sizes = sizes.to(device)

    def draw(self, number: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return noisy and clean crops, `[batch_size, 1, crop, crop]` each."""
        device = self.pixels.device
        generator = torch.Generator(device).manual_seed(self.seed * _SEEDS + number)
        share = torch.rand(4, batch_size, generator=generator, device=device)
        image = _choose(share[0], len(self.pixels))
        free = self.sizes[image] - self.crop + 1
        top, left = (_choose(share[1 + axis], free[:, axis])[:, None, None] for axis in (0, 1))
        # the eight flips and rotations of a square
        way = _choose(share[3], 8)[:, None]
        step = torch.arange(self.crop, device=device)[None]
        down = torch.where(way % 2 == 0, step, self.crop - 1 - step)
        across = torch.where(way // 2 % 2 == 0, step, self.crop - 1 - step)
        turned = (way >= 4)[:, :, None]
        row = top + torch.where(turned, down[:, None, :], down[:, :, None])
        column = left + torch.where(turned, across[:, :, None], across[:, None, :])
        clean = self.pixels[image[:, None, None], row, column][:, None]
        noise = torch.randn(clean.shape, generator=generator, device=device)
        return clean + self.sigma * noise, clean


def _choose(share: Tensor, limit: Tensor | int) -> Tensor:
    """Map numbers in [0, 1) to integers from 0 to below `limit`."""
    # the product may round up to the limit
    return (share * limit).long().clamp(max=limit - 1)
