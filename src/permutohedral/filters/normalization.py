"""Normalizations of filters, and the Gaussian on the lattice that measures mass.

Formulas are in docs/develop/theory.md. `filter_normalized` runs the steps of a filter with any of the normalizations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.steps import convolve_lattice, slice_lattice, splat_points
from permutohedral.lattice.checks import lattice_to_rows, splat_density, unfold
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.neighborhood import count_taps, gaussian_weight
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import SMALLEST_MASS, accumulation_dtype, blur_gain

Normalization = Literal["none", "homogeneous", "symmetric", "density", "coverage"]

NORMALIZATIONS: tuple[Normalization, ...] = ("none", "homogeneous", "symmetric", "density", "coverage")

# from lattice values to those at the target lattice points: a learned filter or a Gaussian
Step = Callable[[Backend, Tensor, Lattice], Tensor]


def _convolve_with_gaussian(ops: Backend, lattice_values: Tensor, lattice: Lattice) -> Tensor:
    weight = gaussian_weight(lattice.dimension, lattice.neighborhood_size, lattice_values.dtype, lattice.device)
    with torch.autocast(lattice.device.type, enabled=False):
        return convolve_lattice(ops, lattice_values, weight, lattice)


def check_separable(lattice: Lattice) -> Tensor:
    """Return the neighbors along the axes, or raise if the lattice has none."""
    if lattice.axis_neighbors is None:
        raise InputError("the lattice has no neighbors along its axes; build it with separable=True")
    return lattice.axis_neighbors


def _blur_separably(ops: Backend, lattice_values: Tensor, lattice: Lattice) -> Tensor:
    rows, leading = lattice_to_rows(lattice_values)
    blurred = ops.blur(rows, check_separable(lattice), False)
    return unfold(blurred / blur_gain(lattice.dimension), leading)


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian on the lattice: how it blurs, and the size of the neighborhood whose taps it has."""

    blur: Step
    size: Callable[[Lattice], int]


DENSE = Gaussian(_convolve_with_gaussian, lambda lattice: lattice.neighborhood_size)
SEPARABLE = Gaussian(_blur_separably, lambda lattice: 2)


def filter_normalized(
    ops: Backend,
    values: Tensor,
    lattice: Lattice,
    normalization: Normalization,
    step: Step,
    gaussian: Gaussian,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Splat, `step`, slice, and normalize checked values; `gaussian` measures the mass.

    Mass and density are those of `sample_weight [..., points, 1]`, by default of ones, in the dtype of the features:
    the least of them are zero in float16. The values are weighted already.
    """
    if normalization not in NORMALIZATIONS:
        raise InputError(f"normalization must be one of {', '.join(map(repr, NORMALIZATIONS))}, got {normalization!r}")
    if normalization == "symmetric":
        values = (values * _mass(ops, lattice.between_sources(), gaussian).rsqrt()).to(values.dtype)
    density = None
    if normalization in ("density", "coverage"):
        density = splat_density(ops, lattice) if sample_weight is None else splat_points(ops, sample_weight, lattice)
    output = apply_step(ops, values, lattice, step, density)
    if normalization == "coverage" and density is not None:
        output = (output / _coverage(ops, lattice, gaussian, density)).to(output.dtype)
    if normalization == "homogeneous":
        output = (output / _mass(ops, lattice, gaussian, sample_weight)).to(output.dtype)
    if normalization == "symmetric":
        output = (output * _mass(ops, lattice.between_targets(), gaussian).rsqrt()).to(output.dtype)
    return output


def apply_step(ops: Backend, values: Tensor, lattice: Lattice, step: Step, density: Tensor | None = None) -> Tensor:
    """Splat, divide by the density if it is given, `step`, slice."""
    if density is None:
        return slice_lattice(ops, step(ops, splat_points(ops, values, lattice), lattice), lattice)
    # values of 16 bits are rounded once they are means
    sums = splat_points(ops, values.to(accumulation_dtype(values.dtype)), lattice)
    # the density is zero at halo points, and at vertices that points touch with weight zero
    means = (sums / torch.where(density > 0, density, 1.0)).to(values.dtype)
    return slice_lattice(ops, step(ops, means, lattice), lattice)


def _mass(ops: Backend, lattice: Lattice, gaussian: Gaussian, sample_weight: Tensor | None = None) -> Tensor:
    """Filter the weights, by default ones, with the Gaussian: `[..., target points, 1]`."""
    if sample_weight is not None:
        return apply_step(ops, sample_weight, lattice, gaussian.blur) + SMALLEST_MASS
    ones = lattice.source.barycentric.new_ones(lattice.source.num_points, 1)
    if lattice.batch_size is not None:
        ones = ones.reshape(lattice.batch_size, lattice.points_per_item[0], 1)
    return apply_step(ops, ones, lattice, gaussian.blur) + SMALLEST_MASS


def _coverage(ops: Backend, lattice: Lattice, gaussian: Gaussian, density: Tensor) -> Tensor:
    """Return the share of the Gaussian that lies on occupied lattice points, `[..., target points, 1]`.

    It is at least the share of one tap, so that a single far sample is not amplified to a full signal.
    """
    density = density.detach()
    around = slice_lattice(ops, gaussian.blur(ops, (density > 0).to(density.dtype), lattice), lattice)
    size = gaussian.size(lattice)
    # a tensor: torch.export cannot read numbers
    whole = gaussian_weight(lattice.dimension, size, density.dtype).sum()
    return (around / whole).clamp_min(1 / count_taps(lattice.dimension, size))
