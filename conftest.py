"""Seed the examples in docstrings; tests/conftest.py seeds the tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed torch before every example; `torch.manual_seed` is slow."""
    torch.default_generator.manual_seed(0)
