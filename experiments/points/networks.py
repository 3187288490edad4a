"""The networks of the comparison by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from torch import nn

import permutohedral as ph
from experiments.pointnet import Head, PointNetSegmenter, PointwiseSegmenter
from experiments.points.grids import GridUNet
from experiments.points.spconv_unet import SpconvUNet
from permutohedral.errors import InputError

NetworkName = Literal["lattice", "voxel", "voxel_learned", "trilinear", "spconv", "pointnet", "pointwise"]


def build_network(
    name: NetworkName,
    in_channels: int,
    num_classes: int,
    dimension: int,
    cell: float,
    widths: Sequence[int],
    head: Head,
    options: Mapping[str, Any],
) -> nn.Module:
    """Build an untrained network of the comparison; it takes values, positions and the item of each point.

    >>> import torch
    >>> network = build_network("trilinear", 1, 3, 2, 0.5, (8, 16), "clouds", {})
    >>> network(torch.rand(50, 1), torch.rand(50, 2) * 9, torch.arange(50) // 25).shape
    torch.Size([2, 3])
    """
    if name not in get_args(NetworkName):
        raise InputError(f"network must be one of {', '.join(get_args(NetworkName))}, got {name!r}")
    sizes = in_channels, num_classes
    try:
        if name == "pointnet":
            cells = [cell * 2 ** (level + 1) for level in range(len(widths) - 1)]
            return PointNetSegmenter(*sizes, widths, cells, dimension=dimension, head=head, **options)
        if name == "pointwise":
            return PointwiseSegmenter(*sizes, widths, head, 10 * cell, dimension, **options)
        if name == "lattice":
            return ph.nn.LatticeUNet(*sizes, dimension, step=cell, widths=widths, head=head, **options)
        if name == "spconv":
            return SpconvUNet(*sizes, dimension, cell=cell, widths=widths, head=head, **options)
        chosen = {"linear": name == "trilinear", "learned": name == "voxel_learned"} | dict(options)
        return GridUNet(*sizes, dimension, cell=cell, widths=widths, head=head, **chosen)
    except TypeError as error:
        raise InputError(f"options do not fit the network {name}: {error}") from error
