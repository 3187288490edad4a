"""Features of the samples of images and volumes, composed of torch operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def place_samples(
    space: Sequence[int],
    units: Sequence[float | Tensor],
    first: Sequence[int],
    device: torch.device | str | None,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Return the coordinate along each axis in standard deviations, `[*space, 1]`: views, which take no memory.

    Args:
        space: extents of the axes.
        units: standard deviation along each axis.
        first: position of the first sample.
        device, dtype: of the result.
    """
    axes, lines = len(space), []
    for axis, (start, extent, unit) in enumerate(zip(first, space, units, strict=True)):
        line = divide(torch.arange(start, start + extent, device=device, dtype=dtype), unit)
        lines.append(line.reshape(-1, *[1] * (axes - axis)).expand(*space, 1))
    return lines


def divide_channels(features: Tensor, units: Sequence[float] | Tensor) -> Tensor:
    """Divide `features [..., dimension]` by a number for each channel, or by a tensor."""
    if isinstance(units, Tensor):
        return features / units
    if len(set(units)) == 1:
        return divide(features, units[0])
    return features / torch.tensor(units, dtype=features.dtype, device=features.device)


def divide(features: Tensor, unit: float | Tensor) -> Tensor:
    """Divide, rounded to nearest on every device.

    On a GPU torch multiplies with the inverse of a plain number, and its last place may put a point on the other side
    of a face.
    """
    if not isinstance(unit, Tensor):
        unit = features.new_full((), min(unit, torch.finfo(features.dtype).max))
    return features / unit
