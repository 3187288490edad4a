"""Drop-in for permutohedral_encoding (Rosu & Behnke, 2023): the same names, arguments, weights and state.

>>> import torch, permutohedral.compat.permutohedral_encoding as permuto_enc
>>> encoding = permuto_enc.PermutoEncoding(3, 2**10, 4, 2, [1.0, 0.5, 0.25, 0.125])
>>> encoding(torch.rand(100, 3)).shape
torch.Size([100, 8])
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from permutohedral.nn.encoding import FixedBuffers, Numbers, coarse_to_fine, encode_positions, level_tables, read_levels
from permutohedral.ops.contract import accumulation_dtype

__all__ = ["Coarse2Fine", "PermutoEncoding", "map_range_val"]


class PermutoEncoding(FixedBuffers):
    """Encode positions as upstream does, on any device.

    Differences: levels may lack a shift, the concatenated points have a gradient, the shifts are a buffer and not a
    parameter, and a shift is split so that fine levels stay precise. New code uses `ph.nn.PermutohedralEncoding`.

    Args:
        pos_dim: dimension of the positions.
        capacity: rows of the table of each level.
        nr_levels: number of levels.
        nr_feat_per_level: channels of the table.
        scale_per_level: `[nr_levels]`, sigma of each level.
        appply_random_shift_per_level: draw a shift for each level; spelled as upstream.
        concat_points: append the positions times `concat_points_scaling`, padded to whole levels.
        concat_points_scaling: see `concat_points`.
        apply_random_shift_per_level: the spelling of forks.
        dtype: of the table.
        init_scale: standard deviation of the table.
    """

    lattice_values: Tensor
    random_shift_per_level: Tensor
    transforms: Tensor
    strides: Tensor

    def __init__(
        self,
        pos_dim: int,
        capacity: int,
        nr_levels: int,
        nr_feat_per_level: int,
        scale_per_level: Numbers,
        appply_random_shift_per_level: bool = True,
        concat_points: bool = False,
        concat_points_scaling: float = 1.0,
        *,
        apply_random_shift_per_level: bool | None = None,
        dtype: torch.dtype | None = None,
        init_scale: float = 1e-5,
    ) -> None:
        super().__init__()
        self.pos_dim, self.capacity, self.nr_levels = pos_dim, capacity, nr_levels
        self.nr_feat_per_level, self.scale_per_level = nr_feat_per_level, scale_per_level
        self.concat_points, self.concat_points_scaling = concat_points, concat_points_scaling
        values = init_scale * torch.randn(nr_levels, capacity, nr_feat_per_level, dtype=dtype)
        self.lattice_values = nn.Parameter(values)
        if apply_random_shift_per_level is None:
            apply_random_shift_per_level = appply_random_shift_per_level
        shifts = torch.zeros(nr_levels, pos_dim, dtype=accumulation_dtype(values.dtype), device=values.device)
        drawn = 10 * torch.randn_like(shifts) if apply_random_shift_per_level else shifts
        self.register_buffer("random_shift_per_level", drawn)
        self._sigmas = read_levels("scale_per_level", scale_per_level, (nr_levels, pos_dim))
        self._place_levels()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._place_levels()

    def _place_levels(self) -> None:
        """Compute the tables of the levels from their shifts."""
        shifts = self.random_shift_per_level
        tables = level_tables(self._sigmas, shifts.double().cpu(), self.capacity, None)
        self.register_buffer("transforms", tables[0].to(shifts), persistent=False)
        self.register_buffer("strides", tables[1].to(shifts.device), persistent=False)

    def forward(self, positions: Tensor, anneal_window: Tensor | None = None) -> Tensor:
        """Encode `positions [points, pos_dim]` as `[points, output_dims()]`."""
        features = encode_positions(positions, self.lattice_values, self.transforms, self.strides, anneal_window)
        if not self.concat_points:
            return features
        scaled = (positions * self.concat_points_scaling).to(features.dtype)
        joined = torch.cat([features, scaled], dim=-1)
        return pad(joined, (0, self.output_dims() - joined.shape[-1]))

    def output_dims(self) -> int:
        """Return the number of channels of the result."""
        extra = math.ceil(self.pos_dim / self.nr_feat_per_level) if self.concat_points else 0
        return self.nr_feat_per_level * (self.nr_levels + extra)


class Coarse2Fine(nn.Module):
    """Return the window that shows the coarse levels first, as a function of the progress t from 0 to 1.

    >>> import permutohedral.compat.permutohedral_encoding as permuto_enc
    >>> permuto_enc.Coarse2Fine(4)(0.625).tolist()
    [1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, nr_values: int) -> None:
        super().__init__()
        self.nr_values, self.last_t = nr_values, 0.0

    def forward(self, t: float) -> Tensor:
        """Return `[nr_values]`."""
        self.last_t = t
        return coarse_to_fine(self.nr_values, t, torch.empty(0))

    def get_last_t(self) -> float:
        """Return the progress of the last call."""
        return self.last_t


def map_range_val(
    input_val: float, input_start: float, input_end: float, output_start: float, output_end: float
) -> float:
    """Map a number linearly from one range to another, and clamp it to the ends.

    >>> import permutohedral.compat.permutohedral_encoding as permuto_enc
    >>> permuto_enc.map_range_val(30, 0, 40, 0.2, 1.0), permuto_enc.map_range_val(50, 0, 40, 0.2, 1.0)
    (0.8, 1.0)
    """
    share = (min(max(input_val, input_start), input_end) - input_start) / (input_end - input_start)
    return output_start + share * (output_end - output_start)
