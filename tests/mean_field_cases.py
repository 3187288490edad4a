"""Inputs for fused mean-field solvers, and their unfused definition."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.ops import reference
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import FieldPlan, PairwiseTables


def kernel_over(
    features: Tensor, batch: Tensor, costs: Tensor | None, factor: float, powers: tuple[float, float]
) -> PairwiseTables:
    keys, vertices, barycentric, table = reference.index_points(features, batch)
    axis_neighbors = reference.find_neighbors(keys, table, keys, axis_offsets(features.shape[1]))
    # an even and an odd number of axes, either way
    return PairwiseTables(vertices, barycentric, axis_neighbors, *powers, costs, factor, features.shape[1] != 2)


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
            corners, rows = (kernel.vertices, kernel.barycentric.double()), kernel.axis_neighbors.shape[1]
            ones = torch.ones(items * points, 1, dtype=torch.float64)
            mass = reference.slice(
                reference.blur(reference.splat(ones, *corners, rows), kernel.axis_neighbors, False), *corners
            )
            splatted = reference.splat(marginals / mass**kernel.source_power, *corners, rows)
            blurred = reference.blur(splatted, kernel.axis_neighbors, False)
            if kernel.both_ways:
                blurred = (blurred + reference.blur(splatted, kernel.axis_neighbors, True)) / 2
            said = blurred if kernel.costs is None else blurred @ kernel.costs.double()
            logits = logits + kernel.factor * reference.slice(said, *corners) / mass**kernel.target_power
        marginals = torch.softmax(logits, dim=1)
    return marginals.reshape(items, points, labels).transpose(1, 2)


def field(labels: int, points: int, dtype: torch.dtype, with_costs: bool) -> tuple[Tensor, list[PairwiseTables]]:
    batch = torch.arange(2, dtype=torch.int32).repeat_interleave(points)
    kernels = []
    last = (3.0 / max(points, 100), (0.0, 0.0)) if with_costs else (1.0, (0.0, 1.0))
    for d, scale, factor, powers in ((2, 3.0, 2.0, (0.5, 0.5)), (5, 1.0, 3.0, (1.0, 0.0)), (1, 2.0, *last)):
        costs = torch.randn(labels, labels, dtype=dtype) if with_costs and d != 2 else None
        features = torch.randn(2 * points, d, dtype=dtype) * scale
        kernels.append(kernel_over(features, batch, costs, factor, powers))
    return torch.randn(2, labels, points, dtype=dtype), kernels


def move(kernel: PairwiseTables, device: str) -> PairwiseTables:
    moved: dict[str, Any] = {
        name: each.to(device) for name, each in kernel._asdict().items() if isinstance(each, Tensor)
    }
    return kernel._replace(**moved)


def marginals_and_gradients(
    backend: Any, energies: Tensor, start: Tensor | None, kernels: list[PairwiseTables], steps: int, device: str = "cpu"
) -> list[tuple[Tensor, Tensor]]:
    """What a backend computes on the device and what is defined: the marginals, and their gradients in a direction with
    respect to energies, start, and the costs or the factor of each kernel.
    """
    wanted = torch.randn(energies.shape, dtype=torch.float64)
    moved = [move(kernel, device) for kernel in kernels]
    given = energies.to(device), None if start is None else start.to(device)
    plan = FieldPlan(moved, steps, True)
    logits, kept = backend.mean_field(*given, plan)
    marginals = torch.softmax(logits.double(), dim=1).cpu()
    to_logits = marginals * (wanted - (marginals * wanted).sum(dim=1, keepdim=True))
    needed = (True,) * (2 + len(kernels))
    to_energies, to_start, *to_kernels = backend.mean_field_backward(to_logits.to(device), given, kept, needed, plan)
    inputs = [energies.double(), *([] if start is None else [start.double()])]
    parameters = [
        torch.tensor(kernel.factor, dtype=torch.float64) if kernel.costs is None else kernel.costs.double()
        for kernel in kernels
    ]
    for each in (*inputs, *parameters):
        each.requires_grad_()
    learned = [
        kernel._replace(factor=parameter) if kernel.costs is None else kernel._replace(costs=parameter)
        for kernel, parameter in zip(kernels, parameters, strict=True)
    ]
    expected_marginals = defined(inputs[0], None if start is None else inputs[1], learned, steps)
    expected = torch.autograd.grad(expected_marginals, [*inputs, *parameters], wanted)
    actual = [to_energies, *([] if start is None else [to_start]), *to_kernels]
    pairs = [(one.cpu().reshape(other.shape), other) for one, other in zip(actual, expected, strict=True)]
    return [(marginals, expected_marginals.detach()), *pairs]
