"""Values at scattered points, interpolated anywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.functional import gaussian_filter
from permutohedral.guided.arrays import Data, as_given, optional_tensor, to_tensor
from permutohedral.tensors import check_features, check_tensor

# a target that less than this share of one sample reaches is asked of a wider Gaussian
_LEAST_MASS = 1e-2
_MOST_WIDENINGS = 24


def interpolate(
    values: Data,
    features: Data,
    target_features: Data | None = None,
    *,
    weights: Data | None = None,
) -> tuple[Data, Data]:
    """Means of the samples near each target, and how much there is near it, of tensors or NumPy arrays.

    Where the Gaussian of one feature unit finds nothing, one of twice the width is asked, and so on: no target is left
    without a value, and the mass tells which ones are far from all samples.

    Args:
        values: float `[points, channels]`; NaN is unknown.
        features: `[points, d]`, divided by the bandwidth wanted.
        target_features: `[target points, d]`; default: at `features`, where values that are known stay as they are.
        weights: how much each point counts, `[points]`, not negative; zero is unknown.

    Returns:
        `[target points, channels]`, and the mass `[target points]` of samples within about one feature unit: well below
        one, the value comes from farther away.

    Raises:
        InputError: no point is known.

    >>> import permutohedral as ph
    >>> values, mass = ph.interpolate(torch.tensor([[1.0], [torch.nan]]), torch.tensor([[0.0], [9.0]]))
    >>> values.tolist(), [round(number) for number in mass.tolist()]
    ([[1.0], [1.0]], [1, 0])
    """
    samples, places = to_tensor(values), to_tensor(features)
    result, mass = _interpolate(samples, places, optional_tensor(target_features), optional_tensor(weights))
    return as_given(result, values), as_given(mass, values)


def _interpolate(
    values: Tensor, features: Tensor, target_features: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    check_features(features, target_features)
    check_tensor("values", values)
    if values.dim() != 2 or features.dim() != 2 or values.shape[0] != features.shape[0]:
        raise InputError(
            f"values must be [points, channels] and features [points, d], got {list(values.shape)} and "
            f"{list(features.shape)}"
        )
    unknown = values.isnan().any(dim=1)
    given = (~unknown).to(features.dtype)
    if weights is not None:
        check_tensor("weights", weights)
        if weights.shape != unknown.shape:
            raise InputError(f"weights must be [{len(values)}], one for each point, got {list(weights.shape)}")
        given = torch.where(unknown, 0.0, weights.to(features.dtype))
    if not bool((given > 0).any()):
        raise InputError("nothing is known: every value is NaN, or of weight zero")
    known = torch.where(unknown[:, None], 0.0, values)
    targets = features if target_features is None else target_features
    result, mass = gaussian_filter(known, features, targets, weights=given, return_mass=True)
    # a sample that counts as much as they do in the mean
    least = _LEAST_MASS * given[given > 0].mean().detach()
    left = (mass.detach() < least).nonzero()[:, 0]
    width = 1.0
    for _ in range(_MOST_WIDENINGS):
        if left.numel() == 0:
            break
        width *= 2
        wider, near = gaussian_filter(
            known, features / width, targets.index_select(0, left) / width, weights=given, return_mass=True
        )
        reached = near.detach() >= least
        result = result.index_put((left[reached],), wider[reached])
        left = left[~reached]
    if left.numel():
        mean = (known * given[:, None]).sum(dim=0) / given.sum()
        result = result.index_put((left,), mean.to(result.dtype).expand(left.numel(), -1))
    if target_features is None:
        result = torch.where((given > 0)[:, None], values, result)
    return result, mass
