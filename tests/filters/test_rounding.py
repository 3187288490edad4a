"""Results must not jump where rounding decides whether a corner of weight nil has a lattice point."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE
from torch import Tensor

import permutohedral as ph

# in standard deviations; a step of the values is a quarter
STEP = 1e-7


def gray_picture() -> tuple[Tensor, Tensor]:
    """Values and features of regular pixels, of which many lie on faces of their simplices."""
    y, x = torch.meshgrid(torch.arange(40), torch.arange(50), indexing="ij")
    gray = ((x // 3 + y // 5) % 4 + (x > 25)).double().to(DEVICE) / 4
    places = ph.features.positions((40, 50), sigma=4.0, device=DEVICE, dtype=torch.float64)
    return gray.reshape(-1, 1), ph.features.join(places, ph.features.colors(gray[None], sigma=0.125))


def largest_change(**options: Any) -> float:
    """Of the result, when features change by no more than rounding."""
    values, features = gray_picture()
    before, changes = ph.gaussian_filter(values, features, **options), []
    for seed in range(3):
        noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        moved = features + STEP * noise
        changes.append(float((ph.gaussian_filter(values, moved, **options) - before).abs().max()))
    return max(changes)


@pytest.mark.parametrize("options", [{"halo": 1}, {"halo": 2}, {"method": "dense"}, {"method": "exact"}], ids=str)
def test_what_does_not_depend_on_rounding(options: dict[str, Any]) -> None:
    assert largest_change(**options) < 1e-5


def test_what_depends_on_it() -> None:
    """The default, whose paths lead through such lattice points: else nothing above would be shown."""
    assert largest_change() > 1e-4


def test_both_precisions_agree_with_a_halo() -> None:
    values, features = gray_picture()
    single = ph.gaussian_filter(values.float(), features.float(), halo=1)
    assert float((single - ph.gaussian_filter(values, features, halo=1)).abs().max()) < 1e-5
