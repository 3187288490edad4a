"""Arguments of any shape, dtype and kind give a finite result or raise one of the package's errors.

All values are one and all points are equal, so a filter that is normalized returns ones.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fuzz.agreement import Outcome, often, outcome_of
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE, TOLERANCE, relative_error, usable_backends
from torch import Tensor

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS

pytestmark = pytest.mark.parametrize("backend", usable_backends())

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

extents = st.integers(0, 5)


@st.composite
def tensors(draw: st.DrawFn, fewest: int = 0, most: int = 4) -> Tensor:
    """Draw a tensor of any shape; usually of floats, on the device."""
    shape = draw(st.lists(extents, min_size=fewest, max_size=most))
    dtype = draw(st.just(torch.float32) | st.sampled_from(DTYPES))
    tensor = torch.ones(shape, device=DEVICE).to(dtype)
    return tensor.to("meta") if draw(st.integers(0, 19)) == 0 else tensor


numbers = st.integers(-2, 4) | st.sampled_from([2.5, float("nan"), 10**6, 2**70])
normalizations = st.just("homogeneous") | st.sampled_from(NORMALIZATIONS) | st.sampled_from(["", "other", "lattice"])
methods = st.just("lattice") | st.sampled_from(["dense", "exact", "auto"]) | st.sampled_from(["", "other"])
sigmas = st.just(0.5) | st.just(2.0) | st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 1e-300])


@st.composite
def points(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Draw values and features, most of which fit."""
    features, values = draw(tensors(2, 3)), draw(tensors())
    if draw(st.integers(0, 3)):
        values = torch.ones(*features.shape[:-1], draw(st.integers(1, 3)), dtype=features.dtype, device=features.device)
    return values, features


def assert_result(outcome: Outcome, like: Tensor | None = None, ones: bool = False) -> None:
    """Compare the result, if there is one, with the shape and dtype of `like`, and with ones."""
    for result in outcome if isinstance(outcome, list) else []:
        if like is not None:
            assert (result.shape, result.dtype) == (like.shape, like.dtype)
        if not result.is_meta:
            assert bool(result.isfinite().all())
            assert not ones or relative_error(result, torch.ones_like(result)) <= TOLERANCE[result.dtype]


@often
@given(
    features=tensors(2, 3),
    target=st.none() | tensors(2, 3),
    size=numbers,
    batch=st.none() | tensors(1, 1),
    halo=numbers,
    limit=st.sampled_from([None, 0, 100, 10**9]),
)
def test_build_lattice(
    backend: str, features: Tensor, target: Tensor | None, size: Any, batch: Tensor | None, halo: Any, limit: int | None
) -> None:
    outcome_of(
        lambda: [
            ph.build_lattice(
                features, target, neighborhood_size=size, batch=batch, halo=halo, memory_limit=limit
            ).neighbors
        ],
        backend,
    )


@often
@given(
    values=tensors(), features=tensors(2, 3), weight=tensors(1, 3), size=st.integers(0, 2), normalization=normalizations
)
def test_permutohedral_filter(
    backend: str, values: Tensor, features: Tensor, weight: Tensor, size: int, normalization: Any
) -> None:
    outcome_of(
        lambda: [
            ph.permutohedral_filter(values, features, weight, None, neighborhood_size=size, normalization=normalization)
        ],
        backend,
    )


@often
@given(given=points(), normalization=normalizations, method=methods, halo=st.sampled_from([0, 0, 1]) | numbers)
def test_gaussian_filter(
    backend: str, given: tuple[Tensor, Tensor], normalization: Any, method: Any, halo: Any
) -> None:
    values, features = given
    outcome = outcome_of(
        lambda: [ph.gaussian_filter(values, features, None, normalization=normalization, method=method, halo=halo)],
        backend,
    )
    assert_result(outcome, values, ones=normalization in ("homogeneous", "symmetric"))


@often
@given(image=tensors(), guide=st.none() | tensors(), space=sigmas, color=sigmas, method=methods)
def test_bilateral_filter(
    backend: str, image: Tensor, guide: Tensor | None, space: float, color: float, method: Any
) -> None:
    outcome = outcome_of(
        lambda: [ph.bilateral_filter(image, sigma_space=space, sigma_color=color, guide=guide, method=method)], backend
    )
    assert_result(outcome, image if image.is_floating_point() else None, ones=image.is_floating_point())


@often
@given(values=tensors(), lattice_values=tensors(), weight=tensors(1, 3), points=extents, dimension=st.integers(1, 3))
def test_steps(
    backend: str, values: Tensor, lattice_values: Tensor, weight: Tensor, points: int, dimension: int
) -> None:
    lattice = ph.build_lattice(torch.rand(points, dimension, device=DEVICE))
    assert_result(outcome_of(lambda: [ph.splat(values, lattice)], backend))
    assert_result(outcome_of(lambda: [ph.convolve(lattice_values, weight, lattice)], backend))
    assert_result(outcome_of(lambda: [ph.slice(lattice_values, lattice)], backend), ones=True)


@often
@given(values=tensors(), features=tensors(2, 3), channels=st.integers(-2, 4), dimension=numbers)
def test_layer(backend: str, values: Tensor, features: Tensor, channels: int, dimension: Any) -> None:
    outcome_of(lambda: [ph.nn.PermutohedralConv(channels, 2, dimension=dimension)(values, features)], backend)
