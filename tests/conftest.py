"""What every test shares: the device, the backends, the tolerances, seeds, and poisoned memory.

`PERMUTOHEDRAL_TEST_DEVICE` names the device (default: cpu); the same suite runs on a GPU machine with `cuda`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import hypothesis
import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from permutohedral.ops import dispatch

DEVICE = torch.device(os.environ.get("PERMUTOHEDRAL_TEST_DEVICE", "cpu"))

# largest error allowed, relative to the largest magnitude expected; nowhere else in the suite is a tolerance
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

hypothesis.settings.register_profile(
    "suite",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    # the fixtures set the backend and the poison, which hold for all examples of a test alike
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

AssertClose = Callable[..., None]


def _usable_backends() -> list[str]:
    return [b.name for b in dispatch._BACKENDS if b.refusal(DEVICE.type) is None]


@pytest.fixture
def device() -> torch.device:
    """Where the tensors of a test live."""
    return DEVICE


@pytest.fixture(params=_usable_backends())
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force each backend that runs on the device, one after another."""
    with dispatch.use_backend(request.param):
        yield request.param


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The dtypes of features."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers in every run, whatever the order of the tests."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def random() -> np.random.Generator:
    """A generator of its own for each test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill `torch.empty` with NaN (the largest integer for integers), so that reading what was never written shows.

    torch does so only in its deterministic mode; `warn_only` because CUDA has no deterministic twin for some ops.
    """
    fill, mode = torch.utils.deterministic.fill_uninitialized_memory, torch.get_deterministic_debug_mode()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def relative_error(actual: Tensor, expected: ArrayLike | Tensor) -> float:
    """max |actual - expected| / max |expected|, in float64; infinite where the shapes differ or NaN appears."""
    left = actual.detach().cpu().double()
    right = torch.as_tensor(expected).detach().cpu().double()
    if left.shape != right.shape:
        return float("inf")
    if left.numel() == 0:
        return 0.0
    error, scale = (left - right).abs().max(), right.abs().max()
    if not bool(torch.isfinite(error)):
        return float("inf")
    return float(error) if float(scale) == 0.0 else float(error / scale)


@pytest.fixture
def assert_close() -> AssertClose:
    """Compare with the tolerance of the actual result's dtype, or of `dtype` where inputs were coarser."""

    def check(actual: Tensor, expected: ArrayLike | Tensor, dtype: torch.dtype | None = None) -> None:
        tolerance = TOLERANCE[dtype or actual.dtype]
        error = relative_error(actual, expected)
        shapes = f"shapes {tuple(actual.shape)} and {tuple(torch.as_tensor(expected).shape)}"
        assert error <= tolerance, f"relative error {error:.3g} exceeds {tolerance:g} ({shapes})"

    return check


@pytest.fixture
def tensor(device: torch.device) -> Callable[..., Tensor]:
    """A NumPy array as a tensor on the device."""

    def make(array: ArrayLike, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.as_tensor(np.asarray(array)).to(device=device, dtype=dtype)

    return make
