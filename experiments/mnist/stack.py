"""LeNets that are trained together, one for each first layer and seed.

A first layer is linear in its filter. So it is the filter times what its taps read, which does not depend on weights:
all networks share the lattices of a batch, and each step of a network runs for all of them in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from experiments.mnist.model import CLASSES, MARGIN, SIZE, grid_positions, splat_to_grid
from permutohedral.filters.normalization import Normalization

# convolutions of the interpolated image, and permutohedral convolutions with a normalization; the last three
# LeNets interpolate in another way
FirstLayer = Literal[
    "lenet",
    "lenet_share",
    "pcnn_none",
    "pcnn_density",
    "pcnn_coverage",
    "lenet_sum",
    "lenet_box",
    "lenet_nearest",
]

CHANNELS, SECOND_CHANNELS, HIDDEN = 20, 50, 500
_WINDOW, _SIDE = 1 + 2 * MARGIN, SIZE - 2 * MARGIN
_TAPS, _TARGETS = _WINDOW**2, _SIDE**2
_LATTICE_SIZE, _LATTICE_TAPS = 2, 19


def count_taps(layer: FirstLayer) -> int:
    """Return the weights of a filter of a first layer."""
    return _TAPS if layer.startswith("lenet") else _LATTICE_TAPS


@torch.no_grad()
def read_taps(layers: Sequence[FirstLayer], values: Tensor, positions: Tensor) -> Tensor:
    """Return what the taps of first layers read at the inner 24 x 24 pixels.

    Args:
        layers: with filters of 25 taps, or of 19 and then zeros.
        values: `[batch, points, 1]`.
        positions: `[batch, points, 2]`, (y, x) in pixels.

    Returns:
        `[layers, batch, 576, 25]`.
    """
    taps = values.new_empty(len(layers), len(values), _TARGETS, _TAPS)
    lattice = None
    for layer, own in zip(layers, taps, strict=True):
        if layer.startswith("lenet"):
            own.copy_(_read_windows(layer, values, positions))
            continue
        if lattice is None:
            target = grid_positions(MARGIN, values.device).expand(len(values), -1, -1)
            lattice = ph.build_lattice(positions, target, neighborhood_size=_LATTICE_SIZE)
        single = torch.eye(_LATTICE_TAPS, device=values.device)[:, None]
        normalization = cast(Normalization, layer.removeprefix("pcnn_"))
        own[..., :_LATTICE_TAPS] = ph.permutohedral_filter(values, lattice, single, normalization=normalization)
        own[..., _LATTICE_TAPS:] = 0
    return taps


def _read_windows(layer: FirstLayer, values: Tensor, positions: Tensor) -> Tensor:
    """Return the windows of the interpolated images, `[batch, 576, 25]`."""
    if layer == "lenet_nearest":
        pixels = grid_positions(device=values.device).expand(len(values), -1, -1)
        distances = torch.cdist(pixels, positions, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.argmin(dim=2, keepdim=True)
        return _windows(values.gather(1, nearest))
    total, mass = splat_to_grid(values, positions.round() if layer == "lenet_box" else positions)
    if layer == "lenet_sum":
        return _windows(total)
    windows = _windows(total / torch.where(mass > 0, mass, 1.0))
    if layer == "lenet_share":
        share = _windows((mass > 0).to(mass.dtype)).mean(dim=2, keepdim=True)
        windows = windows / torch.where(share > 0, share, 1.0)
    return windows


def _windows(images: Tensor) -> Tensor:
    windows = images.reshape(-1, SIZE, SIZE).unfold(1, _WINDOW, 1).unfold(2, _WINDOW, 1)
    return windows.reshape(-1, _TARGETS, _TAPS)


class StackedLeNet(nn.Module):
    """Caffe's LeNets behind different first layers. Networks of one seed start with the same weights.

    Weights are drawn as Caffe's "xavier": uniform with variance 1 / inputs. Biases are zero.

    Args:
        layers: the first layer of each network.
        seeds: of the weights of each network.
    """

    second: Tensor
    second_bias: Tensor

    def __init__(self, layers: Sequence[FirstLayer], seeds: Sequence[int]) -> None:
        super().__init__()
        shapes = {
            "first": (CHANNELS, _TAPS),
            "second": (SECOND_CHANNELS, CHANNELS * _TAPS),
            "hidden": (HIDDEN, SECOND_CHANNELS * 16),
            "classes": (CLASSES, HIDDEN),
        }
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for name, shape in shapes.items():
            weight = torch.stack([2 * torch.rand(shape, generator=generator) - 1 for generator in generators])
            for place, layer in enumerate(layers):
                inputs = count_taps(layer) if name == "first" else shape[1]
                weight[place] *= math.sqrt(3 / inputs)
                weight[place, :, inputs:] = 0
            self.register_parameter(name, nn.Parameter(weight))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(len(seeds), shape[0])))

    def forward(self, taps: Tensor) -> Tensor:
        """Return the scores of the classes, `[networks, batch, 10]`.

        Args:
            taps: `[networks, batch, 576, 25]`.
        """
        networks, batch = taps.shape[:2]
        rows = self._apply_units("first", taps.flatten(1, 2))
        # channels are the last axis in memory, for which pooling and convolutions are several times faster on a CPU
        pooled = functional.max_pool2d(rows.reshape(-1, _SIDE, _SIDE, CHANNELS).permute(0, 3, 1, 2), 2)
        weight = self.second.reshape(networks, SECOND_CHANNELS, CHANNELS, _WINDOW, _WINDOW)
        images = [
            functional.conv2d(image, filters.contiguous(memory_format=torch.channels_last), bias)
            for image, filters, bias in zip(pooled.split(batch), weight, self.second_bias, strict=True)
        ]
        pooled = torch.stack([functional.max_pool2d(image, 2).flatten(1) for image in images])
        hidden = functional.relu(self._apply_units("hidden", pooled))
        return self._apply_units("classes", hidden)

    def _apply_units(self, name: str, inputs: Tensor) -> Tensor:
        weight, bias = self.get_parameter(name), self.get_parameter(f"{name}_bias")
        return torch.baddbmm(bias[:, None], inputs, weight.transpose(1, 2))
