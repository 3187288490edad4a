"""The learned filter: splat, convolve with a weight, slice."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.normalization import DENSE, Normalization, filter_normalized
from permutohedral.filters.steps import convolve_lattice
from permutohedral.filters.weighting import check_finite_values, weigh
from permutohedral.lattice.checks import (
    check_points,
    check_results,
    lattice_for,
    points_to_rows,
    rows_to_points,
    to_autocast_dtype,
)
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import check_tensor
from permutohedral.ops.backend import Backend, report_declined
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import FilterTables


def permutohedral_filter(
    values: Tensor,
    features: Tensor | Lattice,
    weight: Tensor,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    neighborhood_size: int = 1,
    normalization: Normalization = "none",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Splat, convolve with `weight` and slice: the permutohedral convolution of the paper.

    Args:
        values: `[points, in_channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`; or a `Lattice` built from them with `neighborhood_size`.
        weight: `[filter_size, in_channels / groups, out_channels]`, or `[filter_size]`.
        target_features: where results are wanted; default: at `features`.
        batch: int `[points]`, the item of each point of a ragged batch; see `build_lattice`.
        target_batch: the same for `target_features`.
        neighborhood_size: s of the filter; that of a lattice is its own.
        normalization: "none", "homogeneous" (divide by the Gaussian filter of ones), "symmetric" (by its square
            root on either side), "density" (divide every lattice point by its splatted weight before convolving) or
            "coverage" (the same, and divide by the share of the Gaussian that lies on occupied lattice points).
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
    lattice = lattice_for(features, target_features, batch, target_batch, neighborhood_size)
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
    device = lattice.neighbors.device
    # float64 stays float64, as in torch's convolutions
    if torch.is_autocast_enabled(device.type) and lattice.source.barycentric.dtype == torch.float32:
        values, weight, bias = to_autocast_dtype(device, values, weight, bias)
        with torch.autocast(device.type, enabled=False):
            return filter_with_bias(values, lattice, weight, bias, normalization, sample_weight)
    dtypes = getattr(values, "dtype", None), getattr(weight, "dtype", None)
    if normalization != "none" and dtypes == (torch.float16, torch.float16):
        # sums exceed the range of float16 before they are divided by mass or density, and so do their gradients
        wide = None if bias is None else bias.float()
        return filter_with_bias(values.float(), lattice, weight.float(), wide, normalization, sample_weight).half()
    check_points(values, lattice)
    ops = bind(values, weight, bias, sample_weight, lattice.source.barycentric, lattice.target.barycentric)
    if sample_weight is not None:
        if normalization == "symmetric":
            raise InputError("sample_weight is not supported with normalization='symmetric'; use 'homogeneous'")
        weighted = weigh(values, sample_weight)
        check_finite_values(weighted)
        counted = weighted[..., :-1].to(values.dtype)
        return _compose(ops, counted, weight, bias, lattice, normalization, weighted[..., -1:])
    tables = _plan(ops, values, weight, bias, lattice, normalization)
    if isinstance(tables, str):
        report_declined("filter_learned", tables)
        return _compose(ops, values, weight, bias, lattice, normalization)
    rows, leading = points_to_rows(values, lattice)
    output, _ = ops.filter_learned(rows, weight, bias, tables)
    return rows_to_points(output, lattice, leading)


def _plan(
    ops: Backend, values: Tensor, weight: Tensor, bias: Tensor | None, lattice: Lattice, normalization: Normalization
) -> FilterTables | str:
    """Return the plan of `filter_learned`, or why it is not called; `_compose` rejects what does not fit."""
    if normalization not in ("none", "density"):
        return f"it supports the normalizations 'none' and 'density', got {normalization!r}"
    check_tensor("weight", weight)
    if weight.dim() != 3 or (values.dim() != 2 and lattice.batch_size is None):
        return "it takes a weight of 3 axes, and no items on a shared lattice"
    for each in (weight, bias):
        if each is not None and (each.dtype != values.dtype or each.device != values.device):
            return "values, weight and bias differ in dtype or device"
    (filter_size, in_channels, out_channels), channels = weight.shape, values.shape[-1]
    # sizes may be unknown to torch.compile
    if ops.name and not (values.numel() and in_channels and out_channels):
        return "there are no points or no channels"
    groups, rest = (channels // in_channels, channels % in_channels) if in_channels else (0, 1)
    if filter_size != lattice.neighbors.shape[0] or rest or groups < 1 or out_channels % groups:
        return "the weight does not fit the values and the lattice"
    if ops.name:
        check_results(lattice, out_channels, values)
    links = lattice.neighbors, groups, lattice.reverse_neighbors, lattice.opposite
    return FilterTables(lattice.source, lattice.target, *links, normalization == "density")


def _compose(
    ops: Backend,
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lattice: Lattice,
    normalization: Normalization,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Compose the filter of primitives."""

    def step(ops: Backend, lattice_values: Tensor, lattice: Lattice) -> Tensor:
        return convolve_lattice(ops, lattice_values, weight, lattice)

    output = filter_normalized(ops, values, lattice, normalization, step, DENSE, sample_weight)
    return output if bias is None else output + bias.to(output.dtype)
