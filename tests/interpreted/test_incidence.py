"""Splat by gathering the points at each lattice point, in Triton's interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from interpreted.internals import incidence, kernel, learned_filter
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.filters.normalization import Normalization
from permutohedral.ops import reference
from permutohedral.ops.dispatch import use as use_backend


def corners(points: int, rows: int, crowded: int) -> tuple[Tensor, Tensor]:
    """Vertices and weights of the points; the first corner of many of them is one lattice point."""
    vertices = torch.randint(0, rows, (3, points), dtype=torch.int32)
    vertices[0, :crowded] = 2
    return vertices.T, torch.rand(3, points).T


def test_more_corners_than_can_be_sorted() -> None:
    vertices = torch.zeros(1, 1, dtype=torch.int32).expand(450_000_000, 5)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(InputError, match="fewer than 2,147,483,647 corners in deterministic mode, got 450,000,000"):
            incidence.build_incidence(vertices, vertices, 1)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("points", "rows", "crowded"), [(50, 90, 0), (90, 70, 41), (200, 5, 0), (1, 1, 1)],
    ids=["few at each", "many at one", "many at each", "one"],
)  # fmt: skip
def test_splat_listed(points: int, rows: int, crowded: int, deterministic: bool) -> None:
    """With a channel of ones; corners beyond the last row are left out."""
    vertices, barycentric = corners(points, rows + 3, crowded)
    values = torch.randn(points, 5)
    torch.use_deterministic_algorithms(deterministic)
    listed = incidence.build_incidence(vertices, barycentric, rows)
    torch.use_deterministic_algorithms(False)
    exactly = torch.cat([values, torch.ones(points, 1)], dim=1).double()
    expected = reference.splat(exactly, vertices, barycentric.double(), rows + 3)[:rows].float()
    assert_close(incidence.splat_listed(values, listed, torch.float32, ones=1), expected)
    density = torch.empty(rows)
    divided = incidence.splat_listed(values, listed, torch.float32, density=density)
    mass = torch.where(expected[:, 5] > 0, expected[:, 5], 1)
    assert_close(density, mass)
    assert_close(divided, expected[:, :5] / mass[:, None])


def test_splat_listed_on_two_lattices() -> None:
    """Few points at each lattice point or many, and few on one lattice, many on the other."""
    values = torch.randn(90, 5)
    for rows in ((70, 80), (8, 3), (70, 3)):
        sides = [corners(90, number, 0) for number in rows]
        listed = [incidence.build_incidence(*each, number) for each, number in zip(sides, rows, strict=True)]
        found = [values.new_empty(number, 5) for number in rows]
        kernel.launch_all(incidence.gather_into_both(found, values, listed))
        for actual, (vertices, barycentric), number in zip(found, sides, rows, strict=True):
            assert_close(actual, reference.splat(values.double(), vertices, barycentric.double(), number).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sums_of_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all points, in parts; the last part and the last channels are not whole."""
    monkeypatch.setattr(learned_filter, "_WORTH_PARTS", 1)
    monkeypatch.setattr(learned_filter, "_PARTS", 3)
    values = torch.randn(70, 293).to(dtype).T
    for given in (values, values.contiguous()[:, 3:], values[:1]):
        assert_close(learned_filter.sum_rows(given), given.double().sum(dim=0).to(dtype), dtype)


@pytest.mark.parametrize(("normalization", "elsewhere"), [("none", True), ("density", False)])
def test_a_filter_of_gathered_points(
    normalization: Normalization, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and gradients, at the points themselves and at others."""
    monkeypatch.setattr(incidence, "_MANY_POINTS", 1)
    monkeypatch.setattr(incidence, "_MANY_CHANNELS", 1)
    features, targets = 2 * torch.rand(30, 2), 2 * torch.rand(12, 2) if elsewhere else None
    layer = ph.nn.PermutohedralConv(3, 4, 2, normalization=normalization)
    values = torch.randn(30, 3, requires_grad=True)
    found = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            output = layer(values, features, targets)
            found.append((output, *torch.autograd.grad(output.square().sum(), (values, *layer.parameters()))))
    for expected, ours in zip(*found, strict=True):
        assert_close(ours, expected)
