"""The learned filter on a lattice: one call of the backend, or composed of operators."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from permutohedral.checks import check_points, check_results
from permutohedral.errors import InputError
from permutohedral.filters.normalization import DENSE, Normalization, convolve_with, filter_normalized
from permutohedral.filters.weighting import refuse_nan, weigh
from permutohedral.lattice import Lattice
from permutohedral.ops.fused_filters import count_groups, filter_learned
from permutohedral.ops.fused_primitives import FilterTables


def filter_with_bias(
    values: Tensor,
    lattice: Lattice,
    weight: Tensor,
    bias: Tensor | None,
    normalization: Normalization,
    weights: Tensor | None = None,
) -> Tensor:
    """`permutohedral_filter` on a lattice, and a number `bias [out_channels]` added to every channel of the result."""
    if normalization != "none" and _is_float16(values) and _is_float16(weight):
        # what is divided by mass or density was out of range before, and so are the gradients of it
        wide = None if bias is None else bias.float()
        return filter_with_bias(values.float(), lattice, weight.float(), wide, normalization, weights).half()
    if weights is not None:
        if normalization == "symmetric":
            raise InputError("weights do not go with the normalization 'symmetric': targets have none")
        check_points(values, lattice)
        weighted = weigh(values, weights)
        refuse_nan(weighted)
        counted = weighted[..., :-1].to(values.dtype)
        return filter_in_steps(counted, weight, bias, lattice, normalization, weighted[..., -1:])
    groups = count_groups(values, weight, bias, lattice) if normalization in ("none", "density") else 0
    if groups == 0:
        return filter_in_steps(values, weight, bias, lattice, normalization)
    check_results(lattice, weight.shape[2], values)
    composed = partial(filter_in_steps, lattice=lattice, normalization=normalization)
    tables = FilterTables(lattice, groups, normalization == "density")
    return filter_learned(values, weight, bias, tables, composed)


def filter_in_steps(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lattice: Lattice,
    normalization: Normalization,
    weights: Tensor | None = None,
) -> Tensor:
    """The same, composed of operators."""
    device = lattice.device.type
    # float64 stays what it is
    casts = lattice.dtype == torch.float32 and _casts_to_float16(device)
    if normalization in ("homogeneous", "symmetric") and casts:
        # which has no room for sums that are not divided yet
        with torch.autocast(device, enabled=False):
            wide = values.float(), weight.float()
            return filter_in_steps(*wide, bias, lattice, normalization, weights).half()
    step = partial(convolve_with, weight=weight)
    output = filter_normalized(values, lattice, normalization, step, DENSE, weights)
    return output if bias is None else output + bias.to(output.dtype)


def _is_float16(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype == torch.float16


def _casts_to_float16(device: str) -> bool:
    """Whether autocast does so there."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
