"""Foreground of a photo from a trimap: color mixtures and a dense CRF over their energies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

import permutohedral as ph
from permutohedral.errors import InputError

BACKGROUND, FOREGROUND = 0, 1
# extent in pixels of the blocks in which distances are measured
_BLOCK = 8
# energy of a label that a known pixel does not have
_KNOWN = 50.0
# white is 1; a level of an 8-bit file is about the square root
_MIN_VARIANCE = 1e-5
# sample of colors to fit
_MAX_COLORS = 2000


@dataclass(frozen=True)
class CutoutSettings:
    """Weights of the field.

    Attributes:
        colors: weight of the energies of the colors.
        foreground: additional energy of foreground at unknown pixels.
        sigma_space: of the bilateral kernel, in pixels.
        sigma_color: of the bilateral kernel; white is 1.
        bilateral: weight of the bilateral kernel.
        sigma_near: of the spatial kernel, in pixels.
        near: weight of the spatial kernel.
        steps: mean-field iterations.
        rounds: estimates of the colors, after the first one from the previous result.
    """

    colors: float = 0.01
    foreground: float = 0.0
    sigma_space: float = 6.0
    sigma_color: float = 0.04
    bilateral: float = 5.0
    sigma_near: float = 2.0
    near: float = 3.0
    steps: int = 5
    rounds: int = 1


@dataclass(frozen=True)
class Trimap:
    """Known pixels of a photo, all bool `[height, width]`.

    Attributes:
        background: known background, whose colors are fitted.
        foreground: known foreground; may be empty.
        unknown: pixels to decide. Pixels in none of the three are background.
    """

    background: Tensor
    foreground: Tensor
    unknown: Tensor


def cut_out(photo: Tensor, trimap: Trimap, settings: CutoutSettings, colors: Tensor | None = None) -> Tensor:
    """Return the probability of foreground, float32 `[height, width]`, of a photo `[3, height, width]`.

    `colors` are the `color_energies` of the first round, computed if None.

    >>> photo = torch.zeros(3, 20, 20)
    >>> photo[:, 5:15, 5:15] = 1
    >>> background, foreground = (torch.zeros(20, 20, dtype=torch.bool) for _ in range(2))
    >>> background[:3], foreground[9:11, 9:11] = True, True
    >>> marginal = cut_out(photo, Trimap(background, foreground, ~background & ~foreground), CutoutSettings())
    >>> int((marginal > 0.5).sum())
    100
    """
    near = near_unknown(trimap.unknown, 2 * settings.sigma_space)
    kernels = [kernel.with_lattice() for kernel in kernels_of(photo, near, settings)]
    found, marginal = first_foreground(trimap), trimap.foreground.to(photo.dtype)
    for _ in range(settings.rounds):
        colors = color_energies(photo, trimap, found) if colors is None else colors
        energies = energies_of(colors, trimap, settings.colors, settings.foreground)[:, near].T
        marginal[near] = ph.crf.mean_field(energies, kernels, num_iterations=settings.steps)[:, FOREGROUND]
        found, colors = marginal > 0.5, None
        if not bool(found.any()):
            break
    return marginal


def first_foreground(trimap: Trimap) -> Tensor:
    """Return the first estimate of the foreground: the known pixels, or else all unknown ones."""
    return trimap.foreground if bool(trimap.foreground.any()) else trimap.unknown


def near_unknown(unknown: Tensor, distance: float) -> Tensor:
    """Return pixels up to about `distance` from an unknown one, bool `[height, width]`.

    >>> near_unknown(torch.eye(40, dtype=torch.bool)[:1], 5.0).sum().item()
    16
    """
    height, width = unknown.shape
    blocks = max_pool2d(unknown[None].float(), _BLOCK, ceil_mode=True)
    reach = math.ceil(distance / _BLOCK)
    blocks = max_pool2d(blocks, 2 * reach + 1, stride=1, padding=reach)[0] > 0
    return blocks.repeat_interleave(_BLOCK, dim=0).repeat_interleave(_BLOCK, dim=1)[:height, :width]


def kernels_of(photo: Tensor, near: Tensor, settings: CutoutSettings) -> list[ph.crf.Kernel]:
    """Return the spatial and the bilateral kernel over the pixels of `near`, bool `[height, width]`."""
    chosen = near.flatten()
    height, width = near.shape
    positions = ph.features.positions((height, width), settings.sigma_near, device=photo.device, dtype=photo.dtype)
    joined = ph.features.bilateral(photo, sigma_space=settings.sigma_space, sigma_color=settings.sigma_color)
    return [
        ph.crf.Kernel(positions[chosen], settings.near),
        ph.crf.Kernel(joined[chosen], settings.bilateral),
    ]


def color_energies(photo: Tensor, trimap: Trimap, foreground: Tensor) -> Tensor:
    """Return energies of background and foreground at unknown pixels by color, float32 `[2, height, width]`.

    `foreground`, bool `[height, width]`, is the current estimate of the foreground.
    """
    if not bool(trimap.background.any()) or not bool(foreground.any()):
        raise InputError("trimap has no background, or no unknown or foreground pixels; mark both")
    colors = photo.permute(1, 2, 0)
    behind = trimap.background | (trimap.unknown & ~foreground if bool((trimap.unknown & foreground).any()) else False)
    mixtures = [fit_mixture(colors[behind]), fit_mixture(colors[foreground])]
    energies = photo.new_zeros(2, *trimap.unknown.shape)
    wanted = colors[trimap.unknown]
    energies[:, trimap.unknown] = torch.stack([-mixture.log_density(wanted) for mixture in mixtures]).to(photo.dtype)
    return energies


def energies_of(colors: Tensor, trimap: Trimap, weight: float | Tensor, foreground: float | Tensor) -> Tensor:
    """Return the unary energies `[2, height, width]` of known and unknown pixels.

    `weight` is that of the color energies, and `foreground` an additional energy of foreground.
    """
    known = torch.stack([trimap.foreground, ~trimap.foreground & ~trimap.unknown]).to(colors.dtype)
    weighted = torch.stack([weight * colors[BACKGROUND], weight * colors[FOREGROUND] + foreground])
    return torch.where(trimap.unknown, weighted, _KNOWN * known)


@dataclass(frozen=True)
class Mixture:
    """Mixture of Gaussians over colors.

    Attributes:
        log_factors: `[components]`, log density of each component at its mean.
        means: `[components, channels]`.
        whitening: `[components, channels, channels]`; differences from the mean times this have unit variance.
    """

    log_factors: Tensor
    means: Tensor
    whitening: Tensor

    def log_density(self, colors: Tensor) -> Tensor:
        """Return the log density `[colors]` of `[colors, channels]`."""
        return self.log_components(colors).logsumexp(dim=1)

    def log_components(self, colors: Tensor) -> Tensor:
        """Return the log density of each component, `[colors, components]`."""
        # one matrix product for all components
        components, channels = self.means.shape
        shifts = (self.means[:, None] @ self.whitening).reshape(1, -1)
        whitened = colors @ self.whitening.permute(1, 0, 2).reshape(channels, -1) - shifts
        return self.log_factors - whitened.reshape(-1, components, channels).square().sum(dim=2) / 2


def fit_mixture(colors: Tensor, components: int = 5, steps: int = 5) -> Mixture:
    """Fit a mixture to `[colors, channels]` by expectation maximization; the start is deterministic.

    >>> colors = torch.linspace(0, 0.1, 50)[:, None] + torch.tensor([0.0, 1.0])[:, None, None]
    >>> fit_mixture(colors.reshape(-1, 1), components=2).means.flatten()
    tensor([0.0500, 1.0500])
    """
    stride = max(1, math.ceil(len(colors) / _MAX_COLORS))
    some = colors[::stride].double()
    shares = torch.nn.functional.one_hot(split_clusters(some, components), components).double()
    mixture = _maximize(some, shares)
    for _ in range(steps):
        mixture = _maximize(some, mixture.log_components(some).softmax(dim=1))
    parts = (mixture.log_factors, mixture.means, mixture.whitening)
    return Mixture(*(part.to(colors.dtype) for part in parts))


def split_clusters(colors: Tensor, clusters: int) -> Tensor:
    """Return the cluster of each color, `[colors]`; the longest cluster is split at its mean repeatedly.

    >>> split_clusters(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2).tolist()
    [0, 0, 1, 1]
    """
    members = torch.zeros(len(colors), dtype=torch.long, device=colors.device)
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
    """Return the mixture for the given shares `[colors, components]`."""
    masses = shares.sum(dim=0).clamp_min(1e-9)
    means = shares.T @ colors / masses[:, None]
    products = (colors[:, :, None] * colors[:, None]).flatten(1)
    channels = colors.shape[1]
    second = (shares.T @ products / masses[:, None]).reshape(-1, channels, channels)
    covariances = second - means[:, :, None] * means[:, None]
    covariances = covariances + _MIN_VARIANCE * torch.eye(channels, dtype=colors.dtype, device=colors.device)
    factors = torch.linalg.cholesky(covariances)
    whitening = torch.linalg.inv(factors).mT
    logs = factors.diagonal(dim1=1, dim2=2).log().sum(dim=1)
    log_factors = (masses / masses.sum()).log() - logs - channels / 2 * math.log(2 * math.pi)
    return Mixture(log_factors, means, whitening)
