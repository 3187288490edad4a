"""Cutting an object out of a photograph: mixtures of colors, and a dense conditional random field over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.models.color_mixture import fit_mixture

BACKGROUND, FOREGROUND = 0, 1
# distances from unknown pixels are taken in blocks of so many pixels
_BLOCK = 8
# what the label costs that a pixel is known not to have
_KNOWN = 50.0


@dataclass(frozen=True)
class CutoutSettings:
    """How the parts of the field are weighted.

    Attributes:
        colors: weight of the energies of the colors.
        foreground: what being foreground costs an unknown pixel besides.
        sigma_space: of the bilateral kernel, in pixels.
        sigma_range: of the bilateral kernel, white being 1.
        bilateral: weight of the bilateral kernel.
        sigma_near: of the spatial kernel, in pixels.
        near: weight of the spatial kernel.
        steps: of the mean field.
        rounds: how often the colors are estimated; after the first time from the result of the round before.
    """

    colors: float = 0.01
    foreground: float = 0.0
    sigma_space: float = 6.0
    sigma_range: float = 0.04
    bilateral: float = 5.0
    sigma_near: float = 2.0
    near: float = 3.0
    steps: int = 5
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


def cut_out(photo: Tensor, trimap: Trimap, settings: CutoutSettings, colors: Tensor | None = None) -> Tensor:
    """The probability of being foreground, float32 `[height, width]`.

    Args:
        photo: `[3, height, width]` between 0 and 1.
        trimap: what is known.
        settings: how to weight it.
        colors: `color_energies` of the first round, if they are known already.

    >>> photo = torch.zeros(3, 20, 20)
    >>> photo[:, 5:15, 5:15] = 1
    >>> background, foreground = (torch.zeros(20, 20, dtype=torch.bool) for _ in range(2))
    >>> background[:3], foreground[9:11, 9:11] = True, True
    >>> marginal = cut_out(photo, Trimap(background, foreground, ~background & ~foreground), CutoutSettings())
    >>> int((marginal > 0.5).sum())
    100
    """
    near = near_unknown(trimap.unknown, 2 * settings.sigma_space)
    kernels = kernels_of(photo, near, settings)
    lattices = [kernel.build_lattice() for kernel in kernels]
    found, marginal = first_foreground(trimap), trimap.foreground.to(photo.dtype)
    for _ in range(settings.rounds):
        colors = color_energies(photo, trimap, found) if colors is None else colors
        energies = energies_of(colors, trimap, settings.colors, settings.foreground)[:, near].T
        marginal[near] = ph.crf.mean_field(energies, kernels, settings.steps, lattices=lattices)[:, FOREGROUND]
        found, colors = marginal > 0.5, None
        if not bool(found.any()):
            break
    return marginal


def first_foreground(trimap: Trimap) -> Tensor:
    """The pixels whose colors are those of the foreground at the beginning: the known ones, else all unknown ones."""
    return trimap.foreground if bool(trimap.foreground.any()) else trimap.unknown


def near_unknown(unknown: Tensor, distance: float) -> Tensor:
    """Pixels that are unknown, or not much farther from one than `distance`: bool `[height, width]`.

    Known pixels farther away hardly matter.

    >>> near_unknown(torch.eye(40, dtype=torch.bool)[:1], 5.0).sum().item()
    16
    """
    height, width = unknown.shape
    blocks = max_pool2d(unknown[None].float(), _BLOCK, ceil_mode=True)
    reach = math.ceil(distance / _BLOCK)
    blocks = max_pool2d(blocks, 2 * reach + 1, stride=1, padding=reach)[0] > 0
    return blocks.repeat_interleave(_BLOCK, dim=0).repeat_interleave(_BLOCK, dim=1)[:height, :width]


def kernels_of(photo: Tensor, near: Tensor, settings: CutoutSettings) -> list[ph.crf.Kernel]:
    """The spatial and the bilateral kernel over the pixels of `near`, bool `[height, width]`."""
    chosen = near.flatten()
    height, width = near.shape
    positions = ph.position_features(height, width, settings.sigma_near, device=photo.device, dtype=photo.dtype)
    joined = ph.bilateral_features(photo, settings.sigma_space, settings.sigma_range)
    return [
        ph.crf.Kernel(positions[chosen], settings.near),
        ph.crf.Kernel(joined[chosen], settings.bilateral),
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


def energies_of(colors: Tensor, trimap: Trimap, weight: float | Tensor, foreground: float | Tensor) -> Tensor:
    """The energies of a field `[2, height, width]`: those of the colors where a pixel is unknown.

    Args:
        colors: from `color_energies`.
        trimap: what is known.
        weight: of the colors.
        foreground: what being foreground costs besides.
    """
    known = torch.stack([trimap.foreground, ~trimap.foreground & ~trimap.unknown]).to(colors.dtype)
    weighted = torch.stack([weight * colors[BACKGROUND], weight * colors[FOREGROUND] + foreground])
    return torch.where(trimap.unknown, weighted, _KNOWN * known)
