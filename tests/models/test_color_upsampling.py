"""Color from few pixels: the shipped weights, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from permutohedral.errors import InputError
from permutohedral.models.color_upsampling import ColorUpsampler, load_color_upsampler, save_color_upsamplers


def test_shipped_weights_color_along_gray() -> None:
    """Areas of muted colors in light and shade, as photographs have them."""
    y, x = torch.meshgrid(torch.arange(96), torch.arange(96), indexing="ij")
    areas = ((x - 43) ** 2 + (y - 50) ** 2 < 900).long() + (x + 2 * y > 170).long() * 2
    colors = torch.tensor([[0.5, 0.45, 0.4], [0.3, 0.35, 0.3], [0.6, 0.6, 0.65], [0.4, 0.35, 0.35]])
    image = colors[areas].movedim(-1, 0) * (0.7 + 0.3 * torch.sin(x / 5) * torch.cos(y / 6))
    gray = image.mean(dim=0, keepdim=True)
    with torch.no_grad():
        for factor in (2, 4, 8, 16):
            model = load_color_upsampler(factor)
            found = model(image[:, ::factor, ::factor], gray)
            start = ColorUpsampler(model.filter.sigma_space, model.filter.sigma_range)
            untrained = start(image[:, ::factor, ::factor], gray)
            assert (found - image).square().mean() < 0.7 * (untrained - image).square().mean()


def test_saves_and_loads_weights(tmp_path: Path) -> None:
    model = ColorUpsampler(1.25, 0.5)
    with torch.no_grad():
        model.filter.convolution.weight.uniform_()
    save_color_upsamplers({3: model}, tmp_path / "weights")
    found = load_color_upsampler(3, tmp_path / "weights")
    assert (found.filter.sigma_space, found.filter.sigma_range) == (1.25, 0.5)
    assert torch.equal(found.filter.convolution.weight, model.filter.convolution.weight)
    with pytest.raises(InputError, match="factor must be one of 3, got 2"):
        load_color_upsampler(2, tmp_path / "weights")
