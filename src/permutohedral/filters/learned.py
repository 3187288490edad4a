"""The learned filter: splat, convolve with a weight, slice."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.normalization import DENSE, Normalization, filter_normalized
from permutohedral.filters.steps import convolve
from permutohedral.filters.weighting import check_finite_values, weigh
from permutohedral.lattice.checks import check_points, check_results, lattice_for
from permutohedral.lattice.lattice import Lattice
from permutohedral.ops.composite import filter_learned, to_autocast_dtype
from permutohedral.ops.contract import Declined, FilterTables, accumulation_dtype


def permutohedral_filter(
    values: Tensor,
    features: Tensor | None,
    weight: Tensor,
    target_features: Tensor | None = None,
    *,
    neighborhood_size: int = 1,
    normalization: Normalization = "none",
    lattice: Lattice | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Splat, convolve with `weight` and slice: the permutohedral convolution of the paper.

    Args:
        values: `[points, in_channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`; None if a lattice is given.
        weight: `[filter_size, in_channels / groups, out_channels]`, or `[filter_size]`.
        target_features: where results are wanted; default: at `features`.
        neighborhood_size: s of the filter.
        normalization: "none", "homogeneous" (divide by the Gaussian filter of ones), "symmetric" (by its square
            root on either side), "density" (divide every lattice point by its splatted weight before convolving) or
            "coverage" (the same, and divide by the share of the Gaussian that lies on occupied lattice points).
        lattice: from `build_lattice`, instead of features; ragged batches need one.
        sample_weight: how much each point counts, as in `gaussian_filter`: in the values, and in the mass or density
            that the normalization divides by.

    Returns:
        `[target points, out_channels]`, with the batch axes of `values`.

    >>> import torch, permutohedral as ph
    >>> values, features = torch.rand(100, 3), torch.rand(100, 2) * 9
    >>> ph.permutohedral_filter(values, features, torch.randn(7, 3, 5)).shape
    torch.Size([100, 5])
    """
    if sample_weight is None:
        check_finite_values(values)
    lattice = lattice_for(features, target_features, lattice, neighborhood_size)
    return filter_with_bias(values, lattice, weight, None, normalization, sample_weight)


def filter_with_bias(
    values: Tensor,
    lattice: Lattice,
    weight: Tensor,
    bias: Tensor | None,
    normalization: Normalization,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Run `permutohedral_filter` on a lattice, and add `bias [out_channels]` to the result."""
    device = lattice.device
    # float64 stays float64, as in torch's convolutions
    if torch.is_autocast_enabled(device.type) and lattice.dtype == torch.float32:
        values, weight, bias = to_autocast_dtype(device, values, weight, bias)
        with torch.autocast(device.type, enabled=False):
            return filter_with_bias(values, lattice, weight, bias, normalization, sample_weight)
    if normalization != "none" and _is_float16(values) and _is_float16(weight):
        # sums exceed the range of float16 before they are divided by mass or density, and so do their gradients
        wide = None if bias is None else bias.float()
        return filter_with_bias(values.float(), lattice, weight.float(), wide, normalization, sample_weight).half()
    if sample_weight is not None:
        if normalization == "symmetric":
            raise InputError("sample_weight does not go with the normalization 'symmetric': targets have none")
        check_points(values, lattice)
        weighted = weigh(values, sample_weight)
        check_finite_values(weighted)
        counted = weighted[..., :-1].to(values.dtype)
        return compose(counted, weight, bias, lattice, normalization, weighted[..., -1:])
    return filter_learned(
        (values, weight, bias),
        lambda: _plan(values, weight, bias, lattice, normalization),
        partial(compose, lattice=lattice, normalization=normalization),
        constants=(lattice.source.barycentric, lattice.target.barycentric),
    )


def _plan(
    values: Tensor, weight: Tensor, bias: Tensor | None, lattice: Lattice, normalization: Normalization
) -> tuple[FilterTables] | Declined:
    """Return the plan of the fused filter; arguments that do not fit are left to `compose` to reject."""
    if normalization not in ("none", "density"):
        return Declined(f"it supports the normalizations 'none' and 'density', got {normalization!r}")
    if not isinstance(weight, Tensor):
        return Declined("the weight is not a tensor")
    shape, items = values.shape, lattice.batch_size
    points = (lattice.source.num_points,) if items is None else (items, lattice.points_per_item[0])
    if shape[:-1] != points or weight.dim() != 3:
        return Declined(
            f"it takes values {[*points, 'channels']} and a weight of 3 axes, not items on a shared lattice"
        )
    if weight.dtype != values.dtype or (bias is not None and bias.dtype != values.dtype):
        return Declined("values, weight and bias differ in dtype")
    if accumulation_dtype(values.dtype) != lattice.dtype:
        return Declined("values and features differ in dtype")
    filter_size, in_channels, out_channels = weight.shape
    if not (values.numel() and in_channels and out_channels and lattice.target.num_points):
        return Declined("there are no points or no channels")
    groups, rest = divmod(shape[-1], in_channels)
    if filter_size != lattice.neighbors.shape[0] or rest or out_channels % groups:
        return Declined("the weight does not fit the values and the lattice")
    check_results(lattice, out_channels, values)
    tables = lattice.source, lattice.target, lattice.neighbors, lattice.reverse_neighbors, lattice.opposite
    return (FilterTables(*tables, groups, normalization == "density"),)


def compose(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lattice: Lattice,
    normalization: Normalization,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Compose the filter of operators."""

    def step(lattice_values: Tensor, lattice: Lattice) -> Tensor:
        return convolve(lattice_values, weight, lattice)

    output = filter_normalized(values, lattice, normalization, step, DENSE, sample_weight)
    return output if bias is None else output + bias.to(output.dtype)


def _is_float16(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype == torch.float16
