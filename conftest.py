"""Seed the examples in docstrings; tests/conftest.py seeds the tests."""

from __future__ import annotations

import importlib.util

import pytest
import torch

# the examples of the native backend need the compiled core
collect_ignore = [] if importlib.util.find_spec("permutohedral._native") else ["src/permutohedral/ops/native"]


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed torch before every example; `torch.manual_seed` is slow."""
    torch.default_generator.manual_seed(0)
