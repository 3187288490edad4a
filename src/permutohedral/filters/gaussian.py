"""The Gaussian filter between points."""

from __future__ import annotations

from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from permutohedral.filters.choice import choose_for_points
from permutohedral.filters.exact import EXACT_NORMALIZATIONS, separate_items, sum_points
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
from permutohedral.lattice.lattice import Lattice, flatten_points
from permutohedral.lattice.memory import MemoryLimit, check_rows
from permutohedral.lattice.neighborhood import neighborhood_of
from permutohedral.lattice.tensors import check_features, check_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import SMALLEST_MASS, accumulation_dtype
from permutohedral.ops.tracing import breaks_graph

GaussianMethod = Literal["lattice", "dense", "exact", "auto"]


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | Lattice,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[False] = False,
) -> Tensor: ...


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | Lattice,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@breaks_graph
def gaussian_filter(
    values: Tensor,
    features: Tensor | Lattice,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    method: GaussianMethod = "lattice",
    normalization: Normalization = "homogeneous",
    halo: int = 0,
    sample_weight: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Filter with a Gaussian of one feature unit, approximately or exactly.

    Args:
        values: `[points, channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`, divided by the standard deviations; or a `Lattice` built from
            them with `separable=True`, or with `neighborhood_size=2` for "dense".
        target_features: where results are wanted; default: at `features`.
        batch: int `[points]`, the item of each point of a ragged batch; see `build_lattice`.
        target_batch: the same for `target_features`.
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

    A ragged batch of 60 and 40 points, and a lattice that several calls share:

    >>> items = torch.tensor([0] * 60 + [1] * 40)
    >>> filtered = ph.gaussian_filter(torch.rand(100, 3), features, batch=items)
    >>> lattice = ph.build_lattice(features, neighborhood_size=0, separable=True, batch=items)
    >>> ph.gaussian_filter(torch.rand(100, 3), lattice).shape
    torch.Size([100, 3])
    """
    check_method(method, halo, features)
    run = partial(
        filter_gaussian,
        features=features,
        target_features=target_features,
        batch=batch,
        target_batch=target_batch,
        method=method,
        halo=halo,
    )
    filtered, mass = filter_weighted(run, values, sample_weight, normalization, fill_value, return_mass)
    return filtered if mass is None else (filtered, mass)


def filter_gaussian(
    values: Tensor,
    normalization: Normalization,
    features: Tensor | Lattice,
    target_features: Tensor | None,
    batch: Tensor | None,
    target_batch: Tensor | None,
    method: GaussianMethod,
    halo: int,
) -> Tensor:
    """Run `gaussian_filter` on values of equal weight, with checked options."""
    if method in ("auto", "exact"):
        if not isinstance(features, Lattice) and (method == "exact" or normalization in EXACT_NORMALIZATIONS):
            points = separate_items(features, target_features, batch, target_batch)
            if method == "exact" or choose_for_points(values, *points).method == "exact":
                return sum_points(values, normalization, *points)
        method = "lattice"
    dense = method == "dense"
    fused = normalization == "homogeneous" and target_features is None and target_batch is None
    if fused and not (dense or halo or isinstance(features, Lattice)) and _is_simple(values, features):
        return _filter_points(values, features, batch)
    size = DENSE_SIZE if dense else 0
    lattice = lattice_for(features, target_features, batch, target_batch, size, halo, separable=not dense)
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


def _filter_points(values: Tensor, features: Tensor, batch: Tensor | None) -> Tensor:
    """Run the normalized separable Gaussian between the points."""
    check_tensor("values", values)
    neighborhood, limit = neighborhood_of(check_features(features, None), 0), MemoryLimit(None, features.device)
    channels, (places, items) = values.shape[-1], flatten_points(features, batch, "batch")
    rows = values.flatten(0, 1) if features.dim() == 3 else values
    limit.check_simplices(places.shape[0], places.shape[1], features.element_size())

    def check(num_lattice_points: int) -> None:
        limit.check_neighbors(num_lattice_points, neighborhood, separable=True)
        # splatted, blurred, and between the passes of the blur
        check_rows(3 * num_lattice_points, channels + 1, values)

    return bind(rows, places).filter_points(rows, places, items, check).view(values.shape)
