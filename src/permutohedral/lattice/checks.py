"""Checks of values and filters, and folding of batch axes into rows.

The operators take rows, `[points, channels]` or `[lattice_points, channels]`. Items `[..., points, channels]` that
share one lattice become further channels, `[points, items * channels]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.memory import check_rows, is_negligible
from permutohedral.lattice.neighborhood import count_taps
from permutohedral.lattice.tensors import check_tensor, reject_torchscript
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import ACCUMULATION
from permutohedral.ops.simplices import Simplices

METHODS = ("lattice", "dense", "exact", "auto")
# of the neighborhood that holds the whole Gaussian
DENSE_SIZE = 2


def count(leading: tuple[int, ...]) -> int:
    """Return the number of items that share one lattice."""
    product = 1
    for extent in leading:
        product *= extent
    return product


def check_lattice(lattice: object) -> None:
    """Raise unless `lattice` is a `Lattice`."""
    if not isinstance(lattice, Lattice):
        raise InputError(f"lattice must be a Lattice, got {type(lattice).__name__}; use build_lattice(features)")


def check_values(values: Tensor, lattice: Lattice, name: str) -> None:
    """Raise unless `values` fit the dtype and device of the lattice."""
    if torch._C._get_tracing_state() is not None:
        reject_torchscript()
    if not isinstance(lattice, Lattice):
        check_lattice(lattice)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        how = "with .float()" if isinstance(values, Tensor) else "with torch.as_tensor"
        raise InputError(f"{name} must be a floating tensor, got {kind}; convert {how}")
    check_tensor(name, values)
    barycentric = lattice.source.barycentric
    if values.device != barycentric.device:
        raise InputError(f"{name} are on {values.device} but the lattice is on {lattice.device}; move one")
    if ACCUMULATION.get(values.dtype, values.dtype) != barycentric.dtype:
        raise InputError(
            f"{name} are {values.dtype} but the features of the lattice {lattice.dtype}; convert one (values of 16 "
            "bits go with float32 features)"
        )


def check_method(method: str, halo: int, features: Tensor | Lattice | None = None) -> None:
    """Raise unless `method` is one of `gaussian_filter`'s, and a halo and a lattice fit it."""
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if not isinstance(features, Lattice):
        if method == "exact" and halo:
            raise InputError(f'halo: method="exact" has no lattice, and so no halo; leave it out, got {halo}')
        return
    if halo:
        raise InputError(f"halo must be 0 with a Lattice, got {halo}; pass halo to build_lattice")
    if method == "exact":
        raise InputError('method="exact" sums without a lattice: pass features as a tensor, not a Lattice')
    if method == "dense" and features.neighborhood_size < DENSE_SIZE:
        raise InputError(
            'method="dense" needs a lattice built with neighborhood_size=2, got one of '
            f"{features.neighborhood_size}, which cuts the Gaussian off"
        )
    if method == "dense" and features.dilation != 1:
        raise InputError(f'method="dense" needs a lattice built without dilation, got one of {features.dilation}')


def lattice_for(
    features: Tensor | Lattice,
    target_features: Tensor | None,
    batch: Tensor | None,
    target_batch: Tensor | None,
    neighborhood_size: int,
    halo: int = 0,
    separable: bool = False,
) -> Lattice:
    """Return the lattice that was passed as features, or build one from them."""
    if isinstance(features, Lattice):
        reject_with_lattice(target_features=target_features, batch=batch, target_batch=target_batch)
        return features
    if not isinstance(features, Tensor):
        kind = type(features).__name__
        raise InputError(f"features must be a torch.Tensor or a Lattice, got {kind}; use torch.as_tensor")
    return build_lattice(
        features,
        target_features,
        neighborhood_size=neighborhood_size,
        batch=batch,
        target_batch=target_batch,
        halo=halo,
        separable=separable,
    )


def reject_with_lattice(**given: object) -> None:
    """Raise if an argument of `build_lattice` was passed next to a lattice."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} must be left out with a Lattice, which has its own; pass it to build_lattice")


def check_points(values: Tensor, lattice: Lattice) -> None:
    """Raise unless `values` are values at the source points of the lattice."""
    check_values(values, lattice, "values")
    if lattice.batch_size is not None:
        expected = (lattice.batch_size, lattice.points_per_item[0])
        if values.dim() != 3 or values.shape[:2] != expected:
            raise InputError(
                f"values must be [{expected[0]}, {expected[1]}, channels] for this lattice, got {tuple(values.shape)}"
            )
    elif values.dim() < 2 or values.shape[-2] != lattice.source.vertices.shape[0]:
        points = lattice.source.num_points
        raise InputError(f"values must be [..., {points}, channels] for this lattice, got {tuple(values.shape)}")


def points_to_rows(values: Tensor, lattice: Lattice) -> tuple[Tensor, tuple[int, ...]]:
    """Return checked values at source points as rows, and the leading axes that were folded into channels."""
    if lattice.batch_size is not None:
        return values.reshape(lattice.source.vertices.shape[0], values.shape[2]), ()
    if values.dim() == 2:
        return values, ()
    return lattice_to_rows(values)


def rows_to_points(rows: Tensor, lattice: Lattice, leading: tuple[int, ...]) -> Tensor:
    """Return rows at target points with their batch axes."""
    if lattice.batch_size is not None:
        return rows.reshape(lattice.batch_size, lattice.points_per_item[1], rows.shape[1])
    return unfold(rows, leading) if leading else rows


def bind_on_lattice(values: Tensor, lattice: Lattice, simplices: Simplices, *others: Tensor) -> Backend:
    """Return the backend of values at the lattice points of `simplices`, the source or the target of the lattice.

    Raises:
        InputError: they are not values at these lattice points.
    """
    check_values(values, lattice, "lattice values")
    ops = bind(values, *others)
    # the number of lattice points is unknown to torch.compile
    if values.dim() < 2 or (ops.name and values.shape[-2] != simplices.keys.shape[0]):
        which = "source" if simplices is lattice.source else "target"
        raise InputError(
            f"lattice values must be [..., {simplices.num_lattice_points}, channels], one row for each {which} lattice "
            f"point, got {tuple(values.shape)}"
        )
    return ops


def lattice_to_rows(values: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Fold `[..., rows, channels]` to `[rows, items * channels]`, and return the axes; no items become one of zeros."""
    leading = tuple(values.shape[:-2])
    if not leading:
        return values, ()
    if count(leading) == 0:
        return values.new_zeros(values.shape[-2:]), leading
    return values.reshape(count(leading), *values.shape[-2:]).transpose(0, 1).flatten(1), leading


def unfold(rows: Tensor, leading: tuple[int, ...]) -> Tensor:
    """Undo the folding of `leading` axes into channels."""
    if not leading:
        return rows
    if count(leading) == 0:
        return rows[None][:0].reshape(*leading, *rows.shape)
    points, channels = rows.shape[0], rows.shape[1] // count(leading)
    return rows.reshape(points, count(leading), channels).transpose(0, 1).reshape(*leading, points, channels)


def check_weight(weight: Tensor, channels: int, rows: Tensor, lattice: Lattice) -> tuple[Tensor, int]:
    """Return the filter as `[filter_size, in_channels / groups, out_channels]`, and the number of groups."""
    check_tensor("weight", weight)
    filter_size = lattice.neighbors.shape[0]
    if weight.dim() not in (1, 3):
        raise InputError(
            "weight must be [filter_size, in_channels / groups, out_channels] or [filter_size], got "
            f"{tuple(weight.shape)}"
        )
    if weight.shape[0] != filter_size:
        d, s = lattice.dimension, lattice.neighborhood_size
        fitting = [size for size in range(9) if count_taps(d, size) == weight.shape[0]]
        hint = f"; {weight.shape[0]} taps belong to neighborhood_size={fitting[0]}" if fitting else ""
        raise InputError(
            f"weight has {weight.shape[0]} taps, but a neighborhood of size {s} in {d} dimensions has "
            f"{filter_size}{hint}"
        )
    if weight.dtype != rows.dtype or weight.device != rows.device:
        raise InputError(
            f"weight is {weight.dtype} on {weight.device}, but the values are {rows.dtype} on {rows.device}; "
            "convert one"
        )
    if weight.dim() == 1 and channels == 0:
        return weight.new_empty(filter_size, 0, 0), 1
    if weight.dim() == 1:
        return weight[:, None, None].expand(-1, 1, channels), channels
    in_channels, out_channels = weight.shape[1:]
    # not by divmod, which torch.compile does not have for unknown sizes
    groups, rest = (channels // in_channels, channels % in_channels) if in_channels else (0, 1)
    if rest or groups < 1 or out_channels % groups:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} does not fit values of {channels} channels: its second axis must "
            "be in_channels / groups, and its third a multiple of groups"
        )
    return weight, groups


def to_autocast(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cast as autocast does for torch.nn.functional.conv2d."""
    if not torch.is_autocast_enabled(rows.device.type) or rows.dtype == torch.float64:
        return rows, weight
    rows, weight = to_autocast_dtype(rows.device, rows, weight)
    return rows, weight


def to_autocast_dtype(device: torch.device, *tensors: Any) -> tuple[Any, ...]:
    """Cast tensors as `torch.autocast` casts the inputs of a convolution; float64 and other objects are kept."""
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(
        each.to(dtype)
        if isinstance(each, Tensor) and each.is_floating_point() and each.dtype != torch.float64
        else each
        for each in tensors
    )


def check_results(lattice: Lattice, out_channels: int, values: Tensor) -> None:
    """Raise unless the splatted, convolved and sliced values of a learned filter fit the free memory."""
    rows, target = lattice.source.keys.shape[0], lattice.target
    target_rows = target.keys.shape[0] + target.vertices.shape[0]
    if not is_negligible(rows * values.shape[-1] + target_rows * out_channels, values):
        check_rows(rows, values.shape[-1], values)
        check_rows(target_rows, out_channels, values)


def splat_density(ops: Backend, lattice: Lattice) -> Tensor:
    """Return the weight splatted onto each lattice point, `[lattice_points, 1]`."""
    source = lattice.source
    ones = source.barycentric.new_ones(source.num_points, 1)
    return ops.splat(ones, source.vertices, source.barycentric, source.num_lattice_points)
