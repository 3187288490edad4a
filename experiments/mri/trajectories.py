"""Radial and spiral trajectories, through an image or through its spectrum.

Positions are (y, x) with one unit per pixel, or per cycle over the field of view in the spectrum; the center is 0.
A factor of undersampling is the number of pixels over the number of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from permutohedral.errors import InputError

Domain = Literal["image", "spectrum"]
TrajectoryKind = Literal["radial", "spiral"]
TRAJECTORIES: tuple[TrajectoryKind, ...] = get_args(TrajectoryKind)

_ARMS = 4
# points on a fine curve per sample that is taken of it
_FINENESS = 32


@dataclass(frozen=True)
class Trajectory:
    """Positions of samples.

    Attributes:
        kind: "radial" or "spiral".
        positions: float64 `[points, 2]`.
        areas: float64 `[points]`, the part of the plane each sample stands for: the analytic density compensation.
    """

    kind: TrajectoryKind
    positions: Tensor
    areas: Tensor

    def rotate(self, angle: float) -> Trajectory:
        """Turn the trajectory by `angle` in radians about the center."""
        rotation = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
        return replace(self, positions=self.positions @ rotation)


def make_trajectory(
    kind: TrajectoryKind, domain: Domain, size: int, factor: float, rotation: float = 0.0
) -> Trajectory:
    """Place about size^2 / factor samples of an image of `size` x `size` pixels.

    In the image they cover the square, up to its corners, at an even distance of the spokes or turns. In the spectrum
    they cover the disc of all frequencies up to size / 2; the turns of the spiral lie one unit apart at the center
    and further apart outside, as those of the spokes do.

    Args:
        kind: "radial", straight lines through the center; or "spiral", four arms.
        domain: "image" or "spectrum".
        size: of the image.
        factor: of undersampling, at least 1.
        rotation: of the whole trajectory, in radians.

    >>> make_trajectory("radial", "spectrum", size=64, factor=4).positions.shape
    torch.Size([1024, 2])
    """
    if kind not in TRAJECTORIES or domain not in get_args(Domain):
        raise InputError(f"there is no trajectory {kind!r} of the {domain!r}; there are {', '.join(TRAJECTORIES)}")
    if size < 8 or not 1 <= factor <= size:
        raise InputError(f"size must be at least 8 and factor between 1 and size, got {size} and {factor}")
    if domain == "spectrum":
        lines = _radial(size / 2, round(size / factor)) if kind == "radial" else _spiral_of_spectrum(size, factor)
        return lines.rotate(rotation)
    corner = (size - 1) / math.sqrt(2)
    if kind == "radial":
        # a line through the center of a square is longer than its side, by this much on average
        longer = 4 / math.pi * math.log(1 + math.sqrt(2))
        lines = _radial(corner, max(1, round(size / factor / longer)))
    else:
        lines = _spiral(corner, pitch=factor, growth=0.0)
    return _inside(lines.rotate(rotation), (size - 1) / 2)


def _radial(radius: float, spokes: int) -> Trajectory:
    """Place samples one unit apart on `spokes` lines through the center."""
    half = math.floor(radius)
    distance = torch.arange(-half, half, dtype=torch.float64)
    angle = math.pi / spokes * torch.arange(spokes, dtype=torch.float64)[:, None]
    positions = torch.stack([distance * angle.sin(), distance * angle.cos()], dim=-1)
    # the spokes share a disc of diameter 1 at the center
    areas = torch.where(distance == 0, math.pi / 4 / spokes, distance.abs() * math.pi / spokes)
    return Trajectory("radial", positions.flatten(0, 1), areas.repeat(spokes))


def _spiral_of_spectrum(size: int, factor: float) -> Trajectory:
    """Choose how fast the turns grow apart, so that the spiral has size^2 / factor samples."""
    radius, wanted = size / 2, size * size / factor

    def samples(growth: float) -> float:
        # the integral of 2 pi r / (1 + growth r) over r
        if growth * radius < 1e-6:
            return math.pi * radius**2
        return 2 * math.pi * (radius / growth - math.log1p(growth * radius) / growth**2)

    low, high = 0.0, float(size)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if samples(middle) > wanted else (low, middle)
    return _spiral(radius, pitch=1.0, growth=low)


def _spiral(radius: float, pitch: float, growth: float) -> Trajectory:
    """Place samples one unit apart on arms whose turns are pitch + growth * r apart at the distance r."""
    steps = _FINENESS * math.ceil(math.pi * radius**2 / pitch / _ARMS + radius)
    distance = torch.linspace(0, radius, steps, dtype=torch.float64)
    apart = pitch + growth * distance
    angle = _integrate(2 * math.pi / (_ARMS * apart), distance)
    length = _integrate((1 + (2 * math.pi * distance / (_ARMS * apart)).square()).sqrt(), distance)
    wanted = torch.arange(0.0, float(length[-1]), 1.0, dtype=torch.float64)
    place = torch.searchsorted(length, wanted).clamp(1, steps - 1)
    share = (wanted - length[place - 1]) / (length[place] - length[place - 1])
    distance, angle = (torch.lerp(line[place - 1], line[place], share) for line in (distance, angle))
    turned = angle + 2 * math.pi / _ARMS * torch.arange(_ARMS, dtype=torch.float64)[:, None]
    positions = torch.stack([distance * turned.sin(), distance * turned.cos()], dim=-1)
    # near the center the arms are closer to each other than the turns are, and share its disc of diameter 1
    areas = torch.minimum(pitch + growth * distance, 2 * math.pi * distance / _ARMS)
    areas[0] = math.pi / 4 / _ARMS
    return Trajectory("spiral", positions.flatten(0, 1), areas.repeat(_ARMS))


def _integrate(values: Tensor, over: Tensor) -> Tensor:
    """Integrate up to each place, by the trapezoidal rule."""
    return torch.nn.functional.pad(torch.cumulative_trapezoid(values, over), (1, 0))


def _inside(trajectory: Trajectory, half: float) -> Trajectory:
    inside = (trajectory.positions.abs() <= half).all(dim=1)
    return replace(trajectory, positions=trajectory.positions[inside], areas=trajectory.areas[inside])
