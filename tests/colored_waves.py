"""Images of waves, and exact bilateral sums over their pixels."""

from __future__ import annotations

import numpy as np
import torch
from support import DEVICE, to_numpy, to_tensor
from torch import Tensor

SIGMA = (4.0, 3.0)


def picture(height: int, width: int, channels: int = 3, items: int = 1) -> Tensor:
    """`[items, channels, height, width]`: waves, in standard deviations of the color."""
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 4, width), indexing="ij")
    waves = [2 * torch.sin(x * (c + 1) + i) * y.cos() for i in range(items) for c in range(channels)]
    return torch.stack(waves).view(items, channels, height, width).to(DEVICE)


def by_definition(values: Tensor, guide: Tensor, sigma: tuple[float, float] = SIGMA) -> Tensor:
    """Sums over all pairs of pixels."""
    height, width = values.shape[-2:]
    y, x = np.mgrid[:height, :width]
    positions = np.stack([y.ravel() / sigma[0], x.ravel() / sigma[1]], axis=1)
    sums = np.empty(values.shape)
    for item, (value, color) in enumerate(zip(to_numpy(values), to_numpy(guide), strict=True)):
        features = np.concatenate([positions, color.reshape(color.shape[0], -1).T], axis=1)
        kernel = np.exp(-0.5 * ((features[:, None] - features) ** 2).sum(-1))
        sums[item] = (kernel @ value.reshape(value.shape[0], -1).T).T.reshape(value.shape)
    return to_tensor(sums)


def with_mass(guide: Tensor) -> Tensor:
    return torch.cat([guide, torch.ones_like(guide[:, :1])], dim=1)
