"""Random calls: every backend agrees with the reference or raises one of the package's errors.

`HYPOTHESIS_PROFILE=search` searches twelve times as long, `long` sixty times.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuzz.agreement import OTHERS, assert_agreement, often, outcome_of, tolerance_of
from fuzz.cases import FLOAT64, Case, cases
from hypothesis import assume, given
from hypothesis import strategies as st
from support import TOLERANCE, relative_error, usable_backends
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, PermutohedralError
from permutohedral.filters.normalization import NORMALIZATIONS, Normalization

needs_another = pytest.mark.skipif(not OTHERS, reason="the reference is the only backend here")


@needs_another
@often
@given(case=cases(), normalization=st.sampled_from(NORMALIZATIONS))
def test_learned_filters(case: Case, normalization: Normalization) -> None:
    # the others divide by what a lattice point or a target receives, which jumps where rounding decides about a weight
    assume(case.generic or normalization == "none")

    def call() -> list[Tensor]:
        lattice = case.build(case.features())
        result = ph.permutohedral_filter(case.values(), lattice, case.weight(), normalization=normalization)
        return [result]

    assert_agreement(call, case, tolerance_of(case))


@needs_another
# generic: the separable Gaussian passes through lattice points, also those that points touch with weight zero
@often
@given(case=cases("generic"), fused=st.booleans())
def test_gaussians(case: Case, fused: bool) -> None:
    def call() -> list[Tensor]:
        lattice = case.build(case.features(), separable=True)
        values = case.values().requires_grad_(not fused)
        return [ph.gaussian_filter(values, lattice).detach()]

    assert_agreement(call, case, tolerance_of(case))


@needs_another
@often
@given(case=cases("generic", FLOAT64))
def test_gradients(case: Case) -> None:
    def call() -> list[Tensor]:
        features = [tensor.requires_grad_() for tensor in case.features()]
        values, weight = case.values().requires_grad_(), case.weight().requires_grad_()
        result = ph.permutohedral_filter(values, case.build(features), weight)
        return list(torch.autograd.grad(result.square().sum(), [values, weight, *features]))

    assert_agreement(call, case, TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", usable_backends())
@often
@given(case=cases())
def test_gaussian_stays_within_range_of_values(backend: str, case: Case) -> None:
    """An average with positive weights: never beyond the largest value, never NaN, whatever the finite features."""

    def call() -> list[Tensor]:
        values = case.values()
        return [values, ph.gaussian_filter(values, case.build(case.features(), separable=True))]

    outcome = outcome_of(call, backend, case.threads)
    if isinstance(outcome, PermutohedralError):
        finite = np.isfinite(case.source.features).all() and (
            case.target is None or np.isfinite(case.target.features).all()
        )
        assert isinstance(outcome, FeatureRangeError)
        assert not finite or case.magnitude > 2**22
        return
    values, result = outcome
    if values.numel() and result.numel():
        assert float(result.abs().max()) <= float(values.abs().max()) * (1 + tolerance_of(case))


@pytest.mark.parametrize("backend", usable_backends())
@given(
    case=cases("generic", FLOAT64, layouts=("flat",), targets=False),
    distance=st.sampled_from([2.0**8, 2.0**16 / 13, 2.0**17, 2.0**20]),
)
def test_distant_points_do_not_mix(backend: str, case: Case, distance: float) -> None:
    """Two clouds far apart are filtered as each by itself: a key that wrapped around would let them touch."""
    [near] = case.features()
    away = near + distance
    values, weight = case.values(), case.weight()

    def filtered(points: Tensor, some: Tensor) -> list[Tensor]:
        return [ph.permutohedral_filter(some, points, weight, neighborhood_size=case.size)]

    both = outcome_of(lambda: filtered(torch.cat([near, away]), torch.cat([values, -values])), backend, case.threads)
    alone = outcome_of(lambda: filtered(near, values), backend, case.threads)
    moved = outcome_of(lambda: filtered(away, -values), backend, case.threads)
    if isinstance(both, PermutohedralError):
        assert isinstance(both, FeatureRangeError)
        return
    assert not isinstance(alone, PermutohedralError)
    assert not isinstance(moved, PermutohedralError)
    # far from the origin, features have lost as many digits as they are large
    tolerance = TOLERANCE[torch.float64] + torch.finfo(torch.float64).eps * distance * (case.dimension + 1) ** 2
    assert relative_error(both[0], torch.cat([alone[0], moved[0]])) <= tolerance
