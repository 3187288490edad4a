"""16-bit values: results in range are right even if an intermediate sum or gradient overflows."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.crf import energies_from_probabilities
from permutohedral.filters.normalization import Normalization
from permutohedral.guided.grids import Grids

pytestmark = pytest.mark.usefixtures("backend")

NORMALIZED = [each for each in get_args(Normalization) if each != "none"]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers, rounded to float16, as float64."""
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), torch.float16).double()


def in_precision(features: Tensor, dtype: torch.dtype) -> Tensor:
    return features.to(torch.float64 if dtype == torch.float64 else torch.float32)


def run_filter(
    dtype: torch.dtype,
    given: tuple[Tensor, Tensor, Tensor | None],
    normalization: Normalization,
    upstream: float = 1.0,
    weights: Tensor | None = None,
) -> list[Tensor]:
    """Apply a learned filter, and return its result and the gradients of values and filter."""
    values, features, targets = given
    out_channels = 3
    weight = draw(ph.lattice.Neighborhood(features.shape[-1], 1).filter_size, values.shape[-1], out_channels, seed=7)
    leaves = [each.to(dtype).requires_grad_() for each in (values, weight)]
    points = [None if each is None else in_precision(each, dtype) for each in (features, targets)]
    assert points[0] is not None
    output = ph.permutohedral_filter(
        leaves[0], points[0], leaves[1], points[1], normalization=normalization, sample_weight=weights
    )
    return [output.detach(), *torch.autograd.grad(output, leaves, torch.full_like(output, upstream))]


def assert_alike(found: list[Tensor], expected: list[Tensor]) -> None:
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == torch.float16
        assert_close(actual, wanted, torch.bfloat16)


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("channels", [2, 16])
def test_small_densities(channels: int, differentiated: bool) -> None:
    """A point that hardly touches a vertex: a gradient over its density is out of range."""
    features = torch.tensor([[3e-6], [9.1]], dtype=torch.float64, device=DEVICE)
    # with derivatives of the features it is composed of operators
    features.requires_grad_(differentiated)
    given = draw(2, channels), features, None
    found, expected = (run_filter(dtype, given, "density", 4.0) for dtype in (torch.float16, torch.float64))
    assert_alike(found, expected)


@pytest.mark.parametrize("normalization", NORMALIZED)
def test_crowded_points(normalization: Normalization) -> None:
    """Sums of values and of gradients are out of range, their means are not."""
    given = 100 + draw(2000, 2), torch.zeros(2000, 2, dtype=torch.float64, device=DEVICE), None
    found, expected = (run_filter(dtype, given, normalization, 40.0) for dtype in (torch.float16, torch.float64))
    # the gradient of a filter sums over all points, and is larger than any number of 16 bits
    assert_alike(found[:2], expected[:2])
    with torch.autocast(DEVICE.type, torch.float16):
        weight = torch.ones(7, 2, 3, device=DEVICE)
        for values in (given[0].float(), given[0].half()):
            output = ph.permutohedral_filter(values, given[1].float(), weight, normalization=normalization)
            assert output.dtype == torch.float16
            assert output.isfinite().all()


def test_unreached_targets() -> None:
    features, targets = (torch.tensor(each, dtype=torch.float64, device=DEVICE) for each in ([[0.0]], [[0.0], [9.0]]))
    given = draw(1, 2), features, targets
    found, expected = (run_filter(dtype, given, "homogeneous") for dtype in (torch.float16, torch.float64))
    assert_alike(found, expected)


@pytest.mark.parametrize("scale", [1e-8, 1e5])
@pytest.mark.parametrize("normalization", ["homogeneous", "density", "coverage"])
def test_invariant_to_scale_of_weights(normalization: Normalization, scale: float) -> None:
    given = draw(40, 2), draw(40, 2, seed=1), None
    weights = scale * (0.5 + torch.rand(40, device=DEVICE))
    found = run_filter(torch.float16, given, normalization, weights=weights)
    assert_alike(found, run_filter(torch.float64, given, normalization, weights=weights.double()))


@pytest.mark.parametrize("differentiated", [False, True])
def test_mass_of_many_points(differentiated: bool) -> None:
    values = torch.full((70_000, 1), 3.0, dtype=torch.float16, device=DEVICE, requires_grad=differentiated)
    filtered = ph.gaussian_filter(values, torch.zeros(70_000, 1, device=DEVICE))
    assert_close(filtered, torch.full_like(values, 3.0))


def test_distant_targets_do_not_fade() -> None:
    """The mass there is less than the smallest normal number of float16."""
    values, features = torch.ones(1, 1, dtype=torch.float16, device=DEVICE), torch.zeros(1, 1, device=DEVICE)
    targets = torch.tensor([[2.0], [4.0], [5.0]], device=DEVICE)
    assert_close(ph.gaussian_filter(values, features, targets, method="exact"), values.expand(3, 1))


@pytest.mark.parametrize("normalization", ["symmetric", "density", "coverage"])
def test_gaussians_of_large_values(normalization: Normalization) -> None:
    values, features = 8000 + 100 * draw(500, 1), draw(500, 2, seed=1) / 8
    narrow = ph.gaussian_filter(values.half(), features.float(), normalization=normalization)
    assert_close(narrow, ph.gaussian_filter(values.half().double(), features, normalization=normalization))


def test_logarithms_of_marginals_with_and_without_gradients() -> None:
    """Of labels whose marginals are zero, rounded: a loss in evaluation is that of training."""
    logits, guide = 60 * draw(1, 3, 12, 10).float(), torch.rand(1, 3, 12, 10, device=DEVICE)
    field = ph.nn.DenseCRF(3).to(DEVICE)
    with torch.no_grad():
        found = field(logits, guide)
    assert float(found.min()) < -100
    assert_close(found, field(logits, guide))


def test_networks_on_crowded_clouds() -> None:
    network = ph.nn.LatticeUNet(1, 2, step=1.0, widths=(8, 8)).to(DEVICE)
    values, features = 200 + draw(5000, 1), draw(5000, 3, seed=1) / 50
    wide = network(values.float(), features.float())
    assert_close(network.half()(values.half(), features.float()), wide, torch.bfloat16)


def test_interpolation_between_many_samples() -> None:
    coarse = draw(1, 160)
    grids = Grids((160,), (640,), "area")
    assert_close(grids.interpolate(coarse.bfloat16()), grids.interpolate(coarse.bfloat16().double()))


def test_coarsening_of_large_values() -> None:
    pyramid = ph.levels.build_pyramid(9 * draw(300, 3).float(), 2)
    layer = ph.nn.LatticeLinearDown(1, 1, 3).to(DEVICE)
    fine = torch.full((pyramid.levels[0].num_lattice_points, 1), 10_000.0, device=DEVICE)
    expected = layer(fine, pyramid, 0)
    assert_close(layer.half()(fine.half(), pyramid, 0), expected, torch.bfloat16)


def test_energies_of_impossible_labels() -> None:
    given = torch.tensor([0.0, 0.5], device=DEVICE)
    expected = energies_from_probabilities(given, smallest=1e-8)
    assert_close(energies_from_probabilities(given.half(), smallest=1e-8), expected)
