"""Fields to learn: a mosaic of photographs, a surface, a light field, and waves of any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.data.bsds500 import Split, load_colors
from experiments.quality import psnr

Function = Callable[[Tensor], Tensor]

# positions of one call of a field, so that grids of many corners fit the memory
_CHUNK = 2**14
PICTURE = 192
# of the differences that smooth normals
_STEP = 0.004


class Task:
    """Positions `[points, d]` in [0, 1]^d with known values `[points, channels]`, learned by least squares.

    Args:
        d: of the positions.
        device: of all tensors.
        validation: take another field of this kind, to choose settings on.
    """

    channels, smooth, score = 3, False, "psnr"

    def __init__(self, d: int, device: torch.device, validation: bool = False) -> None:
        self.d, self.device, self.validation = d, device, validation

    def positions(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw positions."""
        return torch.rand(points, self.d, generator=generator, device=self.device)

    def values(self, positions: Tensor) -> Tensor:
        """Return the true values."""
        raise NotImplementedError

    def batch(self, points: int, seed: int) -> tuple[Tensor, ...]:
        """Draw the arguments of `loss`."""
        positions = self.positions(points, torch.Generator(self.device).manual_seed(seed))
        return positions, self.values(positions)

    def loss(self, field: Function, positions: Tensor, values: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return F.mse_loss(field(positions), values)

    @torch.no_grad()
    def evaluate(self, field: Function, points: int) -> dict[str, float]:
        """Return scores of points that are the same for all fields."""
        positions, values = self.batch(points, seed=-1)
        return {"psnr": psnr(in_chunks(field, positions).clamp(0, 1), values)}

    def picture_positions(self) -> Tensor:
        """Return the positions of a picture, `[PICTURE * PICTURE, d]`: the last two axes, the others in the middle."""
        y, x = (
            part.flatten() for part in torch.meshgrid(*[(torch.arange(PICTURE) + 0.5) / PICTURE] * 2, indexing="ij")
        )
        middle = torch.full((PICTURE * PICTURE, self.d - 2), 0.5)
        return torch.cat([middle, y[:, None], x[:, None]], dim=1).to(self.device)

    def draw(self, field: Function | None) -> Tensor:
        """Return a picture of a field, or of the truth: `[PICTURE, PICTURE, 3]` between 0 and 1."""
        with torch.no_grad():
            values = in_chunks(self.values if field is None else field, self.picture_positions())
        return values.clamp(0, 1).view(PICTURE, PICTURE, 3)


def in_chunks(field: Function, positions: Tensor) -> Tensor:
    """Evaluate a field at any number of positions."""
    return torch.cat([field(part) for part in positions.split(_CHUNK)])


class Image(Task):
    """A mosaic of color photographs, twelve above each other for every eleven in a row.

    Args:
        photographs: number of them, at most 200; incomplete rows are left out.
        folder: of the data sets.
    """

    def __init__(self, device: torch.device, photographs: int, folder: Path | None, validation: bool = False) -> None:
        super().__init__(2, device, validation)
        self.pixels = mosaic("test" if validation else "train", photographs, folder).to(device)

    def positions(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw centers of pixels."""
        extent = torch.tensor(self.pixels.shape[:2], device=self.device)
        return ((super().positions(points, generator) * extent).floor() + 0.5) / extent

    def values(self, positions: Tensor) -> Tensor:
        """Return the colors of pixels."""
        y, x = (positions * torch.tensor(self.pixels.shape[:2], device=self.device)).long().unbind(1)
        return self.pixels[y, x].float() / 255

    def picture_positions(self) -> Tensor:
        """Return the pixels in the middle of the mosaic."""
        extent = torch.tensor(self.pixels.shape[:2], device=self.device)
        first = (extent - PICTURE) // 2
        return (super().picture_positions() * PICTURE + first) / extent


@lru_cache(maxsize=1)
def mosaic(split: Split, photographs: int, folder: Path | None) -> Tensor:
    """Return photographs next to each other, uint8 `[height, width, 3]`."""
    pictures = [
        image if image.shape[1] < image.shape[2] else image.transpose(1, 2)
        for image in load_colors(split, folder, photographs).values()
    ]
    across = max(1, math.isqrt(photographs * 11 // 12))
    rows = [torch.cat(pictures[i : i + across], dim=2) for i in range(0, len(pictures) - across + 1, across)]
    return (torch.cat(rows, dim=1) * 255).round().byte().permute(1, 2, 0).contiguous()


class Waves(Task):
    """A field of any dimension: sines of sums of waves that run in random directions, of one length for all d."""

    def __init__(self, d: int, device: torch.device, validation: bool = False) -> None:
        super().__init__(d, device, validation)
        generator = torch.Generator().manual_seed(d + 100 * validation)
        directions = F.normalize(torch.randn(8, d, generator=generator), dim=1)
        self.waves = (2 * math.pi * directions).T.to(device)
        self.mixed = 0.5 * torch.randn(8, 3, generator=generator).to(device)

    def values(self, positions: Tensor) -> Tensor:
        """Return the values, between 0 and 1."""
        return 0.5 + 0.5 * (((positions - 0.5) @ self.waves).sin() @ self.mixed).sin()


class LightField(Task):
    """Colors along rays: position on a plane of cameras, (time if d is 5,) position on a plane behind it.

    Balls roll on a checkered floor; they reflect each other, the floor and a lamp.
    """

    def values(self, positions: Tensor) -> Tensor:
        """Trace rays: `[points, d]` with the coordinates (up, right) of both planes and the time between them."""
        camera, plane = positions[:, :2] - 0.5, positions[:, -2:] - 0.5
        time = positions[:, 2] if self.d == 5 else torch.full_like(camera[:, 0], 0.5)
        # balls of different sizes are in front then
        time = time + 1.5 * self.validation
        origins = torch.stack([camera[:, 1], torch.full_like(time, -3.0), 0.9 - 0.6 * camera[:, 0]], dim=1)
        targets = torch.stack([2.2 * plane[:, 1], torch.zeros_like(time), 0.55 - 2.0 * plane[:, 0]], dim=1)
        return trace(origins, F.normalize(targets - origins, dim=1), time, bounces=1)


_COLORS = ((0.9, 0.25, 0.2), (0.2, 0.55, 0.9), (0.95, 0.8, 0.3), (0.4, 0.8, 0.4))


def trace(origins: Tensor, directions: Tensor, time: Tensor, bounces: int) -> Tensor:
    """Return the colors `[points, 3]` that rays meet at a time between 0 and 1."""
    angles = time[:, None] * math.pi / 2 + torch.arange(4, device=time.device) * math.pi / 2
    radii = torch.tensor([0.35, 0.3, 0.25, 0.2], device=time.device)
    # [points, balls, 3]
    centers = torch.stack([0.7 * angles.cos(), 0.7 * angles.sin(), radii.expand_as(angles)], dim=2)
    offsets = centers - origins[:, None]
    along = (offsets * directions[:, None]).sum(dim=2)
    inside = radii.square() - offsets.square().sum(dim=2) + along.square()
    reach = along - inside.clamp_min(0).sqrt()
    reach = torch.where((inside > 0) & (reach > 1e-3), reach, torch.inf)
    near, ball = reach.min(dim=1)
    down = directions[:, 2].clamp_max(-1e-4)
    floor = torch.where(directions[:, 2] < -1e-4, -origins[:, 2] / down, torch.inf)
    hit_ball, hit_floor = near < floor, floor < near.clamp_max(12.0)
    points = origins + directions * torch.minimum(near, floor).clamp_max(12.0)[:, None]
    up = torch.tensor([0.0, 0.0, 1.0], device=time.device).expand_as(points)
    center = centers[torch.arange(len(ball), device=ball.device), ball]
    normals = torch.where(hit_ball[:, None], F.normalize(points - center, dim=1), up)
    checks = ((points[:, :2] * 2).floor().sum(dim=1) % 2)[:, None] * 0.55 + 0.25
    paint = torch.where(hit_ball[:, None], torch.tensor(_COLORS, device=time.device)[ball], checks)
    lamp = F.normalize(torch.tensor([-0.5, -0.6, 1.0], device=time.device), dim=0)
    mirrored = directions - 2 * (directions * normals).sum(dim=1, keepdim=True) * normals
    shine = (mirrored @ lamp).clamp_min(0)[:, None] ** 40
    color = paint * (0.25 + 0.75 * (normals @ lamp).clamp_min(0)[:, None])
    sky = 0.55 + directions[:, 2:].clamp(0, 1) * torch.tensor([-0.3, -0.1, 0.4], device=time.device)
    if bounces:
        color = 0.75 * color + 0.25 * trace(points + 1e-3 * normals, mirrored, time, bounces - 1)
    color = torch.where(hit_ball[:, None], color + 0.6 * shine, color)
    return torch.where((hit_ball | hit_floor)[:, None], color, sky).clamp(0, 1)


class Surface(Task):
    """The signed distance of three linked rings, a rounded box and 64 balls, from points on them with their normals.

    The solids are disjoint, so the smallest of their distances is the distance of all. Those for validation have other
    sizes, and their axes another order.

    Args:
        cloud: number of points.
        turned: rotate the solids, which have the axes of the cube otherwise, and shrink them to fit it.
        weights: of normals, gradients of length one and volume in the loss.
    """

    channels, smooth, score = 1, True, "error"

    def __init__(
        self,
        device: torch.device,
        cloud: int,
        validation: bool = False,
        turned: bool = False,
        weights: tuple[float, float, float] = (1.0, 1.0, 0.1),
    ) -> None:
        super().__init__(3, device, validation)
        self.weights = weights
        self.ring, self.tube, self.ball, self.spacing = (
            (0.18, 0.03, 0.06, 0.2) if validation else (0.17, 0.04, 0.03, 0.1)
        )
        self.box = torch.tensor([0.30, 0.30, 0.05] if validation else [0.34, 0.23, 0.04], device=device)
        self.scale = 0.75 if turned else 1.0
        frame = torch.eye(3).roll(int(validation), dims=0)
        if turned:
            frame = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(3 + validation)))[0]
        self.frame = frame.to(device)
        self.cloud, self.normals = self.sample(cloud, torch.Generator(device).manual_seed(0))

    def sample(self, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw points on the surface, with their normals."""
        positions = self.positions(points, generator)
        # distances are exact: one step along the gradient reaches the surface
        found, normals = value_and_gradient(self.values, positions)
        return positions - found * normals, normals

    def values(self, positions: Tensor) -> Tensor:
        """Return the true distance `[points, 1]`, negative inside."""
        positions = (positions - 0.5) @ self.frame / self.scale + 0.5
        distances = []
        for center, axis in ((0.27, 2), (0.5, 1), (0.73, 2)):
            offset = positions - torch.tensor([center, 0.5, 0.5], device=self.device)
            flat = offset[:, [other for other in range(3) if other != axis]].norm(dim=1)
            distances.append(torch.hypot(flat - self.ring, offset[:, axis]) - self.tube)
        middle = torch.tensor([0.5, 0.5, 0.15], device=self.device)
        beyond = (positions - middle).abs() - self.box
        distances.append(beyond.clamp_min(0).norm(dim=1) + beyond.amax(dim=1).clamp_max(0) - 0.02)
        nearest = ((positions[:, :2] - 0.15) / self.spacing).round().clamp(0, 0.8 / self.spacing - 1)
        nearest = nearest * self.spacing + 0.15
        height = positions[:, 2:] - 0.82
        distances.append(torch.cat([positions[:, :2] - nearest, height], dim=1).norm(dim=1) - self.ball)
        return self.scale * torch.stack(distances, dim=1).amin(dim=1, keepdim=True)

    def batch(self, points: int, seed: int) -> tuple[Tensor, ...]:
        """Draw points of the cloud with normals, and positions anywhere, half of them each."""
        generator = torch.Generator(self.device).manual_seed(seed)
        chosen = torch.randint(len(self.cloud), (points // 2,), generator=generator, device=self.device)
        return self.cloud[chosen], self.normals[chosen], self.positions(points // 2, generator)

    def loss(self, field: Function, cloud: Tensor, normals: Tensor, free: Tensor) -> Tensor:  # type: ignore[override]
        """Return the loss: zero on the cloud, its normals, gradients of length one, and a small volume inside."""
        values, gradients = value_and_gradient(field, torch.cat([cloud, free]), create_graph=True)
        on, off = values.split(len(cloud))
        eikonal = (gradients.norm(dim=1) - 1).square().mean()
        aligned = (gradients[: len(cloud)] - normals).norm(dim=1).mean()
        terms = (aligned, eikonal, torch.sigmoid(-50 * off).mean())
        weighted = [weight * term for weight, term in zip(self.weights, terms, strict=True)]
        return torch.stack([30 * on.abs().mean(), *weighted]).sum()

    def evaluate(self, field: Function, points: int) -> dict[str, float]:
        """Return mean errors: distances near the surface and anywhere, angles between normals, and of smoothed normals.

        `error` is the geometric mean of the first three.
        """
        generator = torch.Generator(self.device).manual_seed(-1)
        on, normals = self.sample(points, generator)
        free = self.positions(points, generator)
        near = (on + normals * (free[:, :1] - 0.5) / 10).clamp(0, 1)
        found = torch.cat([value_and_gradient(field, part)[1] for part in on.split(_CHUNK)])
        with torch.no_grad():
            errors = [(in_chunks(field, x) - self.values(x)).abs().mean() for x in (near, free)]
            steps = _STEP * torch.eye(3, device=self.device)
            sides = [in_chunks(field, on + step) - in_chunks(field, on - step) for step in steps]
            for slopes in (found, torch.cat(sides, dim=1)):
                cosines = F.cosine_similarity(slopes, normals).clamp(-1, 1)
                errors.append(cosines.acos().mean() * 180 / math.pi)
        scores = dict(zip(("near", "anywhere", "degrees", "smoothed"), map(float, errors), strict=True))
        scores["error"] = math.prod(list(scores.values())[:3]) ** (1 / 3)
        return {name: round(value, 6) for name, value in scores.items()}

    def draw(self, field: Function | None) -> Tensor:
        """Return the surface, found by sphere tracing within the cube and colored by its normals."""
        distance = self.values if field is None else field
        toward = F.normalize(torch.tensor([-0.5, 0.75, -0.45], device=self.device), dim=0)
        right = F.normalize(torch.linalg.cross(toward, torch.tensor([0.0, 0.0, 1.0], device=self.device)), dim=0)
        y, x = (super().picture_positions()[:, -2:] - 0.5).T[..., None] * 1.5
        origins = 0.5 + x * right + y * torch.linalg.cross(toward, right)
        # where the rays enter and leave the cube
        ends = torch.stack([-origins / toward, (1 - origins) / toward])
        enter, leave = ends.amin(dim=0).amax(dim=1), ends.amax(dim=0).amin(dim=1)
        seen = enter < leave
        start, reach, last = origins[seen], enter[seen], leave[seen]
        with torch.no_grad():
            for _ in range(48):
                points = (start + reach[:, None] * toward).clamp(0, 1)
                reach = torch.minimum(reach + 0.9 * in_chunks(distance, points)[:, 0], last)
        points = (start + reach[:, None] * toward).clamp(0, 1)
        values, normals = value_and_gradient(distance, points)
        hit = (values[:, 0] < 0.01) & (reach < last - 1e-4)
        picture = torch.ones(PICTURE * PICTURE, 3, device=self.device)
        picture[seen] = torch.where(hit[:, None], 0.5 + 0.5 * F.normalize(normals, dim=1), 1.0)
        return picture.view(PICTURE, PICTURE, 3)


def value_and_gradient(field: Function, positions: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """Return values `[points, 1]` and their gradients `[points, d]` with respect to the positions."""
    with torch.enable_grad():
        positions = positions.detach().requires_grad_()
        values = field(positions)
        [gradients] = torch.autograd.grad(values.sum(), positions, create_graph=create_graph)
    return (values, gradients) if create_graph else (values.detach(), gradients)
