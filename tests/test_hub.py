"""Entry points of `torch.hub`, loaded from the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph

ROOT = str(Path(__file__).resolve().parents[1])


def load(**options: Any) -> Any:
    return torch.hub.load(ROOT, "upsampler", source="local", **options)


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, 3, 28, 42, generator=generator), torch.randn(2, 16, 4, 6, generator=generator)


def test_upsampler_is_joint_bilateral_upsampling() -> None:
    image, features = draw()
    expected = ph.upsample(features, image, mode="gaussian", num_iterations=0)
    torch.testing.assert_close(load(normalized=False)(image, features), expected)


def test_upsampler_takes_normalized_images() -> None:
    image, features = draw()
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalized = (image - mean[:, None, None]) / deviation[:, None, None]
    expected = load(normalized=False)(image, features)
    torch.testing.assert_close(load()(normalized, features), expected, rtol=1e-4, atol=1e-4)


def test_upsampler_resizes_the_image_to_the_output_size() -> None:
    image, features = draw()
    upsampler = load(normalized=False)
    assert upsampler(image, features, output_size=(56, 60)).shape == (2, 16, 56, 60)
    torch.testing.assert_close(upsampler(image, features, output_size=(28, 42)), upsampler(image, features))
    constant = upsampler(image, torch.full_like(features, 3.0), output_size=(14, 20))
    torch.testing.assert_close(constant, torch.full((2, 16, 14, 20), 3.0))
