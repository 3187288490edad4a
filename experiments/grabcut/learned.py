"""A field with parameters that are trained through its mean-field iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.results import FORBID_EXTRA
from permutohedral.errors import InputError
from permutohedral.models.cutout import CutoutSettings, Trimap, color_energies, cut_out, energies_of

# image, trimap, truth, and the pixels that count
Example = tuple[Tensor, Trimap, Tensor, Tensor]


@dataclass(frozen=True, config=FORBID_EXTRA)
class FieldTraining:
    """How to train.

    Attributes:
        steps: of the optimizer, each with a part of one photograph.
        learning_rate: at the start; it falls to zero along a cosine.
        crop: extent of the part in pixels.
    """

    steps: int
    learning_rate: float = 0.05
    crop: int = 160

    def __post_init__(self) -> None:
        if self.steps < 0 or self.crop < 1 or not self.learning_rate > 0:
            raise InputError(f"steps, learning_rate and crop must be positive, got {self}")


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
            (settings.near, settings.bilateral),
            settings.sigma_near,
            settings.sigma_space,
            settings.sigma_range,
            steps=settings.steps,
            learn_sigma=True,
        )

    def forward(self, photo: Tensor, trimap: Trimap, colors: Tensor) -> Tensor:
        """Return log-marginals `[2, height, width]`, given the energies of the colors."""
        energies = energies_of(colors, trimap, self.log_colors.exp(), self.foreground)
        logarithms: Tensor = self.field(-energies, photo)
        return logarithms

    def settings(self) -> CutoutSettings:
        """Return the learned settings."""
        sigma_near, sigma_space, sigma_range = self.field.log_sigma.detach().exp().tolist()
        near, bilateral = self.field.weights.detach().tolist()
        return replace(
            self.begin,
            colors=float(self.log_colors.detach().exp()),
            foreground=float(self.foreground.detach()),
            sigma_space=sigma_space,
            sigma_range=sigma_range,
            bilateral=bilateral,
            sigma_near=sigma_near,
            near=near,
        )


def train(model: LearnedCutout, examples: Sequence[Example], settings: FieldTraining, seed: int) -> None:
    """Minimize the expected share of wrong pixels among the unknown ones, on parts of the photographs."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.steps))
    energies = [_colors(photo, trimap, model.begin) for photo, trimap, _, _ in examples]
    for step in range(settings.steps):
        number = step % len(examples)
        photo, trimap, truth, counted = examples[number]
        part = _draw_part(trimap.unknown, settings.crop, generator)
        logarithms = model(*crop(part, photo, trimap, energies[number]))
        wanted = (trimap.unknown & counted)[part]
        right = torch.where(truth[part], logarithms[1], logarithms[0])[wanted].exp()
        optimizer.zero_grad()
        (1 - right).mean().backward()
        optimizer.step()
        schedule.step()


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
