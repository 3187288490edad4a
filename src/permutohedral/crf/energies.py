"""Energies from labels or probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import is_traced

# by how much probabilities may leave the range from 0 to 1
_ROUNDING = 1e-3


def energies_from_labels(
    labels: Tensor, num_labels: int, *, certainty: float, unknown: int | None = None, spatial_dims: int = 2
) -> Tensor:
    """Return energies of labels that are right with probability `certainty`.

    All other labels share the rest.

    Args:
        labels: integers `[..., *space]`, from 0 to num_labels - 1.
        num_labels: at least 2.
        certainty: between 0 and 1, both excluded.
        unknown: the number that marks points without a label, where all labels cost the same.
        spatial_dims: number of axes of space: 2 for images, 3 for volumes, 0 for points.

    Returns:
        float32 `[..., num_labels, *space]`; for points `[..., num_labels]`.

    >>> import torch, permutohedral as ph
    >>> labels = torch.tensor([0, 1, 9])
    >>> energies = ph.crf.energies_from_labels(labels, 2, certainty=0.9, unknown=9, spatial_dims=0)
    >>> energies.exp().reciprocal()
    tensor([[0.9000, 0.1000],
            [0.1000, 0.9000],
            [0.5000, 0.5000]])
    """
    check_tensor("labels", labels)
    check_count("num_labels", num_labels, least=2)
    check_count("spatial_dims", spatial_dims)
    if labels.is_floating_point() or labels.is_complex() or labels.dim() < spatial_dims:
        raise InputError(
            f"labels must be integers with {spatial_dims} axes of space or more, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    if not 0 < certainty < 1:
        raise InputError(f"certainty must lie between 0 and 1, got {certainty}; 1 would leave nothing to decide")
    labels = labels.long()
    known = torch.ones_like(labels, dtype=torch.bool) if unknown is None else labels != unknown
    if bool(((labels < 0) | (labels >= num_labels)).logical_and(known).any()):
        worst = labels[known]
        raise InputError(
            f"labels must lie between 0 and {num_labels - 1}, got {int(worst.min())} to {int(worst.max())}; mark "
            "points without a label with the number given as unknown"
        )
    axis = labels.dim() - spatial_dims
    each = torch.arange(num_labels, device=labels.device).reshape(-1, *[1] * spatial_dims)
    chosen = labels.unsqueeze(axis) == each
    cost, other = -math.log(certainty), -math.log((1 - certainty) / (num_labels - 1))
    energies = torch.full(chosen.shape, other, dtype=torch.float32, device=labels.device).masked_fill(chosen, cost)
    return energies.masked_fill(~known.unsqueeze(axis), math.log(num_labels))


def energies_from_probabilities(probabilities: Tensor, *, smallest: float = 1e-5) -> Tensor:
    """Return -log p, with probabilities clamped to at least `smallest`.

    Args:
        probabilities: floating, from 0 to 1, of any shape.
        smallest: positive.

    Returns:
        Energies of the shape and dtype of probabilities.

    >>> import torch, permutohedral as ph
    >>> ph.crf.energies_from_probabilities(torch.tensor([1.0, 0.0]), smallest=1e-4)
    tensor([-0.0000, 9.2103])
    """
    check_tensor("probabilities", probabilities)
    if not probabilities.is_floating_point():
        raise InputError(f"probabilities must be floating, got {probabilities.dtype}; convert with .float()")
    if not 0 < smallest < 1:
        raise InputError(f"smallest must lie between 0 and 1, got {smallest}")
    # on a GPU the host would have to wait; sums of a softmax may exceed 1 by rounding errors
    if probabilities.device.type == "cpu" and not is_traced():
        fits = (probabilities >= -_ROUNDING) & (probabilities <= 1 + _ROUNDING)
        if not bool(fits.all()):
            raise InputError(
                f"probabilities must lie between 0 and 1, got {float(probabilities.min()):.4g} to "
                f"{float(probabilities.max()):.4g}; apply a softmax to logits"
            )
    # float16 may not represent `smallest`
    wide = probabilities.to(accumulation_dtype(probabilities.dtype))
    return -wide.clamp(min=smallest).log().to(probabilities.dtype)
