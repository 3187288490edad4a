"""Random crops."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE

from experiments.data.bsds500 import GrayImage
from experiments.denoising.crops import CropSampler
from permutohedral.errors import InputError

CROP, SIGMA = 6, 0.1


def numbered_image(name: str, height: int, width: int, first: int) -> GrayImage:
    """Every pixel of every image is another number."""
    return GrayImage(name, torch.arange(first, first + height * width).float().reshape(height, width))


IMAGES = [numbered_image("tall", 11, 7, 0), numbered_image("wide", 7, 12, 1000)]


def sampler(sigma: float = SIGMA, seed: int = 0) -> CropSampler:
    return CropSampler(IMAGES, CROP, sigma, seed, DEVICE)


def test_a_batch_is_the_same_whenever_it_is_drawn() -> None:
    first = sampler()
    first.draw(0, 4)
    for again, once in zip(first.draw(5, 4), sampler().draw(5, 4), strict=True):
        assert torch.equal(again, once)
    assert not torch.equal(sampler().draw(5, 4)[0], sampler().draw(6, 4)[0])
    assert not torch.equal(sampler().draw(5, 4)[0], sampler(seed=1).draw(5, 4)[0])


def test_crops_are_squares_of_the_images_in_all_eight_ways_and_places() -> None:
    _, clean = sampler(sigma=0.0).draw(0, 2000)
    expected = {}
    for image in IMAGES:
        for top in range(image.pixels.shape[0] - CROP + 1):
            for left in range(image.pixels.shape[1] - CROP + 1):
                square = image.pixels[top : top + CROP, left : left + CROP]
                for turns in range(4):
                    for way in (square.rot90(turns), square.rot90(turns).flip(0)):
                        expected[tuple(way.flatten().tolist())] = 0
    for crop in clean.cpu():
        expected[tuple(crop.flatten().tolist())] += 1
    # 26 places, eight ways each, drawn about ten times
    assert len(expected) == 26 * 8
    assert min(expected.values()) > 0


def test_the_noise_is_fresh_and_of_the_right_strength() -> None:
    images = [GrayImage("flat", torch.full((9, 9), 0.5))]
    noisy, clean = CropSampler(images, CROP, SIGMA, 0, DEVICE).draw(0, 500)
    noise = noisy - clean
    assert abs(float(noise.std()) - SIGMA) < 0.003
    assert abs(float(noise.mean())) < 0.003
    assert len({round(float(value), 6) for value in noise[:, 0, 0, 0]}) == 500


def test_rejects_crops_larger_than_an_image() -> None:
    with pytest.raises(InputError, match="crop must fit every image, got 8 for tall"):
        CropSampler(IMAGES, 8, SIGMA, 0)
