"""What the backends share: plans of the fused functions, dtypes, limits and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.ops.simplices import Simplices

# added to a mass before a division: results stay zero where no point contributes, instead of 0 / 0
SMALLEST_MASS = 1e-20

# tensors, or None, that a fused function was called with or has saved for its derivative
Saved = tuple[Any, ...]
# for each tensor, whether its gradient is needed
Needed = tuple[bool, ...]


def key_limit(dtype: torch.dtype) -> int:
    """Return the largest magnitude of a lattice coordinate for features of `dtype`.

    float32 holds every integer up to 2^24 and not beyond; float64 is limited by the int32 keys, with
    room left for the offsets of any neighborhood.
    """
    return 2**30 if dtype == torch.float64 else 2**24


# the dtype in which values of 16 bits are summed; others are summed in their own
ACCUMULATION = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of `dtype` are summed."""
    return ACCUMULATION.get(dtype, dtype)


def blur_gain(dimension: int) -> float:
    """Return the value of d+1 blur passes of a unit impulse at its center: a = 1 + 2^{-d}.

    The impulse either stays, or returns after a step ahead, or back, along all d+1 axes, since sum_j e_j = 0.
    """
    return 1.0 + 2.0**-dimension


def transpose_weight(weight: Tensor, opposite: Tensor, groups: int) -> Tensor:
    """Return the filter of the adjoint: `[filter_size, in / groups, out]` to `[filter_size, out / groups, in]`."""
    filter_size, inputs, out_channels = weight.shape
    grouped = weight[opposite].reshape(filter_size, inputs, groups, out_channels // groups)
    return grouped.permute(0, 3, 2, 1).flatten(2)


def check_items(batch: Tensor, name: str = "batch") -> None:
    """Raise unless every item of `batch [points]` has a key; on a GPU the host waits for that."""
    if batch.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(batch)).tolist()
    if low < 0 or high >= 2**31:
        raise InputError(f"{name} must hold items from 0 to 2**31 - 1, got {low} to {high}")


def number_of(factor: float | Tensor) -> float:
    """Return the factor of a kernel as a number."""
    return float(factor.detach()) if isinstance(factor, Tensor) else float(factor)


def energies_error() -> InputError:
    """Return the error for energies whose sum is NaN."""
    return InputError("energies hold NaN, or infinities of both signs; repair them: every point would be NaN")


def range_error(features: Tensor, limit: int) -> FeatureRangeError:
    """Return the error for features without a key, which says what is wrong with them."""
    bad = ~torch.isfinite(features)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        return FeatureRangeError(
            f"features must be finite, but {int(bad.any(dim=1).sum())} of {features.shape[0]} points hold NaN or "
            f"infinity, the first at row {row}; remove or repair them (those of images are made of the guide and sigma)"
        )
    return FeatureRangeError(
        f"features reach {float(features.abs().max()):.3g}, whose lattice coordinates exceed {limit} and do not fit "
        f"a key in {features.dtype}; subtract the mean of the features, divide them by a larger bandwidth, or use "
        "float64"
    )


# plans of the fused functions


class FilterTables(NamedTuple):
    """The plan of a learned filter.

    Attributes:
        source, target: the simplices of the points that are splatted, and sliced.
        neighbors: see `find_neighbors`.
        groups: number of groups of channels.
        reverse_neighbors: the table from source to target; None to transpose `neighbors`.
        opposite: int64 `[filter_size]`, the tap at the negative offset of each tap.
        by_density: divide each lattice point by its splatted weight before the convolution.
    """

    source: Simplices
    target: Simplices
    neighbors: Tensor
    groups: int
    reverse_neighbors: Tensor | None
    opposite: Tensor
    by_density: bool


class PairwiseTables(NamedTuple):
    """A kernel of a mean field over `points`.

    It adds to the logits of the marginals Q

        factor * m^-target_power * slice(blur(splat(m^-source_power * Q)) @ costs),

    where m is the mass of each point, slice(blur(splat(1))) + SMALLEST_MASS.

    Attributes:
        vertices, barycentric: the corners of the points, `[points, d + 1]`.
        axis_neighbors: see `blur`.
        source_power, target_power: both 0, both 1/2, or one of them 1 and the other 0.
        costs: `[labels, labels]`; None for the identity.
        factor: a number, or a tensor of one element that is differentiated.
        both_ways: use the mean of `blur` and its reverse, which is symmetric.
    """

    vertices: Tensor
    barycentric: Tensor
    axis_neighbors: Tensor
    source_power: float
    target_power: float
    costs: Tensor | None
    factor: float | Tensor
    both_ways: bool


class FieldPlan(NamedTuple):
    """The plan of a mean field.

    Attributes:
        kernels: over `items * points` points, those of the first item first.
        steps: number of iterations.
        as_logits: return logits of the marginals, which have a derivative; then there is a step and a point. They may
            differ by a constant for all labels of a point.
    """

    kernels: Sequence[PairwiseTables]
    steps: int
    as_logits: bool

    def parameters(self) -> list[float | Tensor]:
        """Return what is differentiated of each kernel: its costs or, without costs, its factor."""
        return [each.factor if each.costs is None else each.costs for each in self.kernels]

    def with_parameters(self, parameters: Sequence[Any]) -> FieldPlan:
        """Return the plan with other costs and factors."""
        kernels = [
            kernel._replace(factor=each) if kernel.costs is None else kernel._replace(costs=each)
            for kernel, each in zip(self.kernels, parameters, strict=True)
        ]
        return self._replace(kernels=kernels)


class ColorGridTables(NamedTuple):
    """The plan of the Gaussian over position and color on a grid (`filters/color_grid.py`).

    Attributes:
        sigma: standard deviations over y and x, in pixels.
        cells: pixels between the nodes over positions, along y and x.
        blur_reach: reach of the blur between these nodes, in its standard deviations.
        directions: `[axes, guide channels]`, from a color to its place along each axis of colors, in nodes.
        origin: `[axes]`, subtracted from that place.
        color_blur: weights of a node itself and of a neighbor along each axis in the blur over colors.
    """

    sigma: tuple[float, float]
    cells: tuple[int, int]
    blur_reach: float
    directions: list[list[float]]
    origin: list[float]
    color_blur: tuple[float, float]
