"""Seed the examples in docstrings, and stop sessions that would test another checkout."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

# the examples of the native backend need the compiled core
collect_ignore = [] if importlib.util.find_spec("permutohedral._native") else ["src/permutohedral/ops/native"]


def pytest_configure() -> None:
    """Stop where the package that is imported is that of another checkout, whose .venv runs here."""
    import permutohedral

    package, checkout = Path(permutohedral.__file__).resolve(), Path(__file__).resolve().parent
    if checkout not in package.parents:
        pytest.exit(f"these are the tests of {checkout}, but permutohedral is imported from {package.parent}: "
                    "use the .venv of this checkout, which `make setup` creates", returncode=4)  # fmt: skip


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed torch before every example; `torch.manual_seed` is slow."""
    torch.default_generator.manual_seed(0)
