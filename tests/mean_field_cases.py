"""Fields for the backends that solve them in one call, and the definition of what they return."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets
from permutohedral.ops import reference
from permutohedral.ops.primitives import PairwiseTables


def kernel_over(features: Tensor, batch: Tensor, costs: Tensor | None, factor: float) -> PairwiseTables:
    keys, vertices, barycentric, table = reference.index_points(features, batch)
    axis_neighbors = reference.find_neighbors(keys, table, keys, axis_offsets(features.shape[1]))
    scale = torch.rand(len(features), dtype=features.dtype) + 0.5
    # an even and an odd number of axes, either way
    return PairwiseTables(
        vertices, barycentric, axis_neighbors, scale, scale.flip(0), costs, factor, features.shape[1] != 2
    )


def defined(energies: Tensor, start: Tensor | None, kernels: list[PairwiseTables], steps: int) -> Tensor:
    """The definition, in float64."""
    items, labels, points = energies.shape

    def to_rows(planes: Tensor) -> Tensor:
        return planes.double().transpose(1, 2).reshape(items * points, labels)

    costs = to_rows(energies)
    marginals = torch.softmax(-costs, dim=1) if start is None else to_rows(start)
    for _ in range(steps):
        logits = -costs
        for kernel in kernels:
            scales = [each.double()[:, None] for each in (kernel.source_scale, kernel.target_scale) if each is not None]
            corners = kernel.vertices, kernel.barycentric.double()
            splatted = reference.splat(scales[0] * marginals, *corners, kernel.axis_neighbors.shape[1])
            blurred = reference.blur(splatted, kernel.axis_neighbors, False)
            if kernel.both_ways:
                blurred = (blurred + reference.blur(splatted, kernel.axis_neighbors, True)) / 2
            said = blurred if kernel.costs is None else blurred @ kernel.costs.double()
            logits = logits + kernel.factor * scales[1] * reference.slice(said, *corners)
        marginals = torch.softmax(logits, dim=1)
    return marginals.reshape(items, points, labels).transpose(1, 2)


def field(labels: int, points: int, dtype: torch.dtype, with_costs: bool) -> tuple[Tensor, list[PairwiseTables]]:
    batch = torch.arange(2, dtype=torch.int32).repeat_interleave(points)
    kernels = []
    for d, scale in ((2, 3.0), (5, 1.0), (1, 2.0)):
        costs = torch.randn(labels, labels, dtype=dtype) if with_costs and d != 2 else None
        features = torch.randn(2 * points, d, dtype=dtype) * scale
        kernels.append(kernel_over(features, batch, costs, 3.0 * d / max(points, 100)))
    return torch.randn(2, labels, points, dtype=dtype), kernels
