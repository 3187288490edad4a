"""Scenes: a cloud with what a network reads at its points, crops of it to train on, and tiles to apply a network to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from permutohedral.clouds.ground import heights_above_ground
from permutohedral.errors import InputError

# in meters, widths of what is taken off the ground, bushes, trees and houses, halls; and of cells to look for it
WINDOWS = ((4.0, 1.0), (16.0, 2.0), (40.0, 2.0))
VALUE_CHANNELS = len(WINDOWS) + 2
# of classes that are not counted
UNKNOWN = -1
# points a square meter: denser clouds are thinned out to learn from, and dealt into several to be classified, so that a
# network knows the density of what it sees
DENSEST = 12.0
# what heights are measured from
Above = Literal["ground", "median", "nothing"]
# side in meters of the squares by which areas are measured
_SQUARE = 2.0


@dataclass(frozen=True)
class Scene:
    """Points with their heights above the ground.

    Attributes:
        positions: float32 `[points, 3]`, meters, from anywhere near.
        heights: float32 `[points, windows]`, meters above the ground, one for each of `WINDOWS`.
        labels: int64 `[points]`, classes, -1 where they are not known; None if none is.
    """

    positions: Tensor
    heights: Tensor
    labels: Tensor | None = None

    def select(self, chosen: Tensor) -> Scene:
        """Some of the points, by number or by a mask."""
        labels = None if self.labels is None else self.labels[chosen]
        return Scene(self.positions[chosen], self.heights[chosen], labels)

    def to(self, device: torch.device) -> Scene:
        """The same scene on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Scene(self.positions.to(device), self.heights.to(device), labels)

    def values(self) -> Tensor:
        """What a network reads at each point, `[points, VALUE_CHANNELS]`: heights, and what is near the ground."""
        near = self.heights[:, :2].clamp(-1.0, 2.0)
        return torch.cat([self.heights.clamp(-2.0, 40.0) / 10, near], dim=1)


def make_scene(positions: Tensor, labels: Tensor | None = None, above: Above = "ground") -> Scene:
    """The scene of a whole cloud.

    Args:
        positions: `[points, 3]`, meters, float64 if they are far from the origin.
        labels: int64 `[points]`, -1 where they are not known.
        above: heights are above the ground, which is looked for; or above the median of the cloud; or, with "nothing",
            all zero, so that a network has the positions alone.

    >>> make_scene(torch.rand(100, 3, dtype=torch.float64) * 30 + 5e5).heights.shape
    torch.Size([100, 3])
    """
    if len(positions):
        positions = positions - (positions.amin(dim=0) + positions.amax(dim=0)) / 2
    near = positions.float()
    if above == "nothing":
        return Scene(near, near.new_zeros(len(near), len(WINDOWS)), labels)
    if above == "median":
        # the middle of all points, which a few far below do not move
        heights = near[:, 2:] - near[:, 2].median() if len(near) else near[:, 2:]
        return Scene(near, heights.repeat(1, len(WINDOWS)), labels)
    heights = torch.stack([heights_above_ground(near, *window) for window in WINDOWS], dim=1)
    return Scene(near, heights, labels)


def density_of(positions: Tensor) -> float:
    """Points a square meter, where there are any.

    >>> round(density_of(torch.rand(1000, 3) * 10), 1)
    10.0
    """
    if not len(positions):
        return 0.0
    places = ((positions[:, :2] - positions[:, :2].amin(dim=0)) / _SQUARE).floor().long()
    occupied = torch.unique(places[:, 0] * (places[:, 1].amax() + 1) + places[:, 1])
    return len(positions) / (len(occupied) * _SQUARE**2)


@dataclass(frozen=True)
class Cropping:
    """How crops are cut out of scenes and varied.

    Attributes:
        smallest: side in meters of the smallest square.
        largest: and of the largest.
        points: at most so many are kept of a crop, drawn at random.
        sparsest: points a square meter; crops are thinned out to a density from here on
        densest: up to here, if they have so many.
        scale: sizes vary by this share up and down.
        jitter: standard deviation of the noise on positions, in meters.
        lift: standard deviation of what is added to all heights of a crop, in meters.
        turn: rotate about the vertical, and mirror.
    """

    smallest: float = 30.0
    largest: float = 50.0
    points: int = 20_000
    sparsest: float = 1.5
    densest: float = DENSEST
    scale: float = 0.1
    jitter: float = 0.02
    lift: float = 0.1
    turn: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest:
            raise InputError(f"crops need 0 < smallest <= largest, got {self.smallest} and {self.largest}")
        if self.points < 1 or not 0 < self.sparsest <= self.densest:
            raise InputError(
                "crops need points >= 1 and 0 < sparsest <= densest, "
                f"got {self.points}, {self.sparsest} and {self.densest}"
            )


def draw_crop(scene: Scene, cropping: Cropping, generator: torch.Generator) -> Scene:
    """A square around a point whose class is known, turned, scaled, thinned out.

    Args:
        scene: with labels.
        cropping: how.
        generator: of random numbers, on the device of the scene.

    Returns:
        A scene around the origin, with at least one point whose class is known unless thinning lost it.
    """
    assert scene.labels is not None
    device = scene.positions.device
    # in one transfer: side, turn, mirror, share, scale, lift
    drawn = torch.rand(6, generator=generator, device=device)
    chances = drawn.tolist()
    center = _draw_known(scene.positions, scene.labels, generator)
    side = cropping.smallest + (cropping.largest - cropping.smallest) * chances[0]
    angle = 2 * math.pi * chances[1] if cropping.turn else 0.0
    cosine, sine = math.cos(angle), math.sin(angle)
    mirror = -1.0 if cropping.turn and chances[2] < 0.5 else 1.0
    rotation = torch.tensor([[cosine * mirror, sine], [-sine * mirror, cosine]], device=device)
    flat = (scene.positions[:, :2] - center) @ rotation
    inside = (flat.abs() < side / 2).all(dim=1).nonzero()[:, 0]
    wanted = cropping.sparsest * (cropping.densest / cropping.sparsest) ** chances[3]
    kept = min(wanted / max(density_of(flat[inside]), 1e-6), cropping.points / max(len(inside), 1))
    if kept < 1:
        inside = inside[torch.rand(len(inside), generator=generator, device=device) < kept]
    scale = 1 + cropping.scale * (2 * chances[4] - 1)
    up = scene.positions[inside, 2:]
    positions = torch.cat([flat[inside], up - up.mean()], dim=1) * scale
    noise = cropping.jitter * torch.randn(positions.shape, generator=generator, device=device)
    lift = cropping.lift * math.sqrt(12) * (chances[5] - 0.5)
    heights = scene.heights[inside] * scale + noise[:, 2:] + lift
    return Scene(positions + noise, heights, scene.labels[inside])


def _draw_known(positions: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Where a point lies whose class is known, `[2]`."""
    chances = torch.rand(len(labels), generator=generator, device=labels.device)
    return positions[torch.where(labels != UNKNOWN, chances, -1.0).argmax(), :2]


def join(scenes: Sequence[Scene]) -> tuple[Scene, Tensor]:
    """Several scenes as a ragged batch: one scene, and the item of each point, int32 `[points]`."""
    device = scenes[0].positions.device
    sizes = torch.tensor([len(scene.positions) for scene in scenes], device=device)
    item = torch.repeat_interleave(torch.arange(len(scenes), device=device, dtype=torch.int32), sizes)
    labels = [scene.labels for scene in scenes if scene.labels is not None]
    positions, heights = (torch.cat([getattr(scene, name) for scene in scenes]) for name in ("positions", "heights"))
    return Scene(positions, heights, torch.cat(labels) if len(labels) == len(scenes) else None), item


def cut_tiles(positions: Tensor, side: float, margin: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Squares that cover a cloud, with what lies around each.

    Args:
        positions: `[points, 3]`.
        side: of a square, in meters.
        margin: how far around it.

    Yields:
        The numbers of the points of a square with its margin, int64, and which of them are in the square itself, bool.
        Every point is in the square of exactly one.

    >>> cloud = torch.rand(1000, 3) * 100
    >>> sorted(torch.cat([points[own] for points, own in cut_tiles(cloud, 40.0, 10.0)]).tolist()) == list(range(1000))
    True
    """
    if not len(positions):
        return
    flat = positions[:, :2] - positions[:, :2].amin(dim=0)
    place = (flat / side).floor()
    for row in place[:, 0].unique().tolist():
        low, high = row * side - margin, (row + 1) * side + margin
        strip = ((flat[:, 0] >= low) & (flat[:, 0] < high)).nonzero()[:, 0]
        within, of_strip = flat[strip], place[strip]
        for column in of_strip[of_strip[:, 0] == row][:, 1].unique().tolist():
            low, high = column * side - margin, (column + 1) * side + margin
            near = ((within[:, 1] >= low) & (within[:, 1] < high)).nonzero()[:, 0]
            own = (of_strip[near] == of_strip.new_tensor([row, column])).all(dim=1)
            yield strip[near], own
