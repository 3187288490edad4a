"""Points at which digits are sampled: at their pixels, uniformly, or in ways that leave parts of the image empty."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.data.mnist import interpolate
from experiments.mnist.model import SIZE, grid_positions
from experiments.results import FORBID_EXTRA
from permutohedral.errors import InputError

LAST = SIZE - 1
CLUSTERS, CLUSTER_SIGMA = 8, 3.0
BLOCKS, BLOCK_SIZE = 4, 8.0

# random points that a kind needs: a number, and a multiple of the samples
_DRAWN = {"uniform": (0, 1), "clusters": (CLUSTERS, 2), "blocks": (BLOCKS, 3), "foveated": (0, 3)}


@dataclass(frozen=True, config=FORBID_EXTRA)
class Sampling:
    """Where digits are sampled.

    Attributes:
        kind: "pixels"; or new random points for every digit: "uniform"; "clusters", normally distributed around 8
            uniform centers with a standard deviation of 3 pixels; "blocks", uniform outside of 4 squares of 8 x 8
            pixels; "foveated", with a density that falls as the inverse distance from the center.
        share: random samples over pixels.
    """

    kind: Literal["pixels", "uniform", "clusters", "blocks", "foveated"]
    share: float = 1.0

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise InputError(f"share must be positive, got {self.share}")

    def sample(self, images: Tensor, seeds: Sequence[int], purpose: str) -> tuple[Tensor, Tensor]:
        """Sample the digits of several seeds.

        Args:
            images: float `[seeds * batch, 28, 28]`.
            seeds: of the points, which also depend on the purpose and the device only.
            purpose: such as the number of a training batch.

        Returns:
            Bilinearly interpolated values `[seeds * batch, points, 1]`, and positions `[seeds * batch, points, 2]`,
            (y, x) in pixels.
        """
        if self.kind == "pixels":
            return images.flatten(1)[..., None], grid_positions(device=images.device).expand(len(images), -1, -1)
        samples = max(1, round(self.share * SIZE * SIZE))
        few, multiple = _DRAWN[self.kind]
        shape = (len(images) // len(seeds), few + multiple * samples, 2)
        drawn = []
        for seed in seeds:
            generator = torch.Generator(images.device).manual_seed(derive_seed(seed, purpose))
            drawn.append(torch.rand(shape, generator=generator, device=images.device))
        positions = arrange(self.kind, torch.cat(drawn), samples)
        return interpolate(images, positions)[..., None], positions


def derive_seed(seed: int, purpose: str) -> int:
    """Return the seed of a generator for a purpose.

    >>> derive_seed(0, "order 0") == derive_seed(0, "order 1")
    False
    """
    # torch's CPU generator uses 32 bits of its seed only
    return int.from_bytes(hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=4).digest(), "big")


def arrange(kind: str, unit: Tensor, samples: int) -> Tensor:
    """Turn uniform random points of the unit square into samples of a kind, `[items, samples, 2]` from 0 to 27.

    Args:
        kind: of `Sampling`, but "pixels".
        unit: `[items, points, 2]`.
        samples: of each item.
    """
    if kind == "uniform":
        return unit * LAST
    if kind == "clusters":
        centers, chosen, noise = unit.split([CLUSTERS, samples, samples], dim=1)
        chosen = (chosen[..., :1] * CLUSTERS).long().expand(-1, -1, 2)
        normal = math.sqrt(2) * torch.erfinv((2 * noise - 1).clamp(-0.999999, 0.999999))
        moved = (LAST * centers.gather(1, chosen) + CLUSTER_SIGMA * normal).abs()
        # reflected at the border
        reflected: Tensor = LAST - (LAST - moved).abs()
        return reflected
    if kind == "blocks":
        corners, candidates = (LAST - BLOCK_SIZE) * unit[:, :BLOCKS], LAST * unit[:, BLOCKS:]
        beyond = candidates[:, :, None] - corners[:, None]
        allowed = ~((beyond > 0) & (beyond < BLOCK_SIZE)).all(dim=3).any(dim=2)
    else:
        radius, angle = (LAST / math.sqrt(2) * unit[..., 0], 2 * math.pi * unit[..., 1])
        candidates = LAST / 2 + radius[..., None] * torch.stack([angle.sin(), angle.cos()], dim=2)
        allowed = ((candidates >= 0) & (candidates <= LAST)).all(dim=2)
    # the first ones that are allowed
    order = allowed.logical_not().to(torch.uint8).sort(dim=1, stable=True).indices[:, :samples]
    return candidates.gather(1, order[..., None].expand(-1, -1, 2))
