"""The voxel U-Net of users of spconv: its submanifold, strided and inverse convolutions.

Written against spconv 2.3.8 (`pip install spconv-cu126`), which is imported when a network is built.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from experiments.points.grids import GridUNet, Links, pack, unpack
from permutohedral.errors import InputError


def _spconv() -> Any:
    try:
        return importlib.import_module("spconv.pytorch")
    except ImportError as error:
        raise InputError(f"network 'spconv' needs spconv 2.3.8: {error}; leave its rows out") from error


class _Conv(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, dimension: int, level: int) -> None:
        super().__init__()
        self.convolution = _spconv().SubMConv3d(in_channels, out_channels, 3, padding=1, indice_key=f"same{level}")

    def forward(self, rows: Tensor, level: Any) -> Any:
        return self.convolution(level.sites.replace_feature(rows)).features


class _Stride(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, dimension: int, level: int, down: bool, learned: bool
    ) -> None:
        super().__init__()
        key, self.down = f"between{level}", down
        if down:
            self.convolution = _spconv().SparseConv3d(in_channels, out_channels, 2, stride=2, indice_key=key)
        else:
            self.convolution = _spconv().SparseInverseConv3d(in_channels, out_channels, 2, indice_key=key)

    def forward(self, rows: Tensor, grid: Any, level: int) -> Any:
        if not self.down:
            return self.convolution(grid.levels[level + 1].sites.replace_feature(rows)).features
        grid.levels.append(_level(self.convolution(grid.levels[level].sites.replace_feature(rows))))
        return grid.levels[-1].sites.features


def _level(sites: Any) -> Any:
    return SimpleNamespace(sites=sites, item=sites.indices[:, 0])


class SpconvUNet(GridUNet):
    """`GridUNet` with learned filters between levels and batch normalization, computed by spconv on a GPU.

    Raises:
        InputError: spconv cannot be imported.
    """

    conv, stride = _Conv, _Stride

    def __init__(self, *arguments: Any, **options: Any) -> None:
        chosen: dict[str, Any] = {"learned": True, "norm": "batch"} | options
        super().__init__(*arguments, **chosen)

    def build(self, positions: Tensor, batch: Tensor) -> Any:
        """Return the sites of the finest level; the others are appended by the network."""
        base, deepest = positions.floor(), len(self.down_blocks)
        places = base.long()
        # corner and size are multiples of the coarsest voxel: pairs do not depend on the batch, and spconv keeps all
        places = places - (places.amin(dim=0) >> deepest << deepest)
        points = Links(pack(places, batch.long())[:, None])
        voxels, item = unpack(points.keys, 3)
        size = ((voxels.amax(dim=0) >> deepest) + 1 << deepest).tolist()
        indices = torch.cat([item[:, None], voxels], dim=1).int()
        sites = _spconv().SparseConvTensor(positions.new_zeros(len(item), 1), indices, size, int(item[-1]) + 1)
        return SimpleNamespace(points=points, offsets=positions - base - 0.5, levels=[_level(sites)])
