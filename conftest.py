"""Examples in docstrings draw the same random numbers in every run; tests seed themselves."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed torch before every example; its own function for all devices is slow."""
    torch.default_generator.manual_seed(0)
