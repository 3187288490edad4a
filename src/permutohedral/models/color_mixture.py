"""Mixtures of Gaussians over colors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# colors are given with white as 1; no component is narrower than about a level of the file
_LEAST_VARIANCE = 1e-5
# more colors change a mixture of this size very little
_MOST_COLORS = 2000


@dataclass(frozen=True)
class Mixture:
    """A density over colors.

    Attributes:
        log_factors: `[components]`, the logarithm of each component at its mean.
        means: `[components, channels]`.
        whitening: `[components, channels, channels]`: differences from the mean times this are of unit variance.
    """

    log_factors: Tensor
    means: Tensor
    whitening: Tensor

    def log_density(self, colors: Tensor) -> Tensor:
        """`[colors, channels]` to `[colors]`."""
        return self.log_components(colors).logsumexp(dim=1)

    def log_components(self, colors: Tensor) -> Tensor:
        """The share of each component: `[colors, components]`."""
        # the whitened difference is linear in the color: one product of matrices for all components
        components, channels = self.means.shape
        shifts = (self.means[:, None] @ self.whitening).reshape(1, -1)
        whitened = colors @ self.whitening.permute(1, 0, 2).reshape(channels, -1) - shifts
        return self.log_factors - whitened.reshape(-1, components, channels).square().sum(dim=2) / 2


def fit_mixture(colors: Tensor, components: int = 5, steps: int = 5) -> Mixture:
    """Fit by expectation maximization, from clusters that are split where they are longest. Nothing is random.

    Args:
        colors: `[colors, channels]`, at least one.
        components: number of Gaussians, with full covariances.
        steps: of expectation maximization.

    >>> colors = torch.linspace(0, 0.1, 50)[:, None] + torch.tensor([0.0, 1.0])[:, None, None]
    >>> fit_mixture(colors.reshape(-1, 1), components=2).means.flatten()
    tensor([0.0500, 1.0500])
    """
    stride = max(1, math.ceil(len(colors) / _MOST_COLORS))
    some = colors[::stride].double()
    shares = torch.nn.functional.one_hot(split_clusters(some, components), components).double()
    mixture = _maximize(some, shares)
    for _ in range(steps):
        mixture = _maximize(some, mixture.log_components(some).softmax(dim=1))
    parts = (mixture.log_factors, mixture.means, mixture.whitening)
    return Mixture(*(part.to(colors.dtype) for part in parts))


def split_clusters(colors: Tensor, clusters: int) -> Tensor:
    """The cluster of each color, `[colors]`: the longest one is cut through its mean until there are enough.

    >>> split_clusters(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2).tolist()
    [0, 0, 1, 1]
    """
    members = torch.zeros(len(colors), dtype=torch.long)
    for new in range(1, clusters):
        lengths, axes, means = [], [], []
        for cluster in range(new):
            inside = colors[members == cluster]
            means.append(inside.mean(dim=0) if len(inside) else torch.zeros_like(colors[0]))
            centered = inside - means[-1]
            values, vectors = torch.linalg.eigh(centered.T @ centered)
            lengths.append(float(values[-1]))
            # the sign of an eigenvector is arbitrary
            axes.append(vectors[:, -1] * torch.where(vectors[:, -1].sum() < 0, -1.0, 1.0))
        longest = max(range(new), key=lengths.__getitem__)
        beyond = (colors - means[longest]) @ axes[longest] > 0
        members[(members == longest) & beyond] = new
    return members


def _maximize(colors: Tensor, shares: Tensor) -> Mixture:
    """The Gaussians of which each color has the given shares `[colors, components]`."""
    masses = shares.sum(dim=0).clamp_min(1e-9)
    means = shares.T @ colors / masses[:, None]
    products = (colors[:, :, None] * colors[:, None]).flatten(1)
    channels = colors.shape[1]
    second = (shares.T @ products / masses[:, None]).reshape(-1, channels, channels)
    covariances = second - means[:, :, None] * means[:, None]
    covariances = covariances + _LEAST_VARIANCE * torch.eye(channels, dtype=colors.dtype)
    factors = torch.linalg.cholesky(covariances)
    whitening = torch.linalg.inv(factors).mT
    logs = factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    log_factors = (masses / masses.sum()).log() - logs - channels / 2 * math.log(2 * math.pi)
    return Mixture(log_factors, means, whitening)
