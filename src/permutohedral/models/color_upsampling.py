"""Learned upsampling of colors to the size of a gray image, with shipped weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.guided.grids import Grids
from permutohedral.nn import BilateralUpsample2d


class ColorUpsampler(nn.Module):
    """Color a gray image from the colors of few pixels (Jampani, Kiefel and Gehler, 2016).

    The filter runs over position and gray (d = 3), and mixes the colors and the gray of the colored pixels. Without
    training it is the Gaussian.

    Args:
        sigma_space: bandwidth in distances between colored pixels.
        sigma_range: bandwidth in gray; white is 1.
        neighborhood_size: s of the filter.

    Shape:
        coarse `[..., 3, h, w]`, the pixels at floor(i N / n), such as `image[::factor, ::factor]`; gray
        `[..., 1, height, width]`, the mean of red, green and blue. Both may have one batch axis.

    >>> image = torch.rand(3, 16, 24)
    >>> ColorUpsampler()(image[:, ::8, ::8], image.mean(dim=0, keepdim=True)).shape
    torch.Size([3, 16, 24])
    """

    def __init__(self, sigma_space: float = 1.5, sigma_range: float = 0.04, neighborhood_size: int = 2) -> None:
        super().__init__()
        self.neighborhood_size = neighborhood_size
        self.filter = BilateralUpsample2d(
            4, 1, neighborhood_size, mix=True, sigma_space=sigma_space, sigma_range=sigma_range, sampling="point"
        )

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            "sigma_space": self.filter.sigma_space,
            "sigma_range": self.filter.sigma_range,
            "neighborhood_size": self.neighborhood_size,
        }

    def forward(self, coarse: Tensor, gray: Tensor) -> Tensor:
        """Return the color image `[..., 3, height, width]`."""
        height, width = gray.shape[-2:]
        kept = Grids((coarse.shape[-2], coarse.shape[-1]), (height, width), "point").observe(gray)
        mixed: Tensor = self.filter(torch.cat([coarse, kept], dim=-3), gray)
        return mixed[..., :3, :, :]


def load_color_upsampler(factor: int, path: Path | None = None) -> ColorUpsampler:
    """Load the upsampler that was trained for a factor of 2, 4, 8 or 16.

    Raises:
        InputError: there are no weights for this factor.

    >>> load_color_upsampler(8).filter.sampling
    'point'
    """
    from safetensors import safe_open

    with safe_open(path or _shipped_file(), "pt") as file:
        options = json.loads(file.metadata()["factors"])
        if str(factor) not in options:
            raise InputError(f"factor must be one of {', '.join(options)}, got {factor}")
        model = ColorUpsampler(**options[str(factor)])
        model.load_state_dict({name: file.get_tensor(f"{factor}/{name}") for name in model.state_dict()})
    return model.eval()


def save_color_upsamplers(models: Mapping[int, ColorUpsampler], path: Path) -> None:
    """Write models by factor to one file of weights for `load_color_upsampler`."""
    from safetensors.torch import save_file

    tensors, options = {}, {}
    for factor, model in models.items():
        options[str(factor)] = model.settings()
        for name, tensor in model.state_dict().items():
            tensors[f"{factor}/{name}"] = tensor.detach().cpu().contiguous()
    save_file(tensors, path, metadata={"factors": json.dumps(options)})


def _shipped_file() -> Path:
    return Path(__file__).resolve().parent / "weights" / "upsampling.safetensors"
