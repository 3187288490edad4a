"""Entry points of `torch.hub`; without the package, the sources of the checkout run on the reference backend."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

dependencies = ["torch", "numpy"]

if importlib.util.find_spec("permutohedral") is None:
    sys.path.append(str(Path(__file__).parent / "src"))

import permutohedral as ph  # noqa: E402

# of images that networks trained on ImageNet take
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FeatureUpsampler(nn.Module):
    """Upsample features of a network along the edges of an image; has no parameters.

    Args:
        normalized: the image has ImageNet's mean and deviation subtracted and divided; False for values in [0, 1].
    """

    def __init__(self, normalized: bool = True) -> None:
        super().__init__()
        self.normalized = normalized

    def forward(self, hr_image: Tensor, lr_features: Tensor, output_size: tuple[int, int] | None = None) -> Tensor:
        """Return features `[batch, channels, *output_size]`; by default of the size of the image.

        Args:
            hr_image: float `[batch, 3, height, width]`.
            lr_features: float `[batch, channels, small height, small width]`.
            output_size: (height, width) of the result.
        """
        if self.normalized:
            hr_image = (
                hr_image * hr_image.new_tensor(DEVIATION)[:, None, None] + hr_image.new_tensor(MEAN)[:, None, None]
            )
        if output_size is not None and tuple(output_size) != tuple(hr_image.shape[-2:]):
            hr_image = nn.functional.interpolate(hr_image, tuple(output_size), mode="bilinear", antialias=True)
        return torch.as_tensor(ph.upsample(lr_features, hr_image, mode="gaussian", num_iterations=0))


def upsampler(normalized: bool = True) -> FeatureUpsampler:
    """Return `FeatureUpsampler`, which is called as `upsampler(hr_image, lr_features, output_size=None)`."""
    return FeatureUpsampler(normalized)
