"""What every test runs under: a backend, a dtype, fixed seeds, poisoned memory, and a bounded search for examples."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from poison import poisoned_memory
from support import DETERMINISTIC, DEVICE, usable_backends

from permutohedral.ops import dispatch


def register_profiles() -> None:
    """How long hypothesis searches for examples."""
    import hypothesis

    suite = hypothesis.settings(
        max_examples=16,
        deadline=None,
        derandomize=True,
        database=None,
        # the fixtures set the backend and the poison, which hold for all examples of a test alike
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
    # "search" is that of `make fuzz`, "interpreted" the same with Triton's interpreter
    for name, examples in (("suite", 16), ("long", 1000), ("search", 200), ("interpreted", 15)):
        hypothesis.settings.register_profile(name, parent=suite, max_examples=examples)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


# a GPU machine may have pytest only
if importlib.util.find_spec("hypothesis") is not None:
    register_profiles()


@pytest.fixture(params=usable_backends())
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force each backend that runs on the device, one after another."""
    with dispatch.use_backend(request.param):
        yield request.param


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The dtypes of features."""
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(autouse=True)
def seeds() -> None:
    """The same random numbers in every run, whatever the order of the tests."""
    # manual_seed of torch itself notes the whole call stack for a GPU that may be used later: milliseconds
    (torch.default_generator if DEVICE.type == "cpu" else torch).manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def random() -> np.random.Generator:
    """A generator of its own for each test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def determinism() -> Iterator[None]:
    """Torch's default mode, or its deterministic one for the whole session; a test may change it for itself.

    `warn_only`, because on CUDA some operations of torch have no deterministic twin.
    """
    # a call that changes nothing still loads the compiler, which takes seconds
    if DETERMINISTIC:
        torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Reading what was never written shows."""
    with poisoned_memory():
        yield
