"""Upsampling by a local model: near each lattice point, values are an affine function of the guide.

The moments of guide and values are gathered on the lattice, a ridge regression there gives the function (as in the
guided filter of He and others, whose windows are boxes), and its coefficients are interpolated at the pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.guided.joint import Joint
from permutohedral.ops import operators

# of one sample: lattice points that nothing reaches have the mean of all samples
_PRIOR = 1e-3


def affine_model(joint: Joint, rows: Tensor, weights: Tensor, guide: Tensor, ridge: float) -> Tensor:
    """Values at all targets.

    Args:
        joint: the lattice under coarse samples and targets.
        rows: values of the coarse samples, `[rows, channels]`.
        weights: how much they count, `[rows, 1]`.
        guide: of the targets, `[target rows, guide channels]`.
        ridge: added to the variances of the guide; the larger, the flatter the function.

    Returns:
        `[target rows, channels]`.
    """
    number, channels = guide.shape[1], rows.shape[1]
    total = weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
    # moments about the means of all samples keep digits
    center = ((joint.coarse_guide * weights).sum(dim=0, keepdim=True) / total).detach()
    offset = ((rows * weights).sum(dim=0, keepdim=True) / total).detach()
    about, values = joint.coarse_guide - center, rows - offset
    squares, products = about[:, :, None] * about[:, None, :], about[:, :, None] * values[:, None, :]
    moments = torch.cat([torch.ones_like(weights), about, values, squares.flatten(1), products.flatten(1)], dim=1)
    moments = moments * weights
    gathered = joint.gather(moments) + _PRIOR * joint.gain * _means_of_items(joint, moments)
    sizes = [1, number, channels, number * number, number * channels]
    _, about, values, squares, products = (gathered / gathered[:, :1]).split(sizes, dim=1)
    variance = squares.view(len(squares), number, number) - about[:, :, None] * about[:, None, :]
    covariance = products.view(len(products), number, channels) - about[:, :, None] * values[:, None, :]
    variance = variance + ridge * torch.eye(number, dtype=rows.dtype, device=rows.device)
    slope = covariance / variance if number == 1 else torch.linalg.solve(variance, covariance)
    intercept = values - (slope * about[:, :, None]).sum(dim=1)
    target = joint.lattice.target
    model = operators.slice(torch.cat([slope.flatten(1), intercept], dim=1), target.vertices, target.barycentric)
    slopes = model[:, : number * channels].view(len(model), number, channels)
    return (slopes * (guide - center)[:, :, None]).sum(dim=1) + model[:, number * channels :] + offset


def _means_of_items(joint: Joint, moments: Tensor) -> Tensor:
    """The moments of all samples of the item that each lattice point belongs to, their mass one."""
    sums = moments.view(-1, math.prod(joint.grids.coarse), moments.shape[1]).sum(dim=1)
    means = sums / sums[:, :1].clamp_min(torch.finfo(sums.dtype).tiny)
    return means.index_select(0, joint.lattice.source.keys[:, 0])
