"""Layers between points and lattice points that learn: how a lattice point sums up its points, and how they read it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.lattice.checks import check_values, lattice_to_rows, rows_to_points
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import refuse_scripting
from permutohedral.ops import operators
from permutohedral.ops.operators import splat_largest


class PointSplat(nn.Module):
    """Apply a small network to each point and corner, then max-splat its results (Rosu et al., 2020).

    Where `splat` sums, this describes how the points lie around a lattice point: the network reads, besides the values,
    where a point is relative to the mean of the points of that lattice point, and with which weight it belongs to it.

    Args:
        in_channels: of the values.
        out_channels: of the lattice values.
        dimension: d of the features.
        hidden_channels: of the network's hidden layer; default: out_channels.

    >>> import torch, permutohedral as ph
    >>> features = torch.rand(100, 3) * 9
    >>> layer, lattice = ph.nn.PointSplat(4, 16, dimension=3), ph.build_lattice(features)
    >>> layer(torch.rand(100, 4), features, lattice).shape == (lattice.num_lattice_points, 16)
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dimension: int,
        hidden_channels: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = out_channels if hidden_channels is None else hidden_channels
        self.in_channels, self.dimension = in_channels, dimension
        self.network = nn.Sequential(
            nn.Linear(in_channels + dimension + 1, hidden, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Linear(hidden, out_channels, device=device, dtype=dtype),
        )

    def forward(self, values: Tensor, features: Tensor, lattice: Lattice) -> Tensor:
        """Points to lattice points.

        Args:
            values: `[points, in_channels]`.
            features: `[points, d]`, those the lattice was built from.
            lattice: from `build_lattice`, of flat points.

        Returns:
            `[lattice_points, out_channels]`.
        """
        source = lattice.source
        check_values(values, lattice, "values")
        if lattice.batch_size is not None or values.shape != (source.num_points, self.in_channels):
            raise InputError(
                f"values must be [{source.num_points}, {self.in_channels}] on a lattice of flat points (ragged batches "
                f"name their items by batch=), got {tuple(values.shape)}"
            )
        if features.shape != (source.num_points, self.dimension):
            raise InputError(
                f"features must be the [{source.num_points}, {self.dimension}] that the lattice was built from, got "
                f"{tuple(features.shape)}"
            )
        points, corners = source.vertices.shape
        vertices = source.vertices.flatten().long()
        rows = torch.arange(points, device=values.device).repeat_interleave(corners)
        inputs = torch.cat([features, features.new_ones(points, 1)], dim=1)
        sums = operators.splat(inputs, source.vertices, source.barycentric, source.num_lattice_points)
        # a corner of weight zero may have no other points
        mean = sums[:, :-1] / sums[:, -1:].clamp_min(torch.finfo(sums.dtype).tiny)
        relative = features.index_select(0, rows) - mean.index_select(0, vertices)
        weight = source.barycentric.reshape(-1, 1)
        given = values.index_select(0, rows)
        described = self.network(torch.cat([given, relative.to(given.dtype), weight.to(given.dtype)], dim=1))
        return splat_largest(described, source.vertices.reshape(-1, 1), source.num_lattice_points)[0]


class DeformSlice(nn.Module):
    """Slice with learned weights, which depend on the values around each point (Rosu et al., 2020).

    To the barycentric weights of a point's corners are added offsets that a linear layer computes from the values at
    the corners. They start at zero: as `slice`.

    Args:
        channels: of the lattice values.
        dimension: d of the features.
        summary_channels: to how many channels the values of a corner are reduced for the offsets.

    >>> import torch, permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> fine = ph.splat(torch.rand(100, 16), lattice)
    >>> bool(torch.allclose(ph.nn.DeformSlice(16, dimension=3)(fine, lattice), ph.slice(fine, lattice)))
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        channels: int,
        dimension: int,
        summary_channels: int = 8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.summarize = nn.Linear(channels, summary_channels, device=device, dtype=dtype)
        self.offset = nn.Linear(2 * summary_channels, 1, device=device, dtype=dtype)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, lattice_values: Tensor, lattice: Lattice) -> Tensor:
        """`[lattice_points, channels]` to `[target points, channels]`, or `[batch, target points, channels]`."""
        target = lattice.target
        _, leading = lattice_to_rows(lattice_values, lattice, target)
        if leading or lattice_values.shape[1] != self.summarize.in_features:
            raise InputError(
                f"lattice values must be [lattice_points, {self.summarize.in_features}], got "
                f"{tuple(lattice_values.shape)}"
            )
        points, corners = target.vertices.shape
        summary = self.summarize(lattice_values).relu()
        at_corners = summary.index_select(0, target.vertices.flatten()).view(points, corners, summary.shape[1])
        # each corner sees itself and the largest of all
        largest = at_corners.amax(dim=1, keepdim=True).expand_as(at_corners)
        offsets = cast(Tensor, self.offset(torch.cat([at_corners, largest], dim=2)))[..., 0]
        sliced = operators.slice(lattice_values, target.vertices, target.barycentric + offsets)
        return rows_to_points(sliced, lattice, ())
