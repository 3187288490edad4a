"""The bandwidths of a layer, fixed or learned."""

from __future__ import annotations

from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_tensor
from permutohedral.ops.contract import accumulation_dtype


def wide_exp(logarithms: Tensor) -> Tensor:
    """Return the exponential in at least 32 bits: one of bfloat16 would be off by up to 0.4 %.

    >>> import torch
    >>> wide_exp(torch.ones(1, dtype=torch.bfloat16))
    tensor([2.7183])
    """
    return logarithms.to(accumulation_dtype(logarithms.dtype)).exp()


def scale_features(features: Tensor, dimension: int, scale: Tensor | None) -> Tensor:
    """`features [..., dimension]` times the learned `scale [dimension]`, if there is one.

    >>> import torch
    >>> scale_features(torch.ones(1, 2), 2, torch.tensor([2.0, 3.0])).tolist()
    [[2.0, 3.0]]
    """
    check_tensor("features", features)
    if features.shape[-1] != dimension:
        raise InputError(f"this layer takes features of {dimension} dimensions, got shape {tuple(features.shape)}")
    return features if scale is None else features * scale.to(features.dtype)
