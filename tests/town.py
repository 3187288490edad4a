"""A small town as a point cloud, with classes: ground on a slope, houses, trees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GROUND, TREE, HOUSE = 2, 5, 6


def make_town(points: int = 3000, side: float = 40.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions float64 `[points, 3]` in meters, far from the origin, and classes uint8 `[points]` as in LAS files."""
    random = np.random.default_rng(seed)
    flat = random.uniform(0, side, size=(points, 2))
    height = 0.1 * flat[:, 0] + 0.02 * random.normal(size=points)
    labels = np.full(points, GROUND, dtype=np.uint8)
    house = (np.abs(flat - [0.3 * side, 0.3 * side]) < 5).all(axis=1)
    height[house] += 6
    labels[house] = HOUSE
    tree = np.linalg.norm(flat - [0.7 * side, 0.7 * side], axis=1) < 5
    height[tree] += random.uniform(2, 8, size=int(tree.sum()))
    labels[tree] = TREE
    positions = np.column_stack([flat, height]) + np.array([676_000.0, 246_000.0, 500.0])
    return torch.from_numpy(positions), torch.from_numpy(labels)
