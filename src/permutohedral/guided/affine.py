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


def affine_model(joint: Joint, rows: Tensor, weights: Tensor, guides: tuple[Tensor, Tensor], ridge: float) -> Tensor:
    """Values at all targets.

    Args:
        joint: the lattice under coarse samples and targets.
        rows: values of the coarse samples, `[rows, channels]`.
        weights: how much they count, `[rows, 1]`.
        guides: of the coarse samples and of the targets, `[rows or target rows, guide channels]`.
        ridge: added to the variances of the guide; the larger, the flatter the function.

    Returns:
        `[target rows, channels]`.
    """
    coarse_guide, guide = guides
    number, channels = guide.shape[1], rows.shape[1]
    # moments about the means of all samples of an item keep digits
    center, offset = (_mean_of_items(joint, each, weights) for each in (coarse_guide, rows))
    samples, pixels = math.prod(joint.grids.coarse), math.prod(joint.grids.fine)
    about, values = coarse_guide - _repeat(center, samples), rows - _repeat(offset, samples)
    squares, products = about[:, :, None] * about[:, None, :], about[:, :, None] * values[:, None, :]
    moments = torch.cat([torch.ones_like(weights), about, values, squares.flatten(1), products.flatten(1)], dim=1)
    moments = moments * weights
    gathered = joint.gather(moments) + _PRIOR * joint.gain * _moments_of_items(joint, moments)
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
    guide = guide - _repeat(center, pixels)
    return (slopes * guide[:, :, None]).sum(dim=1) + model[:, number * channels :] + _repeat(offset, pixels)


def _mean_of_items(joint: Joint, rows: Tensor, weights: Tensor) -> Tensor:
    """The mean of all samples of each item, `[items, channels]`, without derivatives."""
    samples = math.prod(joint.grids.coarse)
    items = len(rows) // samples
    rows, weights = rows.detach().view(items, samples, rows.shape[1]), weights.detach().view(items, samples, 1)
    return (rows * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)


def _repeat(numbers: Tensor, times: int) -> Tensor:
    """Numbers of items at each of their rows."""
    return numbers if len(numbers) == 1 else numbers.repeat_interleave(times, dim=0)


def _moments_of_items(joint: Joint, moments: Tensor) -> Tensor:
    """The moments of all samples of the item that each lattice point belongs to, their mass one."""
    sums = moments.view(-1, math.prod(joint.grids.coarse), moments.shape[1]).sum(dim=1)
    means = sums / sums[:, :1].clamp_min(torch.finfo(sums.dtype).tiny)
    return means.index_select(0, joint.lattice.source.keys[:, 0])
