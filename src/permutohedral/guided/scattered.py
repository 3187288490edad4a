"""Interpolation of values at scattered points."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.gaussian import gaussian_filter
from permutohedral.filters.images import Data, as_given, optional_tensor, to_tensor
from permutohedral.filters.weighting import check_weights
from permutohedral.lattice.lattice import check_batches, flatten_points
from permutohedral.lattice.tensors import check_features, check_tensor
from permutohedral.ops.tracing import is_recorded, surely_all

# targets of a smaller mass, in units of one sample, take a wider Gaussian
_LEAST_MASS = 1e-2
_MOST_WIDENINGS = 24


@overload
def interpolate(
    values: Data,
    features: Data,
    target_features: Data | None = None,
    *,
    batch: Data | None = None,
    target_batch: Data | None = None,
    sample_weight: Data | None = None,
    return_mass: Literal[False] = False,
) -> Data: ...


@overload
def interpolate(
    values: Data,
    features: Data,
    target_features: Data | None = None,
    *,
    batch: Data | None = None,
    target_batch: Data | None = None,
    sample_weight: Data | None = None,
    return_mass: Literal[True],
) -> tuple[Data, Data]: ...


def interpolate(
    values: Data,
    features: Data,
    target_features: Data | None = None,
    *,
    batch: Data | None = None,
    target_batch: Data | None = None,
    sample_weight: Data | None = None,
    return_mass: bool = False,
) -> Data | tuple[Data, Data]:
    """Interpolate scattered samples at targets; takes and returns tensors or NumPy arrays.

    The value is the Gaussian mean of samples within about one feature unit. Where there are none, the width is doubled
    until there are.

    Args:
        values: float `[points, channels]`; NaN is unknown, in each channel separately.
        features: `[points, d]`, divided by the bandwidth wanted.
        target_features: `[target points, d]`; default: `features`, where known values are kept.
        batch: int `[points]`, the item of each point of a ragged batch; see `build_lattice`.
        target_batch: the same for `target_features`.
        sample_weight: weight of each point, `[points]`, not negative; zero is unknown.
        return_mass: also return the mass, which shows which targets are far from all samples.

    Returns:
        Values `[target points, channels]`; with `return_mass`, also the mass `[target points]` of samples within about
        one feature unit. Where channels differ in unknown samples, the mass is the smallest of theirs.

    Raises:
        InputError: no point is known.

    >>> import torch, permutohedral as ph
    >>> values, features = torch.tensor([[1.0], [torch.nan]]), torch.tensor([[0.0], [9.0]])
    >>> ph.interpolate(values, features).tolist()
    [[1.0], [1.0]]
    >>> filled, mass = ph.interpolate(values, features, return_mass=True)
    >>> mass.round().tolist()
    [1.0, 0.0]
    """
    samples, places, targets = to_tensor(values), to_tensor(features), optional_tensor(target_features)
    weight, items, target_items = (optional_tensor(each) for each in (sample_weight, batch, target_batch))
    if items is None and target_items is None:
        result, mass = _interpolate(samples, places, targets, weight)
    else:
        result, mass = _interpolate_items(samples, places, targets, weight, items, target_items)
    filled = as_given(result, values)
    return (filled, as_given(mass, values)) if return_mass else filled


def _interpolate_items(
    values: Tensor,
    features: Tensor,
    target_features: Tensor | None,
    sample_weight: Tensor | None,
    batch: Tensor | None,
    target_batch: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Interpolate the items of a ragged batch one by one."""
    check_features(features, target_features)
    check_batches(batch, target_batch, target_features is not None)
    _, items = flatten_points(features, batch, "batch")
    targets, target_items = features, items
    if target_features is not None:
        targets, target_items = flatten_points(target_features, target_batch, "target_batch")
    assert items is not None
    assert target_items is not None
    result, mass = values.new_empty(len(targets), values.shape[-1]), features.new_empty(len(targets))
    for item in target_items.unique():
        own, there = items == item, target_items == item
        weight = None if sample_weight is None else sample_weight[own]
        at = None if target_features is None else targets[there]
        filled, near = _interpolate(values[own], features[own], at, weight)
        result, mass = (
            result.index_put((there,), filled.to(result.dtype)),
            mass.index_put((there,), near.to(mass.dtype)),
        )
    return result, mass


def _interpolate(
    values: Tensor, features: Tensor, target_features: Tensor | None, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    check_features(features, target_features)
    check_tensor("values", values)
    if values.dim() != 2 or features.dim() != 2 or values.shape[0] != features.shape[0]:
        raise InputError(
            f"values must be [points, channels] and features [points, d], got {list(values.shape)} and "
            f"{list(features.shape)}"
        )
    unit: float | Tensor = 1.0
    if sample_weight is not None and len(values):
        # products of tiny weights would underflow
        sample_weight = check_weights(sample_weight, values.shape[:1], values).to(features.dtype)
        unit = sample_weight.detach().amax().clamp_min(torch.finfo(sample_weight.dtype).tiny)
        sample_weight = sample_weight / unit
    unknown = values.isnan()
    if values.shape[1] > 1 and not surely_all(unknown.any(dim=1) == unknown.all(dim=1)):
        parts = [_interpolate_alike(each, features, target_features, sample_weight) for each in values.split(1, dim=1)]
        result, mass = torch.cat([part[0] for part in parts], dim=1), torch.stack([part[1] for part in parts]).amin(0)
    else:
        result, mass = _interpolate_alike(values, features, target_features, sample_weight)
    return result, mass * unit


def _interpolate_alike(
    values: Tensor, features: Tensor, target_features: Tensor | None, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Interpolate channels that are known at the same points."""
    unknown = values.isnan().any(dim=1)
    given = (~unknown).to(features.dtype) if sample_weight is None else torch.where(unknown, 0.0, sample_weight)
    if not is_recorded() and not bool((given > 0).any()):
        raise InputError("values: all of a channel are NaN or have zero sample_weight; at least one must be known")
    known = torch.where(unknown[:, None], 0.0, values)
    targets = features if target_features is None else target_features
    result, mass = gaussian_filter(known, features, target_features, sample_weight=given, return_mass=True)
    # in units of the mean weight of a sample
    least = _LEAST_MASS * (given.sum() / (given > 0).sum()).detach()
    is_left, width = mass.detach() < least, 1.0
    for _ in range(_MOST_WIDENINGS):
        if not is_recorded() and not bool(is_left.any()):
            break
        width *= 2
        # the number of targets of a traced graph is fixed
        rows = torch.arange(len(targets), device=targets.device) if is_recorded() else is_left.nonzero()[:, 0]
        wider, near = gaussian_filter(
            known, features / width, targets.index_select(0, rows) / width, sample_weight=given, return_mass=True
        )
        reached = (near.detach() >= least) & is_left.index_select(0, rows)
        found = torch.where(reached[:, None], wider, result.index_select(0, rows))
        result = result.index_put((rows,), found)
        is_left = is_left.index_put((rows,), is_left.index_select(0, rows) & ~reached)
    mean = (known * given[:, None]).sum(dim=0) / given.sum()
    result = torch.where(is_left[:, None], mean.to(result.dtype), result)
    if target_features is None:
        result = torch.where((given > 0)[:, None], values, result)
    return result, mass
