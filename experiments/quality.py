"""Image-quality metrics."""

from __future__ import annotations

from torch import Tensor


def psnr(image: Tensor, clean: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB for a peak of 1, in float64.

    >>> import torch
    >>> psnr(torch.full((2, 2), 0.1), torch.zeros(2, 2))
    20.0
    """
    return round(mean_psnr((image.detach().double() - clean.double()).square().mean()), 6)


def mean_psnr(squared_errors: Tensor) -> float:
    """Return the mean PSNR in dB for a peak of 1, given the mean squared error of each image.

    >>> import torch
    >>> mean_psnr(torch.tensor([0.01, 0.0001], dtype=torch.float64))
    30.0
    """
    return float(-10 * squared_errors.log10().mean())


def relative_error(result: Tensor, truth: Tensor) -> float:
    """Return ||result - truth|| / ||truth|| in float64.

    >>> import torch
    >>> relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
    0.1
    """
    result, truth = result.double(), truth.double()
    return float((result - truth).norm() / truth.norm().clamp_min(1e-300))
