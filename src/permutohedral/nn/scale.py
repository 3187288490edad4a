"""The bandwidths of a layer, fixed or learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_tensor
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import is_traced


def wide_exp(logarithms: Tensor) -> Tensor:
    """Return the exponential in at least 32 bits: one of bfloat16 would be off by up to 0.4 %.

    >>> import torch
    >>> wide_exp(torch.ones(1, dtype=torch.bfloat16))
    tensor([2.7183])
    """
    return logarithms.to(accumulation_dtype(logarithms.dtype)).exp()


def sigmas_of(log_sigma: Tensor) -> Sequence[float] | Tensor:
    """Return standard deviations `[n]`: plain numbers where they are fixed.

    Of plain numbers, the features of an image are computed in one call.

    >>> import torch
    >>> sigmas_of(torch.zeros(2))
    [1.0, 1.0]
    """
    if log_sigma.requires_grad or is_traced():
        return wide_exp(log_sigma)
    return [math.exp(logarithm) for logarithm in log_sigma.tolist()]


def scale_features(features: Tensor, dimension: int, scale: Tensor | None, name: str = "features") -> Tensor:
    """`features [..., dimension]` times the learned `scale [dimension]`, if there is one.

    >>> import torch
    >>> scale_features(torch.ones(1, 2), 2, torch.tensor([2.0, 3.0])).tolist()
    [[2.0, 3.0]]
    """
    check_tensor(name, features)
    if features.shape[-1] != dimension:
        raise InputError(f"{name} must have {dimension} dimensions (dimension), got the shape {tuple(features.shape)}")
    return features if scale is None else features * scale.to(features.dtype)
