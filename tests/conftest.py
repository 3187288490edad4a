"""Fixtures of all tests: backends, dtypes, seeds and poisoned memory; marks of whole files; hypothesis profiles."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from poison import poisoned_memory
from support import DETERMINISTIC, DEVICE, usable_backends

from permutohedral.ops import dispatch

TORCH, WHOLE_GRAPHS = tuple(int(part) for part in torch.__version__.split(".")[:2]), (2, 11)
# marks of folders and files, by the beginning of their path; single tests are marked in their files
MARKS = {
    "slow": (
        *(
            "apps/cli/test_clouds.py",
            "figures",
            "apps/jobs/test_clouds.py",
            "filters/test_color_grid.py",
            "fuzz",
            "apps/models",
        ),
        *("guided/test_transforms.py", "nn/test_compiled_gradients.py", "ops/test_operators.py"),
        *(
            "ops/test_triton_compile.py",
            "reliability",
            "test_compile.py",
            "test_laws.py",
            "test_layouts.py",
            "test_limits.py",
            "test_transforms.py",
            "tools",
        ),
    ),
    "process": (
        *(
            "apps/cli/test_application.py",
            "apps/cli/test_start.py",
            "dask_arrays/test_cluster.py",
            "dropins/test_install.py",
        ),
        *("apps/jobs/test_tiles.py", "native", "nn/test_distributed.py"),
        *("ops/test_native_memory.py", "ops/test_threads.py", "test_modes.py"),
        *("reliability/test_interruption.py", "reliability/test_memory.py"),
    ),
    "disk": ("reliability/test_cloud_files.py", "reliability/test_faults.py"),
    "browser": ("apps/playground/test_browser.py",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        for mark, beginnings in MARKS.items():
            if path.startswith(beginnings):
                item.add_marker(mark)
        # torch.compile takes seconds
        if "compil" in item.name:
            item.add_marker("slow")
        if WHOLE_GRAPHS > TORCH and any(word in path + item.name for word in ("compil", "export")):
            item.add_marker(pytest.mark.skip(reason="whole graphs need torch 2.11"))


def register_profiles() -> None:
    """Set how long hypothesis searches for examples."""
    import hypothesis

    suite = hypothesis.settings(
        max_examples=16,
        deadline=None,
        derandomize=True,
        database=None,
        # the backend and the poison are the same for all examples of a test
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
    # CONTRIBUTING.md uses "search", and "interpreted" under Triton's interpreter
    for name, examples in (("suite", 16), ("long", 1000), ("search", 200), ("interpreted", 15)):
        hypothesis.settings.register_profile(name, parent=suite, max_examples=examples)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


# a GPU machine may have pytest only
if importlib.util.find_spec("hypothesis") is not None:
    register_profiles()


@pytest.fixture(params=usable_backends())
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force each backend that runs on the device."""
    with dispatch.use(request.param):
        yield request.param


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Return each dtype of features."""
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed torch and NumPy before every test."""
    # torch.manual_seed records the call stack for a GPU that may be used later, which takes milliseconds
    (torch.default_generator if DEVICE.type == "cpu" else torch).manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def random() -> np.random.Generator:
    """Return a seeded generator."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def determinism() -> Iterator[None]:
    """Set torch's deterministic mode if the session asks for it, and reset it after each test.

    `warn_only`, because some CUDA operations of torch have no deterministic version.
    """
    # called only if needed: it loads the compiler, which takes seconds
    if DETERMINISTIC:
        torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fill uninitialized memory with NaN."""
    with poisoned_memory():
        yield
