"""Point clouds of simple solids, as a scanner would see them: from one side, with noise, in any position and size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.errors import InputError


@dataclass(frozen=True)
class PointClouds:
    """Clouds of different numbers of points, one after another.

    Attributes:
        positions: float32 `[points, 3]`, within the unit ball of each cloud.
        normals: float32 `[points, 3]`, of length 1, outward.
        item: int64 `[points]`, the cloud of each point.
        labels: int64 `[clouds]`, numbers in `SOLIDS`.
    """

    positions: Tensor
    normals: Tensor
    item: Tensor
    labels: Tensor

    def select(self, clouds: Tensor) -> PointClouds:
        """Some of the clouds, `[any]`, in the order given."""
        counts = torch.bincount(self.item, minlength=len(self.labels))
        first = counts.cumsum(0) - counts
        chosen = counts[clouds]
        item = torch.repeat_interleave(torch.arange(len(clouds)), chosen)
        place = torch.arange(len(item)) - (chosen.cumsum(0) - chosen)[item]
        rows = first[clouds][item] + place
        return PointClouds(self.positions[rows], self.normals[rows], item, self.labels[clouds])

    def to(self, device: torch.device) -> PointClouds:
        """The same on another device."""
        return PointClouds(*(t.to(device) for t in (self.positions, self.normals, self.item, self.labels)))


def make_clouds(number: int, seed: int, points: tuple[int, int] = (192, 512), noise: float = 0.03) -> PointClouds:
    """Scans of random solids.

    Each is stretched along three axes, turned at random, and seen from one side: what faces away from the viewer is
    hidden, and so is all beyond a random plane.

    Args:
        number: of clouds.
        seed: of everything random.
        points: least and largest number on the whole surface, of which about a third is seen.
        noise: standard deviation of positions in units of the cloud's radius; that of normals is five times as large.

    >>> clouds = make_clouds(4, seed=0)
    >>> int(clouds.item.max()), clouds.positions.shape == clouds.normals.shape
    (3, True)
    """
    if number < 1 or not 32 <= points[0] <= points[1] or noise < 0:
        raise InputError(f"cannot make {number} clouds of {points} points with noise {noise}")
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(SOLIDS), (number,), generator=generator)
    makers = list(SOLIDS.values())
    clouds = []
    for label in labels.tolist():
        count = int(torch.randint(points[0], points[1] + 1, (), generator=generator))
        positions, normals = makers[label](count, generator)
        clouds.append(_scan(positions, normals, noise, generator))
    item = torch.repeat_interleave(torch.arange(number), torch.tensor([len(cloud[0]) for cloud in clouds]))
    positions, normals = (torch.cat([cloud[part] for cloud in clouds]) for part in range(2))
    return PointClouds(positions, normals, item, labels)


def _scan(positions: Tensor, normals: Tensor, noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    stretch = 0.7 + 0.6 * torch.rand(3, generator=generator)
    positions, normals = positions * stretch, normals / stretch
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator))[0]
    positions, normals = positions @ turn, torch.nn.functional.normalize(normals @ turn, dim=1)
    # the viewer looks along the last axis, which is as good as any after a random turn
    seen = normals[:, 2] > -0.1
    direction = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    height = positions @ direction
    share = 0.6 + 0.4 * float(torch.rand((), generator=generator))
    seen &= height <= torch.quantile(height[seen], share)
    positions, normals = positions[seen], normals[seen]
    positions = positions - positions.mean(dim=0)
    positions = positions / positions.norm(dim=1).max()
    positions = positions + noise * torch.randn(positions.shape, generator=generator)
    normals = normals + 5 * noise * torch.randn(normals.shape, generator=generator)
    return positions, torch.nn.functional.normalize(normals, dim=1)


def _uniform(count: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(count, generator=generator)


def _between(low: float, high: float, generator: torch.Generator) -> float:
    return float(_uniform(1, generator, low, high))


def _choose(areas: list[float], count: int, generator: torch.Generator) -> Tensor:
    """The part of the surface that each point lies on."""
    return torch.multinomial(torch.tensor(areas), count, replacement=True, generator=generator)


def _ring(angle: Tensor, height: Tensor | float = 0.0) -> Tensor:
    """Points on the unit circle, at a height."""
    return torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle) + height], dim=1)


def _sphere(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    positions = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator), dim=1)
    return positions, positions


def _box(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    positions = 2 * torch.rand(count, 3, generator=generator) - 1
    face = torch.randint(6, (count,), generator=generator)
    normals = torch.zeros(count, 3)
    normals[torch.arange(count), face % 3] = (face // 3 * 2 - 1).float()
    return torch.where(normals == 0, positions, normals), normals


def _disc(count: int, radius: float, height: Tensor, generator: torch.Generator) -> Tensor:
    angle = _uniform(count, generator, high=2 * math.pi)
    distance = radius * _uniform(count, generator).sqrt()
    return _ring(angle) * distance[:, None] + torch.nn.functional.pad(height[:, None], (2, 0))


def _cylinder(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    radius = _between(0.35, 0.8, generator)
    part = _choose([4 * radius, radius**2, radius**2], count, generator)
    ring = _ring(_uniform(count, generator, high=2 * math.pi))
    side = radius * ring + torch.nn.functional.pad(_uniform(count, generator, -1, 1)[:, None], (2, 0))
    end = (part == 1).float() - (part == 2).float()
    caps = _disc(count, radius, end, generator)
    on_side = (part == 0)[:, None]
    return torch.where(on_side, side, caps), torch.where(on_side, ring, torch.nn.functional.pad(end[:, None], (2, 0)))


def _cone(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    radius = _between(0.5, 1.0, generator)
    slant = math.hypot(radius, 2.0)
    on_side = (_choose([slant, radius], count, generator) == 0)[:, None]
    ring = _ring(_uniform(count, generator, high=2 * math.pi))
    # a share of the way from the tip, by area
    share = _uniform(count, generator).sqrt()[:, None]
    side = radius * share * ring + torch.nn.functional.pad(1 - 2 * share, (2, 0))
    normals = torch.cat([2 * ring[:, :2], torch.full((count, 1), radius)], dim=1) / slant
    base = _disc(count, radius, torch.full((count,), -1.0), generator)
    return torch.where(on_side, side, base), torch.where(on_side, normals, torch.tensor([0.0, 0.0, -1.0]))


def _torus(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    thickness = _between(0.2, 0.45, generator)
    # the outer side has more area: more candidates than points, chosen by area
    around = _uniform(4 * count, generator, high=2 * math.pi)
    chosen = torch.multinomial(1 + thickness * around.cos(), count, replacement=True, generator=generator)
    ring, around = _ring(_uniform(count, generator, high=2 * math.pi)), around[chosen]
    normals = ring * around.cos()[:, None] + torch.nn.functional.pad(around.sin()[:, None], (2, 0))
    return ring + thickness * normals, normals


def _pyramid(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # four sides of slant height sqrt(5) over a square of side 2
    part = _choose([5**0.5] * 4 + [4.0], count, generator)
    share = _uniform(count, generator).sqrt()
    side = torch.stack([share, share * _uniform(count, generator, -1, 1), 1 - 2 * share], dim=1)
    normal = torch.tensor([2.0, 0.0, 1.0]) / 5**0.5
    quarter = part.float() * math.pi / 2
    turn = torch.stack([_ring(quarter), _ring(quarter + math.pi / 2), _ring(quarter * 0, 1) - _ring(quarter * 0)], 1)
    base = torch.cat([2 * torch.rand(count, 2, generator=generator) - 1, torch.full((count, 1), -1.0)], dim=1)
    on_base = (part == 4)[:, None]
    positions = torch.where(on_base, base, torch.einsum("pi,pij->pj", side, turn))
    return positions, torch.where(on_base, torch.tensor([0.0, 0.0, -1.0]), torch.einsum("i,pij->pj", normal, turn))


def _capsule(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    radius = _between(0.4, 0.7, generator)
    on_side = (_choose([1.0, radius], count, generator) == 0)[:, None]
    ring = _ring(_uniform(count, generator, high=2 * math.pi))
    side = radius * ring + torch.nn.functional.pad(_uniform(count, generator, -0.5, 0.5)[:, None], (2, 0))
    ball, _ = _sphere(count, generator)
    ends = radius * ball + torch.nn.functional.pad(0.5 * ball[:, 2:].sign(), (2, 0))
    return torch.where(on_side, side, ends), torch.where(on_side, ring, ball)


def _spring(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    turns, thickness = _between(1.5, 2.5, generator), _between(0.12, 0.2, generator)
    along = _uniform(count, generator, -1, 1)
    around = _uniform(count, generator, high=2 * math.pi)
    angle = math.pi * turns * along
    ring = _ring(angle)
    tangent = _ring(angle + math.pi / 2) * (math.pi * turns * 0.8) + torch.tensor([0.0, 0.0, 1.0])
    tangent = torch.nn.functional.normalize(tangent, dim=1)
    upward = torch.linalg.cross(tangent, ring)
    normals = ring * around.cos()[:, None] + upward * around.sin()[:, None]
    return 0.8 * ring + torch.nn.functional.pad(along[:, None], (2, 0)) + thickness * normals, normals


SOLIDS: dict[str, Callable[[int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "sphere": _sphere,
    "box": _box,
    "cylinder": _cylinder,
    "cone": _cone,
    "torus": _torus,
    "pyramid": _pyramid,
    "capsule": _capsule,
    "spring": _spring,
}
