"""A field with parameters that are trained through its mean-field iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

import permutohedral as ph
from permutohedral.apps.jobs.cutout import CutoutSettings, Trimap, color_energies, cut_out, energies_of

# image, trimap, truth, and the pixels that count
Example = tuple[Tensor, Trimap, Tensor, Tensor]


class LearnedCutout(nn.Module):
    """Learn the weight of the colors, the cost of foreground, and weights and bandwidths of both kernels.

    Args:
        settings: initial values.
    """

    def __init__(self, settings: CutoutSettings) -> None:
        super().__init__()
        self.begin = settings
        self.log_colors = nn.Parameter(torch.tensor(settings.colors).log())
        self.foreground = nn.Parameter(torch.tensor(settings.foreground))
        self.field = ph.nn.DenseCRF(
            2,
            kernel_weights=(settings.near, settings.bilateral),
            sigma_smoothness=settings.sigma_near,
            sigma_space=settings.sigma_space,
            sigma_color=settings.sigma_color,
            num_iterations=settings.steps,
            learn_sigma=True,
        )

    def forward(self, photo: Tensor, trimap: Trimap, colors: Tensor) -> Tensor:
        """Return log-marginals `[2, height, width]`, given the energies of the colors."""
        energies = energies_of(colors, trimap, self.log_colors.exp(), self.foreground)
        logarithms: Tensor = self.field(-energies, photo)
        return logarithms

    def settings(self) -> CutoutSettings:
        """Return the learned settings."""
        sigma_near, sigma_space, sigma_color = self.field.log_sigma.detach().exp().tolist()
        near, bilateral = self.field.kernel_weights.detach().tolist()
        return replace(
            self.begin,
            colors=float(self.log_colors.detach().exp()),
            foreground=float(self.foreground.detach()),
            sigma_space=sigma_space,
            sigma_color=sigma_color,
            bilateral=bilateral,
            sigma_near=sigma_near,
            near=near,
        )


def make_loss(
    model: LearnedCutout, examples: Sequence[Example], steps: int, size: int, seed: int
) -> Callable[[int], Tensor]:
    """Return the loss of a step: the expected share of wrong pixels among the unknown ones, in a part of a photograph.

    Args:
        model: to train.
        examples: photographs, in turn.
        steps: number of steps.
        size: extent of the part in pixels.
        seed: of the parts.
    """
    generator = torch.Generator().manual_seed(seed)
    masks = [examples[step % len(examples)][1].unknown for step in range(steps)]
    parts = [_draw_part(unknown, size, generator) for unknown in masks]
    energies = [_colors(photo, trimap, model.begin) for photo, trimap, _, _ in examples]

    def loss(step: int) -> Tensor:
        number, part = step % len(examples), parts[step]
        photo, trimap, truth, counted = examples[number]
        logarithms = model(*crop(part, photo, trimap, energies[number]))
        wanted = (trimap.unknown & counted)[part]
        right = torch.where(truth[part], logarithms[1], logarithms[0])[wanted].exp()
        return (1 - right).mean()

    return loss


def crop(part: tuple[slice, slice], photo: Tensor, trimap: Trimap, colors: Tensor) -> tuple[Tensor, Trimap, Tensor]:
    """Crop image, trimap and energies."""
    masks = (mask[part] for mask in (trimap.background, trimap.foreground, trimap.unknown))
    return photo[:, part[0], part[1]], Trimap(*masks), colors[:, part[0], part[1]]


def _colors(photo: Tensor, trimap: Trimap, settings: CutoutSettings) -> Tensor:
    """Return the energies of the colors of the last round, before any training."""
    found = trimap.foreground if bool(trimap.foreground.any()) else cut_out(photo, trimap, settings) > 0.5
    return color_energies(photo, trimap, found if bool(found.any()) else trimap.unknown)


def _draw_part(unknown: Tensor, extent: int, generator: torch.Generator) -> tuple[slice, slice]:
    """Draw a part of the image around an unknown pixel."""
    places = unknown.nonzero()
    center = places[int(torch.randint(len(places), (), generator=generator))]
    corners = [
        max(0, min(int(place) - extent // 2, size - extent)) for place, size in zip(center, unknown.shape, strict=True)
    ]
    return slice(corners[0], corners[0] + extent), slice(corners[1], corners[1] + extent)
