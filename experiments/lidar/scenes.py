"""Scenes: point clouds with heights above the ground, and crops for training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.apps.jobs.cloud_tiles import DENSEST, measure_density
from permutohedral.errors import InputError

# (window, cell) in meters: structures narrower than the window count as standing on the ground: bushes, houses, halls
WINDOWS = ((4.0, 1.0), (16.0, 2.0), (40.0, 2.0))
VALUE_CHANNELS = len(WINDOWS) + 2
# label of points that are not counted
UNKNOWN = -1
# what heights are measured from
Above = Literal["ground", "median", "nothing"]

# the lowest points of a cell are outliers: light through glass seems to come from below
_OUTLIER_SHARE = 0.05
# a cell is an outlier if it lies this many meters below all but this many cells around it
_OUTLIER_DEPTH, _OUTLIER_COUNT, _OUTLIER_RADIUS = 1.0, 6, 4
# elements of the windows that are sorted in one call
_WINDOW_ELEMENTS = 1 << 24
_MAX_CELLS = 1 << 28


@dataclass(frozen=True)
class Scene:
    """Points with their heights above the ground.

    Attributes:
        positions: float32 `[points, 3]`, meters, near the origin.
        heights: float32 `[points, windows]`, meters above the ground, one for each of `WINDOWS`.
        labels: int64 `[points]`, classes, -1 where unknown; None if all are.
    """

    positions: Tensor
    heights: Tensor
    labels: Tensor | None = None

    def select(self, chosen: Tensor) -> Scene:
        """Return some of the points, by index or mask."""
        labels = None if self.labels is None else self.labels[chosen]
        return Scene(self.positions[chosen], self.heights[chosen], labels)

    def to(self, device: torch.device) -> Scene:
        """Move to a device."""
        labels = None if self.labels is None else self.labels.to(device)
        return Scene(self.positions.to(device), self.heights.to(device), labels)

    def values(self) -> Tensor:
        """Return the input of a network, `[points, VALUE_CHANNELS]`: heights, and finer ones near the ground."""
        near = self.heights[:, :2].clamp(-1.0, 2.0)
        return torch.cat([self.heights.clamp(-2.0, 40.0) / 10, near], dim=1)


def make_scene(positions: Tensor, labels: Tensor | None = None, above: Above = "ground") -> Scene:
    """Make the scene of a whole cloud.

    Args:
        positions: `[points, 3]`, meters, float64 if they are far from the origin.
        labels: int64 `[points]`, -1 where unknown.
        above: measure heights above the estimated ground, above the median height, or set them to zero ("nothing").

    >>> make_scene(torch.rand(100, 3, dtype=torch.float64) * 30 + 5e5).heights.shape
    torch.Size([100, 3])
    """
    if len(positions):
        positions = positions - (positions.amin(dim=0) + positions.amax(dim=0)) / 2
    near = positions.float()
    if above == "nothing":
        return Scene(near, near.new_zeros(len(near), len(WINDOWS)), labels)
    if above == "median":
        heights = near[:, 2:] - near[:, 2].median() if len(near) else near[:, 2:]
        return Scene(near, heights.repeat(1, len(WINDOWS)), labels)
    heights = torch.stack([heights_above_ground(near, *window) for window in WINDOWS], dim=1)
    return Scene(near, heights, labels)


def heights_above_ground(positions: Tensor, window: float, cell: float = 2.0) -> Tensor:
    """Return the height of each point `[points, 3]` above the estimated ground; the last coordinate is up.

    The lowest points of square cells are a rough terrain with houses and trees. A morphological opening removes
    structures narrower than the window, and keeps slopes. Window and side of the cells are in meters.

    >>> flat = torch.cat([torch.rand(4000, 2) * 40, torch.zeros(4000, 1)], dim=1)
    >>> roof = torch.cat([torch.rand(500, 2) * 9 + 10, torch.full((500, 1), 6.0)], dim=1)
    >>> heights = heights_above_ground(torch.cat([flat, roof]), window=16.0)
    >>> float(heights[:4000].abs().max()), float(heights[4000:].min())
    (0.0, 6.0)
    """
    if not len(positions):
        return positions.new_zeros(0)
    with torch.no_grad():
        low, corner = _lowest_points(positions, cell)
        low = _remove_outliers(low)
        radius = max(round(window / 2 / cell), 1)
        eroded = -_dilate(-low, radius)
        # a window without points has no ground
        opened = _dilate(torch.where(eroded.isinf(), -math.inf, eroded), radius)
        return positions[:, 2] - _interpolate(_smooth(opened), (positions[:, :2] - corner) / cell)


def _lowest_points(positions: Tensor, cell: float) -> tuple[Tensor, Tensor]:
    """Return the low height of each cell `[rows, columns]`, infinite without points, and the corner of the grid."""
    corner = positions[:, :2].amin(dim=0)
    place = ((positions[:, :2] - corner) / cell).floor().long()
    rows, columns = (int(number) + 1 for number in place.amax(dim=0))
    if rows * columns > _MAX_CELLS:
        raise InputError(
            f"the cloud spans {rows * cell:.0f} by {columns * cell:.0f} meters; remove points that are far from all "
            "others, or cut it into parts"
        )
    number = place[:, 0] * columns + place[:, 1]
    order = positions[:, 2].argsort()
    order = order[number[order].argsort(stable=True)]
    members = torch.bincount(number, minlength=rows * columns)
    first = members.cumsum(0) - members + (members * _OUTLIER_SHARE).long()
    low = positions.new_full((rows * columns,), math.inf)
    occupied = members > 0
    low[occupied] = positions[order[first[occupied]], 2]
    return low.view(rows, columns), corner


def _remove_outliers(low: Tensor) -> Tensor:
    """Set cells that are far below the cells around them to infinity."""
    size = 2 * _OUTLIER_RADIUS + 1
    padded = F.pad(low, (_OUTLIER_RADIUS,) * 4, value=math.inf)
    chunk = max(_WINDOW_ELEMENTS // (size * size * low.shape[1]), 1)
    kept = []
    for first in range(0, low.shape[0], chunk):
        rows = low[first : first + chunk]
        around = padded[first : first + len(rows) + size - 1].unfold(0, size, 1).unfold(1, size, 1)
        others = around.flatten(2).kthvalue(_OUTLIER_COUNT + 1, dim=2).values
        kept.append(torch.where(others.isfinite() & (rows < others - _OUTLIER_DEPTH), math.inf, rows))
    return torch.cat(kept)


def _dilate(grid: Tensor, radius: int) -> Tensor:
    """Return the maximum in a square window around each cell."""
    grid = grid[None]
    for kernel, padding in (((2 * radius + 1, 1), (radius, 0)), ((1, 2 * radius + 1), (0, radius))):
        grid = F.max_pool2d(grid, kernel, stride=1, padding=padding)
    return grid[0]


def _smooth(grid: Tensor) -> Tensor:
    """Return the mean of each cell and the known cells around it."""
    known = grid.isfinite()
    both = torch.stack([torch.where(known, grid, 0.0), known.to(grid.dtype)])
    total, number = F.avg_pool2d(both, 3, stride=1, padding=1, divisor_override=1)
    return torch.where(known, total / number.clamp_min(1), grid)


def _interpolate(grid: Tensor, places: Tensor) -> Tensor:
    """Interpolate linearly between the centers of known cells; places are in units of cells."""
    rows, columns = grid.shape
    limit = torch.tensor([rows - 1, columns - 1], device=grid.device, dtype=places.dtype)
    places = torch.minimum((places - 0.5).clamp_min(0), limit)
    base = places.floor()
    share = places - base
    result = torch.zeros_like(places[:, 0])
    known = torch.zeros_like(result)
    for row in (0, 1):
        for column in (0, 1):
            at = torch.minimum(base + base.new_tensor([row, column]), limit).long()
            weight = (share[:, 0] if row else 1 - share[:, 0]) * (share[:, 1] if column else 1 - share[:, 1])
            value = grid[at[:, 0], at[:, 1]]
            weight = torch.where(value.isfinite(), weight, 0.0)
            result += weight * torch.where(value.isfinite(), value, 0.0)
            known += weight
    return result / known.clamp_min(torch.finfo(known.dtype).tiny)


@dataclass(frozen=True)
class Cropping:
    """How training crops are cut out and augmented.

    Attributes:
        smallest: side of the smallest square in meters.
        largest: side of the largest square in meters.
        points: maximum number of points of a crop, drawn at random.
        sparsest: points per square meter; crops are thinned to a density from here on.
        densest: up to here, if they have as many points.
        scale: sizes vary by this share up and down.
        jitter: standard deviation of the noise on positions, in meters.
        lift: standard deviation of the offset on all heights of a crop, in meters.
        turn: whether to rotate about the vertical and mirror.
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
    """Cut out and augment a square around a random point of known class; return a scene around the origin."""
    assert scene.labels is not None
    device = scene.positions.device
    # side, turn, mirror, density, scale, lift
    chances = torch.rand(6, generator=generator, device=device).tolist()
    center = _draw_labelled_place(scene.positions, scene.labels, generator)
    side = cropping.smallest + (cropping.largest - cropping.smallest) * chances[0]
    angle = 2 * math.pi * chances[1] if cropping.turn else 0.0
    cosine, sine = math.cos(angle), math.sin(angle)
    mirror = -1.0 if cropping.turn and chances[2] < 0.5 else 1.0
    rotation = torch.tensor([[cosine * mirror, sine], [-sine * mirror, cosine]], device=device)
    flat = (scene.positions[:, :2] - center) @ rotation
    inside = (flat.abs() < side / 2).all(dim=1).nonzero()[:, 0]
    wanted = cropping.sparsest * (cropping.densest / cropping.sparsest) ** chances[3]
    kept = min(wanted / max(measure_density(flat[inside]), 1e-6), cropping.points / max(len(inside), 1))
    if kept < 1:
        inside = inside[torch.rand(len(inside), generator=generator, device=device) < kept]
    scale = 1 + cropping.scale * (2 * chances[4] - 1)
    up = scene.positions[inside, 2:]
    positions = torch.cat([flat[inside], up - up.mean()], dim=1) * scale
    noise = cropping.jitter * torch.randn(positions.shape, generator=generator, device=device)
    lift = cropping.lift * math.sqrt(12) * (chances[5] - 0.5)
    heights = scene.heights[inside] * scale + noise[:, 2:] + lift
    return Scene(positions + noise, heights, scene.labels[inside])


def _draw_labelled_place(positions: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the horizontal position of a random point of known class, `[2]`."""
    chances = torch.rand(len(labels), generator=generator, device=labels.device)
    return positions[torch.where(labels != UNKNOWN, chances, -1.0).argmax(), :2]


def draw_crops(
    scenes: Sequence[Scene], step: int, numbers: Sequence[int], cropping: Cropping, seed: int
) -> tuple[Scene, Tensor]:
    """Draw the crops of a training step, each from a random scene; the same for the same step and seed.

    Returns the crops as one scene, and the crop of each point, int32 `[points]`.
    """
    crops = []
    for number in numbers:
        crop_seed = (seed * 1_000_003 + step) * 1009 + number
        generator = torch.Generator(scenes[0].positions.device).manual_seed(crop_seed)
        chance = int(torch.randint(1 << 30, (1,), generator=torch.Generator().manual_seed(crop_seed)))
        crops.append(draw_crop(scenes[chance % len(scenes)], cropping, generator))
    return join_scenes(crops)


def join_scenes(scenes: Sequence[Scene]) -> tuple[Scene, Tensor]:
    """Join scenes to a ragged batch: one scene, and the item of each point, int32 `[points]`."""
    device = scenes[0].positions.device
    sizes = torch.tensor([len(scene.positions) for scene in scenes], device=device)
    item = torch.repeat_interleave(torch.arange(len(scenes), device=device, dtype=torch.int32), sizes)
    labels = [scene.labels for scene in scenes if scene.labels is not None]
    positions, heights = (torch.cat([getattr(scene, name) for scene in scenes]) for name in ("positions", "heights"))
    return Scene(positions, heights, torch.cat(labels) if len(labels) == len(scenes) else None), item


def crop_loss(network: nn.Module, crops: Scene, item: Tensor) -> Tensor:
    """Return the mean cross entropy over all points of known class."""
    assert crops.labels is not None
    return F.cross_entropy(network(crops.values(), crops.positions, item), crops.labels, ignore_index=UNKNOWN)
