"""Fields to learn: a surface in space, and waves of any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.quality import psnr

Function = Callable[[Tensor], Tensor]

# positions of one call of a field, so that grids of many corners fit the memory
_CHUNK = 2**14
# of the differences that smooth normals
_STEP = 0.004


class Task:
    """Positions `[points, d]` in [0, 1]^d with known values `[points, channels]`, learned by least squares.

    Args:
        d: of the positions.
        device: of all tensors.
    """

    channels, smooth = 3, False

    def __init__(self, d: int, device: torch.device) -> None:
        self.d, self.device = d, device

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


def in_chunks(field: Function, positions: Tensor) -> Tensor:
    """Evaluate a field at any number of positions."""
    return torch.cat([field(part) for part in positions.split(_CHUNK)])


class Waves(Task):
    """A field of any dimension: sines of sums of waves that run in random directions, of one length for all d."""

    def __init__(self, d: int, device: torch.device) -> None:
        super().__init__(d, device)
        generator = torch.Generator().manual_seed(d)
        directions = F.normalize(torch.randn(8, d, generator=generator), dim=1)
        self.waves = (2 * math.pi * directions).T.to(device)
        self.mixed = 0.5 * torch.randn(8, 3, generator=generator).to(device)

    def values(self, positions: Tensor) -> Tensor:
        """Return the values, between 0 and 1."""
        return 0.5 + 0.5 * (((positions - 0.5) @ self.waves).sin() @ self.mixed).sin()


class Surface(Task):
    """The signed distance of three linked rings, a rounded box and 64 balls, from points on them with their normals.

    The solids are disjoint, so the smallest of their distances is the distance of all.

    Args:
        cloud: number of points.
        weights: of normals, gradients of length one and volume in the loss.
    """

    channels, smooth = 1, True

    def __init__(self, device: torch.device, cloud: int, weights: tuple[float, float, float] = (1.0, 1.0, 0.1)) -> None:
        super().__init__(3, device)
        self.weights = weights
        self.box = torch.tensor([0.34, 0.23, 0.04], device=device)
        self.cloud, self.normals = self.sample(cloud, torch.Generator(device).manual_seed(0))

    def sample(self, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw points on the surface, with their normals."""
        positions = self.positions(points, generator)
        # distances are exact: one step along the gradient reaches the surface
        found, normals = value_and_gradient(self.values, positions)
        return positions - found * normals, normals

    def values(self, positions: Tensor) -> Tensor:
        """Return the true distance `[points, 1]`, negative inside."""
        distances = []
        for center, axis in ((0.27, 2), (0.5, 1), (0.73, 2)):
            offset = positions - torch.tensor([center, 0.5, 0.5], device=self.device)
            flat = offset[:, [other for other in range(3) if other != axis]].norm(dim=1)
            distances.append(torch.hypot(flat - 0.17, offset[:, axis]) - 0.04)
        middle = torch.tensor([0.5, 0.5, 0.15], device=self.device)
        beyond = (positions - middle).abs() - self.box
        distances.append(beyond.clamp_min(0).norm(dim=1) + beyond.amax(dim=1).clamp_max(0) - 0.02)
        nearest = ((positions[:, :2] - 0.15) / 0.1).round().clamp(0, 7) * 0.1 + 0.15
        height = positions[:, 2:] - 0.82
        distances.append(torch.cat([positions[:, :2] - nearest, height], dim=1).norm(dim=1) - 0.03)
        return torch.stack(distances, dim=1).amin(dim=1, keepdim=True)

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
        """Return mean errors: distances near the surface and anywhere; angles of normals, exact and smoothed."""
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
        return dict(zip(("near", "anywhere", "degrees", "smoothed"), map(float, errors), strict=True))


def value_and_gradient(field: Function, positions: Tensor, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """Return values `[points, 1]` and their gradients `[points, d]` with respect to the positions."""
    with torch.enable_grad():
        positions = positions.detach().requires_grad_()
        values = field(positions)
        [gradients] = torch.autograd.grad(values.sum(), positions, create_graph=create_graph)
    return (values, gradients) if create_graph else (values.detach(), gradients)
