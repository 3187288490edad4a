"""The mean field in Triton's interpreter against its definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mean_field_cases import defined, field, marginals_and_gradients
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.compat.pydensecrf import densecrf
from permutohedral.ops.contract import FieldPlan, PairwiseTables
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton import BACKEND as kernels


def run_field(energies: Tensor, start: Tensor | None, tables: list[PairwiseTables], steps: int) -> Tensor:
    """The marginals that the kernels compute."""
    result = kernels.mean_field(energies, start, FieldPlan(tables, steps, False))
    return result[0]


@pytest.mark.parametrize(
    ("labels", "dtype", "with_costs"), [(2, torch.float32, False), (3, torch.float64, True), (21, torch.float32, False)]
)
def test_mean_field(labels: int, dtype: torch.dtype, with_costs: bool) -> None:
    energies, tables = field(labels, 19, dtype, with_costs)
    start = torch.softmax(torch.randn(2, labels, 19, dtype=dtype), dim=1)
    for some, begin, steps in ((tables[:1], None, 0), (tables[:2], None, 2), (tables[2:], start, 1)):
        found = run_field(energies, begin, some, steps)
        assert_close(found, defined(energies, begin, some, steps))


@pytest.mark.parametrize(("labels", "with_costs"), [(2, False), (5, True)])
def test_mean_field_gradients(labels: int, with_costs: bool) -> None:
    """Of kernels with the same scales at either end, and with others; with and without a start."""
    energies, tables = field(labels, 13, torch.float32, with_costs)
    start = torch.softmax(torch.randn(2, labels, 13), dim=1)
    for some, begin, steps in ((tables[:2], None, 3), (tables[2:], start, 2)):
        for one, other in marginals_and_gradients(kernels, energies, begin, some, steps):
            assert_close(one, other, torch.float32)


def test_energies_of_16_bits_and_without_end() -> None:
    _, tables = field(3, 37, torch.float32, False)
    energies = torch.randn(2, 3, 37).half()
    energies[0, :, 0] = torch.inf
    energies[1, 2, 1] = torch.inf
    found = run_field(energies, None, tables[:2], 0)
    assert found.dtype == torch.float32
    assert bool(found.isfinite().all())
    assert_close(found[:, :, 1:], torch.softmax(-energies.double(), dim=1)[:, :, 1:])
    # all labels of a point are alike then; and NaN, which is not checked on a GPU, is not taken for a number
    assert_close(found[0, :, 0], torch.full((3,), 1 / 3))
    energies[0, 1, 2] = torch.nan
    found = run_field(energies, None, tables[:2], 0)
    assert torch.equal(found.isnan().any(dim=1), energies.isnan().any(dim=1))


@pytest.mark.parametrize(("labels", "deterministic"), [(2, False), (6, False), (6, True)])
def test_mean_field_from_points(labels: int, deterministic: bool) -> None:
    """The lattices are those that are built first."""
    energies, start = torch.randn(2, 17, labels), torch.softmax(torch.randn(2, 17, labels), dim=2)
    clouds = torch.randn(2, 17, 2), torch.randn(2, 17, 5)
    given: Any = [ph.crf.Kernel(clouds[0], 2.0), ph.crf.Kernel(clouds[1], torch.randn(labels) ** 2 * -1, "transposed")]
    torch.use_deterministic_algorithms(deterministic)
    try:
        with use_backend("triton"):
            found = ph.crf.mean_field(energies, given, num_iterations=2, start=start)
    finally:
        torch.use_deterministic_algorithms(False)
    with use_backend("reference"):
        expected = ph.crf.mean_field(
            energies.double(),
            [replace(each, features=each.features.double()) for each in given],
            num_iterations=2,
            start=start.double(),
        )
    assert_close(found, expected)


@pytest.mark.parametrize("labels", [5, 65])
def test_any_number_of_kernels_and_many_labels(labels: int) -> None:
    """Three kernels are sliced by two launches; 65 labels are wider than the tiles of splat and blur."""
    energies, tables = field(labels, 13, torch.float32, False)
    for steps in (1, 2):
        found = run_field(energies, None, tables, steps)
        assert_close(found, defined(energies, None, tables, steps))
    for one, other in marginals_and_gradients(kernels, energies, None, tables, 2):
        assert_close(one, other, torch.float32)


def test_declines_more_labels_than_a_tile_holds() -> None:
    _, tables = field(3, 20, torch.float32, False)
    given = torch.randn(2, 257, 20), None, FieldPlan(tables[:1], 2, False)
    assert "at most 256 labels, got 257" in str(ph.backends.explain_call(kernels.mean_field, *given))


def test_the_drop_in_for_pydensecrf() -> None:
    """A field of a picture, and one of points: what they are on the backend for the CPU."""
    random = np.random.default_rng(0)
    picture, unary = (
        random.integers(0, 256, (4, 6, 3), dtype=np.uint8),
        random.uniform(0, 3, (3, 24)).astype(np.float32),
    )
    points = (2 * random.normal(size=(3, 24))).astype(np.float32)

    def solve() -> list[np.ndarray]:
        over_pixels, over_points = densecrf.DenseCRF2D(6, 4, 3), densecrf.DenseCRF(24, 3)
        over_pixels.addPairwiseGaussian(sxy=2, compat=3)
        over_pixels.addPairwiseBilateral(sxy=4, srgb=60, rgbim=picture, compat=np.array([1, 2, 3], np.float32))
        over_points.addPairwiseEnergy(points, compat=3)
        for each in (over_pixels, over_points):
            each.setUnaryEnergy(unary)
        return [np.array(each.inference(2)) for each in (over_pixels, over_points)]

    with use_backend("triton"):
        found = solve()
    for one, other in zip(found, solve(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
