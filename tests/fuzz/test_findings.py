"""What the search found and is no error of the caller, as plain tests; errors of the caller are in test_errors.py."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE

import permutohedral as ph

pytestmark = pytest.mark.usefixtures("backend")


def test_no_channels_and_one_filter_for_all() -> None:
    lattice = ph.build_lattice(torch.rand(5, 1, device=DEVICE))
    lattice_values = torch.zeros(lattice.num_lattice_points, 0, device=DEVICE)
    convolved = ph.convolve(lattice_values, torch.ones(3, device=DEVICE), lattice)
    assert convolved.shape == (lattice.num_lattice_points, 0)
