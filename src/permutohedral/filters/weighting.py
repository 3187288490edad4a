"""Weights of points, and values that are not finite.

A weight multiplies the values of its point, and is one more channel. The quotient of the filtered channels is the
weighted mean, and its denominator is the mass near each target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.filters.normalization import Normalization
from permutohedral.lattice.tensors import check_tensor, has_finite_sum
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import is_recorded, is_traced, is_transformed, plain_numbers

# a filter between given points, of values and a normalization
Filter = Callable[[Tensor, Normalization], Tensor]


def filter_weighted(
    run: Filter,
    values: Tensor,
    sample_weight: Tensor | None,
    normalization: Normalization,
    fill_value: float,
    with_mass: bool,
) -> tuple[Tensor, Tensor | None]:
    """Filter weighted values; with `with_mass` also return the mass near each target.

    Args:
        run: the filter without sample_weight.
        values: `[..., points, channels]`.
        sample_weight: see `weigh`.
        normalization: "homogeneous" or "none"; any other without sample_weight, fill value and mass.
        fill_value: the result where the mass is zero.
        with_mass: return the mass.

    Returns:
        `[..., target points, channels]` and `[..., target points]` or None.
    """
    _check_fill_value(fill_value, values)
    if sample_weight is None and fill_value == 0 and not with_mass:
        check_finite_values(values)
        return run(values, normalization), None
    if normalization not in ("homogeneous", "none"):
        raise InputError(
            f"sample_weight, fill_value and return_mass go with 'homogeneous' and 'none', not with {normalization!r}"
        )
    weighted = weigh(values, sample_weight)
    check_finite_values(weighted)
    # dividing both by the same mass changes nothing, and the normalized filter is the fastest
    sums = run(weighted, "none" if with_mass else normalization)
    filtered, mass = sums[..., :-1], sums[..., -1:]
    reached = mass > torch.finfo(mass.dtype).tiny
    if normalization == "homogeneous":
        filtered = filtered / torch.where(reached, mass, 1.0)
    filtered = torch.where(reached, filtered, fill_value).to(values.dtype)
    return filtered, mass[..., 0] if with_mass else None


def _check_fill_value(fill_value: object, values: Tensor) -> None:
    if isinstance(fill_value, bool) or not isinstance(fill_value, (int, float)):
        raise InputError(f"fill_value must be a number, got {fill_value!r}")
    if fill_value and isinstance(values, Tensor) and values.is_floating_point():
        largest = torch.finfo(values.dtype).max
        if largest < abs(fill_value) < math.inf:
            raise InputError(f"fill_value must be at most {largest:.3g} for {values.dtype}, got {fill_value!r}")


def weigh(values: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Return values times their weights, with the weights as one more channel.

    Args:
        values: float `[..., points, channels]`; anything at points of weight zero, NaN included.
        sample_weight: bool or float, not negative, `[points]` or with the batch axes of the values; None for ones.

    Returns:
        `[..., points, channels + 1]`, of at least 32 bits.

    >>> weigh(torch.tensor([[4.0], [torch.nan]]), torch.tensor([0.5, 0.0])).tolist()
    [[2.0, 0.5], [0.0, 0.0]]
    """
    check_tensor("values", values)
    wide = values.to(accumulation_dtype(values.dtype))
    if sample_weight is None:
        return torch.cat([wide, wide.new_ones(()).expand(*wide.shape[:-1], 1)], dim=-1)
    sample_weight = check_weights(sample_weight, values.shape[:-1], values)[..., None]
    unknown = (sample_weight == 0) & ~wide.isfinite().all(dim=-1, keepdim=True)
    # neither an unknown value nor its weight has a derivative
    sample_weight, known = torch.where(unknown, 0.0, sample_weight), torch.where(unknown, 0.0, wide)
    return torch.cat([known * sample_weight, sample_weight], dim=-1)


def hide_lost(image: Tensor, sample_weight: Tensor, spatial_dims: int = 2) -> tuple[Tensor, Tensor]:
    """Return the image, zero where its weight is zero and it is not finite, and the mask of these pixels."""
    channels = -spatial_dims - 1
    lost = (sample_weight == 0) & ~image.isfinite().all(dim=channels)
    return torch.where(lost.unsqueeze(channels), 0.0, image), lost


def check_weights(sample_weight: Tensor, shape: Sequence[int], values: Tensor, axes: int = 1) -> Tensor:
    """Return weights as floats of at least 32 bits, expanded to `shape`, that of the points of `values`.

    The last `axes` of the shape are those of the points. Those before them are batch axes, which may be missing.

    Raises:
        InputError: they do not fit, or are negative or not finite.
    """
    check_tensor("sample_weight", sample_weight)
    if sample_weight.dtype != torch.bool and not sample_weight.is_floating_point():
        raise InputError(
            f"sample_weight must be bool or floating, got {sample_weight.dtype}; convert it with .bool() or .float()"
        )
    if sample_weight.device != values.device:
        raise InputError(f"sample_weight is on {sample_weight.device} but the values on {values.device}; move one")
    fits = len(shape) >= sample_weight.dim() >= axes and sample_weight.shape[sample_weight.dim() - axes :] == tuple(
        shape[-axes:]
    )
    if not fits or any(a not in (1, b) for a, b in zip(reversed(sample_weight.shape), reversed(shape), strict=False)):
        raise InputError(
            f"sample_weight must be {list(shape)}, one for each point, or without the batch axes, got "
            f"{list(sample_weight.shape)}"
        )
    sample_weight = sample_weight.to(accumulation_dtype(values.dtype))
    fit = (sample_weight >= 0) & (sample_weight < torch.inf)
    if not _is_readable(sample_weight):
        # they cannot be read, so invalid weights become NaN in the result
        sample_weight = torch.where(fit, sample_weight, torch.nan)
    elif not bool(fit.all()):
        raise InputError(
            "sample_weight must be finite and not negative; clamp them, for instance with sample_weight.clamp(0, 1)"
        )
    return sample_weight.expand(*shape)


def check_finite_values(values: Tensor) -> None:
    """Raise if a value is NaN or infinite, which one pass of a filter would spread over its neighborhood.

    A compiled or exported program raises a RuntimeError. Values on a GPU are not checked, since the host would have to
    wait. Other functions reject arguments that are not floating tensors.
    """
    if not isinstance(values, Tensor) or not values.is_floating_point() or not _is_on_host(values):
        return
    if is_recorded():
        # batched tensors of a graph cannot be asserted
        if not is_transformed():
            torch._assert_async(values.isfinite().all(), "values must be finite, but some are NaN or infinite")
        return
    with plain_numbers(values) as numbers:
        if has_finite_sum(numbers):
            return
        bad = int((~numbers.isfinite()).sum())
        if bad:
            raise InputError(
                f"values must be finite, but {bad} of {numbers.numel()} are NaN or infinite; repair them, or in "
                "Python pass a sample_weight that is zero there"
            )


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _is_readable(tensor: Tensor) -> bool:
    return _is_on_host(tensor) and not is_traced()
