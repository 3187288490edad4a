"""Encodings of positions in [0, 1]^d with one interface, and the network behind them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import permutohedral as ph
from permutohedral.nn.encoding import coarse_to_fine

# factors of the axes in the hash of Instant-NGP
_PRIMES = (1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437, 2165219737)


def level_resolutions(levels: int, coarsest: float, finest: float, axes: Tensor) -> Tensor:
    """Return lattice points per unit length, float64 `[levels, d]`, equally spaced in the logarithm.

    Args:
        levels: number of levels.
        coarsest: resolution of the first level.
        finest: resolution of the last level.
        axes: `[d]`, factors of the resolution of each axis.
    """
    steps = torch.linspace(math.log(coarsest), math.log(finest), levels, dtype=torch.float64).exp()
    return (steps[:, None] * axes.double()).clamp_min(1.0)


def permutohedral_encoding(resolutions: Tensor, features: int, table_size: int) -> ph.nn.PermutohedralEncoding:
    """Return our encoding, with as many lattice points per volume as a grid of these resolutions has."""
    levels, d = resolutions.shape
    sigmas = 1 / (resolutions * (d + 1) ** (1 - 1 / (2 * d)))
    return ph.nn.PermutohedralEncoding(d, levels, features, table_size, sigmas=sigmas)


class HashGrid(nn.Module):
    """Interpolate tables of features multilinearly on grids of several levels (Instant-NGP, 2022).

    Levels whose grid points fit the table are numbered, the others hashed. All levels and corners are one gather.

    Args:
        resolutions: cells per unit length, `[levels, d]`, increasing.
        features: channels of the table.
        table_size: rows of the table of each level, a power of 2.
    """

    resolutions: Tensor
    factors: Tensor

    def __init__(self, resolutions: Tensor, features: int, table_size: int) -> None:
        super().__init__()
        levels, d = resolutions.shape
        # positions are moved by half a cell, so that the levels do not share their grid points
        points = resolutions.ceil().long() + 2
        self.numbered = int((points.double().prod(dim=1) <= table_size).sum())
        factors = torch.tensor(_PRIMES[:d]).repeat(levels, 1)
        factors[: self.numbered, 1:] = points[: self.numbered, :-1].cumprod(dim=1)
        self.register_buffer("resolutions", resolutions.float())
        # products wrap around in 32 bits
        self.register_buffer("factors", factors.int())
        self.table = nn.Parameter(torch.empty(levels, table_size, features).uniform_(-1e-4, 1e-4))

    def forward(self, positions: Tensor) -> Tensor:
        """Encode `positions [points, d]` as `[points, levels * features]`."""
        # [d, levels, 1, points]: points are the last axis of all steps, which halves the time on a CPU
        scaled = (positions.T[:, None] * self.resolutions.T[..., None] + 0.5)[:, :, None]
        base = scaled.detach().floor()
        factors = self.factors.T[:, :, None, None]
        lower = base.int() * factors
        weights = torch.ones_like(scaled[0])
        rows = torch.zeros_like(lower[0])
        numbers, hashes = rows[: self.numbered], rows[self.numbered :]
        for fraction, *ends in zip(scaled - base, lower, lower + factors, strict=True):
            upper = weights * fraction
            weights = torch.cat([weights - upper, upper], dim=1)
            numbers = torch.cat([numbers + end[: self.numbered] for end in ends], dim=1)
            hashes = torch.cat([hashes ^ end[self.numbered :] for end in ends], dim=1)
        levels, table_size, _ = self.table.shape
        first = torch.arange(levels, device=rows.device)[:, None, None] * table_size
        # [levels, corners, points]
        rows = torch.cat([numbers, hashes & (table_size - 1)]).long() + first
        columns = self.table.flatten(0, 1).unbind(dim=1)
        corners = [column.index_select(0, rows.flatten()).view(rows.shape) for column in columns]
        return torch.stack([(weights * values).sum(dim=1) for values in corners], dim=1).flatten(0, 1).T


class FrequencyEncoding(nn.Module):
    """Encode positions by sines and cosines of octaves up to the given resolutions (NeRF, 2020)."""

    frequencies: Tensor

    def __init__(self, resolutions: Tensor) -> None:
        super().__init__()
        octaves = torch.arange(round(float(resolutions.max().log2())))
        self.register_buffer("frequencies", math.pi * 2.0**octaves)

    def forward(self, positions: Tensor) -> Tensor:
        """Encode `positions [points, d]`."""
        angles = (positions[..., None] * self.frequencies).flatten(1)
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class Field(nn.Module):
    """Map positions `[points, d]` to `[points, channels]`: an encoding, the positions themselves, and an MLP.

    Args:
        encoding: of the positions.
        d: of the positions.
        channels: of the result.
        hidden: channels of the two hidden layers.
        smooth: for signed distances, with softplus in place of ReLU. It starts as the distance of a sphere.
    """

    window: Tensor | None

    def __init__(self, encoding: nn.Module, d: int, channels: int, hidden: int, smooth: bool) -> None:
        super().__init__()
        self.encoding, self.d, self.smooth = encoding, d, smooth
        # not in checkpoints: each step sets it
        self.register_buffer("window", None, persistent=False)
        with torch.no_grad():
            width = encoding(torch.zeros(1, d)).shape[1] + d
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [nn.Linear(width, hidden), nn.Softplus(beta=100) if smooth else nn.ReLU()]
            width = hidden
        self.network = nn.Sequential(*parts, nn.Linear(width, channels))

    def forward(self, positions: Tensor) -> Tensor:
        """Evaluate the field."""
        features, centered = self.encoding(positions), 2 * positions - 1
        if self.window is not None:
            features = features * self.window
        values: Tensor = self.network(torch.cat([features, centered], dim=1))
        return values + centered.norm(dim=1, keepdim=True) / 2 - 0.4 if self.smooth else values

    def show_levels(self, progress: float) -> None:
        """Show coarse levels first, as `PermutohedralEncoding.coarse_to_fine`, from progress 0 (none) to 1 (all)."""
        if isinstance(self.encoding, FrequencyEncoding):
            window = coarse_to_fine(len(self.encoding.frequencies), progress, self.encoding.frequencies)
            # sines and cosines of all octaves of an axis are next to each other
            window = window.repeat(2 * self.d)
        else:
            table = self.encoding.get_parameter("table")
            window = coarse_to_fine(len(table), progress, table).repeat_interleave(table.shape[2])
        # in place for CUDA graphs
        self.window = window if self.window is None else self.window.copy_(window)
