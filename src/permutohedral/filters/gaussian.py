"""The Gaussian filter between points."""

from __future__ import annotations

from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.choice import choose_for_points
from permutohedral.filters.exact import EXACT_NORMALIZATIONS, sum_points
from permutohedral.filters.normalization import (
    DENSE,
    SEPARABLE,
    Normalization,
    apply_step,
    check_separable,
    filter_normalized,
)
from permutohedral.filters.weighting import filter_weighted
from permutohedral.lattice.checks import (
    DENSE_SIZE,
    check_method,
    check_points,
    lattice_for,
    points_to_rows,
    rows_to_points,
)
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.memory import MemoryLimit, check_rows
from permutohedral.lattice.neighborhood import neighborhood_of
from permutohedral.lattice.tensors import check_features, check_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import items_of_points
from permutohedral.ops.contract import SMALLEST_MASS, accumulation_dtype
from permutohedral.ops.tracing import breaks_graph

GaussianMethod = Literal["lattice", "dense", "exact", "auto"]


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | None = None,
    target_features: Tensor | None = None,
    *,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    lattice: Lattice | None = None,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[False] = False,
) -> Tensor: ...


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | None = None,
    target_features: Tensor | None = None,
    *,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    lattice: Lattice | None = None,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@breaks_graph
def gaussian_filter(
    values: Tensor,
    features: Tensor | None = None,
    target_features: Tensor | None = None,
    *,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    lattice: Lattice | None = None,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Filter with a Gaussian of one feature unit, approximately or exactly.

    Args:
        values: `[points, channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`, divided by the standard deviations; None if a lattice is given.
        target_features: where results are wanted; default: at `features`.
        normalization: see `permutohedral_filter`; "homogeneous" keeps constants. Other sums, and masses, are smaller
            than those of "exact" where points are sparse, since paths through missing lattice points are lost.
            Compare sums of one method only.
        method: "lattice" blurs along the d + 1 axes of the lattice, one after another. "dense" convolves with all
            taps of size 2: more accurate where lattice points are missing, and slow beyond d = 4. "exact" sums over
            the sources near each target, without a lattice, for few points and small windows of images. "auto" is the
            closest to exact that costs about as much as the lattice; see `explain_gaussian` and `explain_bilateral`.
            In traced calls (`torch.compile`, `torch.func`) "auto" cannot look at pixels and may choose another method
            than in plain calls.
        halo: insert untouched lattice points up to this many steps away: more accurate, steady under rounding, slower.
        lattice: from `build_lattice` with `separable=True`, or `neighborhood_size=2` for "dense", instead of features;
            ragged batches need one.
        sample_weight: how much each point counts, `[points]` or with the batch axes of `values`: not negative, or a
            bool mask. Values of weight zero may be anything, NaN included. Weights below the smallest normal number of
            their dtype (1e-38 in float32) count as zero. With "homogeneous" and "none" only.
        fill_value: the result at targets without any weight nearby.
        return_mass: also return the weights filtered with "none": how much weight is near each target.

    Returns:
        `[target points, channels]`, with the batch axes of `values`; with `return_mass`, also the mass
        `[target points]`, with the same batch axes.

    Raises:
        InputError: among other reasons, on the CPU, a value that counts is NaN or infinite.

    >>> import torch, permutohedral as ph
    >>> features = torch.rand(100, 2) * 5
    >>> bool(torch.allclose(ph.gaussian_filter(torch.ones(100, 1), features), torch.ones(100, 1)))
    True

    A ragged batch of 60 and 40 points:

    >>> items = torch.tensor([0] * 60 + [1] * 40)
    >>> lattice = ph.build_lattice(features, neighborhood_size=0, separable=True, batch=items)
    >>> ph.gaussian_filter(torch.rand(100, 3), lattice=lattice).shape
    torch.Size([100, 3])
    """
    check_method(method, halo, lattice)
    run = partial(
        filter_gaussian, features=features, target_features=target_features, method=method, halo=halo, lattice=lattice
    )
    filtered, mass = filter_weighted(run, values, sample_weight, normalization, fill_value, return_mass)
    return filtered if mass is None else (filtered, mass)


def filter_gaussian(
    values: Tensor,
    normalization: Normalization,
    features: Tensor | None,
    target_features: Tensor | None,
    method: GaussianMethod,
    halo: int,
    lattice: Lattice | None,
) -> Tensor:
    """Run `gaussian_filter` on values of equal weight, with checked options."""
    if method == "auto":
        exact = lattice is None and normalization in EXACT_NORMALIZATIONS
        exact = exact and choose_for_points(values, features, target_features).method == "exact"
        method = "exact" if exact else "lattice"
    if method == "exact":
        if features is None:
            raise InputError("features are missing: the exact method needs features [points, d]")
        return sum_points(values, normalization, features, target_features)
    dense = method == "dense"
    fused = normalization == "homogeneous" and lattice is None and target_features is None and not (dense or halo)
    if fused and features is not None and _is_simple(values, features):
        return _filter_points(values, features)
    size = DENSE_SIZE if dense else 0
    lattice = lattice_for(features, target_features, lattice, size, halo, separable=not dense)
    check_points(values, lattice)
    source, target = lattice.source, lattice.target
    ops = bind(values, source.barycentric, target.barycentric)
    gaussian = DENSE if dense else SEPARABLE
    if normalization == "homogeneous" and not dense:
        axis_neighbors, (rows, leading) = check_separable(lattice), points_to_rows(values, lattice)
        # splatted, blurred, and between the passes of the blur
        check_rows(3 * source.keys.shape[0], rows.shape[1] + 1, rows)
        tables = source.vertices, source.barycentric, axis_neighbors, target.vertices, target.barycentric
        return rows_to_points(ops.filter_gaussian(rows, *tables), lattice, leading)
    # sums of many points exceed the range of float16
    wide = values.to(accumulation_dtype(values.dtype))
    if normalization != "homogeneous":
        return filter_normalized(ops, wide, lattice, normalization, gaussian.blur, gaussian).to(values.dtype)
    # the mass is one more channel
    ones = wide.new_ones(()).expand(*wide.shape[:-1], 1)
    filtered = apply_step(ops, torch.cat([wide, ones], dim=-1), lattice, gaussian.blur)
    return (filtered[..., :-1] / (filtered[..., -1:] + SMALLEST_MASS)).to(values.dtype)


def _is_simple(values: Tensor, features: Tensor) -> bool:
    """Return whether `filter_points` takes these arguments; others are checked when their lattice is used."""
    if not isinstance(features, Tensor) or not isinstance(values, Tensor):
        return False
    fits = features.dim() in (2, 3) and values.shape[:-1] == features.shape[:-1] and values.device == features.device
    if not fits or accumulation_dtype(values.dtype) != features.dtype or features.dtype.itemsize < 4:
        return False
    return torch.compiler.is_compiling() or (features.numel() > 0 and values.shape[-1] > 0)


def _filter_points(values: Tensor, features: Tensor) -> Tensor:
    """Run the normalized separable Gaussian between the points."""
    check_tensor("values", values)
    neighborhood, limit = neighborhood_of(check_features(features, None), 0), MemoryLimit(None, features.device)
    channels, batch, rows, places = values.shape[-1], None, values, features
    if features.dim() == 3:
        batch = items_of_points(features.shape[0], features.shape[1], features.device)
        rows, places = values.flatten(0, 1), features.flatten(0, 1)
    limit.check_simplices(places.shape[0], places.shape[1], features.element_size())

    def check(num_lattice_points: int) -> None:
        limit.check_neighbors(num_lattice_points, neighborhood, separable=True)
        # splatted, blurred, and between the passes of the blur
        check_rows(3 * num_lattice_points, channels + 1, values)

    return bind(rows, places).filter_points(rows, places, batch, check).view(values.shape)
