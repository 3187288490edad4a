"""Cutting an object out of a photograph: mixtures of colors, and a dense conditional random field over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.models.color_mixture import fit_mixture

BACKGROUND, FOREGROUND = 0, 1
# what the label costs that a pixel is known not to have
_KNOWN = 50.0


@dataclass(frozen=True)
class CutoutSettings:
    """How the parts of the field are weighted.

    Attributes:
        colors: weight of the energies of the colors.
        sigma_space: of the bilateral kernel, in pixels.
        sigma_range: of the bilateral kernel, white being 1.
        bilateral: weight of the bilateral kernel.
        sigma_near: of the spatial kernel, in pixels.
        near: weight of the spatial kernel.
        steps: of the mean field.
        rounds: how often the colors are estimated; after the first time from the result of the round before.
    """

    colors: float = 0.06
    sigma_space: float = 15.0
    sigma_range: float = 0.016
    bilateral: float = 10.0
    sigma_near: float = 2.0
    near: float = 3.0
    steps: int = 10
    rounds: int = 1


@dataclass(frozen=True)
class Trimap:
    """What is known of a photograph, all bool `[height, width]`.

    Attributes:
        background: known, and used to learn its colors.
        foreground: known; may be empty.
        unknown: what is to be decided. Pixels that are none of these are background.
    """

    background: Tensor
    foreground: Tensor
    unknown: Tensor


def cut_out(photo: Tensor, trimap: Trimap, settings: CutoutSettings) -> Tensor:
    """The probability of being foreground, float32 `[height, width]`.

    Args:
        photo: `[3, height, width]` between 0 and 1.
        trimap: what is known.
        settings: how to weight it.

    >>> photo = torch.zeros(3, 20, 20)
    >>> photo[:, 5:15, 5:15] = 1
    >>> background, foreground = (torch.zeros(20, 20, dtype=torch.bool) for _ in range(2))
    >>> background[:3], foreground[9:11, 9:11] = True, True
    >>> marginal = cut_out(photo, Trimap(background, foreground, ~background & ~foreground), CutoutSettings())
    >>> int((marginal > 0.5).sum())
    100
    """
    kernels = kernels_of(photo, settings)
    lattices = [kernel.build_lattice() for kernel in kernels]
    marginal = trimap.foreground.float() if bool(trimap.foreground.any()) else trimap.unknown.float()
    for _ in range(settings.rounds):
        energies = energies_of(color_energies(photo, trimap, marginal > 0.5), trimap, settings.colors)
        marginal = ph.crf.mean_field(energies, kernels, settings.steps, lattices=lattices)[FOREGROUND]
        if not bool((marginal > 0.5).any()):
            break
    return marginal


def kernels_of(photo: Tensor, settings: CutoutSettings) -> list[ph.crf.Kernel]:
    """The spatial and the bilateral kernel."""
    _, height, width = photo.shape
    return [
        ph.crf.spatial_kernel((height, width), settings.sigma_near, settings.near),
        ph.crf.bilateral_kernel(photo, settings.sigma_space, settings.sigma_range, settings.bilateral),
    ]


def color_energies(photo: Tensor, trimap: Trimap, foreground: Tensor) -> Tensor:
    """What the color of each unknown pixel costs as background and as foreground: float32 `[2, height, width]`.

    Args:
        photo: `[3, height, width]`.
        trimap: the colors of its background are those of the background.
        foreground: bool `[height, width]`, the pixels whose colors are those of the foreground.
    """
    if not bool(trimap.background.any()) or not bool(foreground.any()):
        raise InputError("the trimap marks no background, or leaves nothing to be the foreground")
    colors = photo.permute(1, 2, 0)
    behind = trimap.background | (trimap.unknown & ~foreground if bool((trimap.unknown & foreground).any()) else False)
    mixtures = [fit_mixture(colors[behind]), fit_mixture(colors[foreground])]
    energies = photo.new_zeros(2, *trimap.unknown.shape)
    wanted = colors[trimap.unknown]
    energies[:, trimap.unknown] = torch.stack([-mixture.log_density(wanted) for mixture in mixtures]).to(photo.dtype)
    return energies


def energies_of(colors: Tensor, trimap: Trimap, weight: float | Tensor) -> Tensor:
    """The energies of a field `[2, height, width]`: those of the colors where a pixel is unknown."""
    known = torch.stack([trimap.foreground, ~trimap.foreground & ~trimap.unknown]).to(colors.dtype)
    return torch.where(trimap.unknown, weight * colors, _KNOWN * known)
