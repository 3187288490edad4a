"""Classifiers of digits at scattered points."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor

from experiments.mnist.model import (
    FilledStem,
    LeNet,
    LeNetModel,
    PermutohedralStem,
    build_lenet,
    grid_positions,
    interpolate_to_grid,
)
from permutohedral import permutohedral_filter
from permutohedral.errors import InputError

MODELS: tuple[LeNetModel, ...] = ("lenet", "pcnn", "filled")


def scattered(batch: int, samples: int) -> tuple[Tensor, Tensor]:
    positions = torch.rand(batch, samples, 2, device=DEVICE) * 27
    return torch.rand(batch, samples, 1, device=DEVICE), positions


def test_interpolation_weighs_bilinearly_and_leaves_holes() -> None:
    whole = torch.rand(2, 1, 28, 28, device=DEVICE)
    positions = grid_positions(device=DEVICE).expand(2, -1, -1)
    assert_close(interpolate_to_grid(whole.flatten(1)[..., None], positions), whole)
    values = torch.tensor([[[1.0], [3.0]]])
    image = interpolate_to_grid(values, torch.tensor([[[5.0, 5.25], [5.0, 5.75]]]))
    assert_close(image[0, 0, 5, 4:8], torch.tensor([0.0, 0.75 * 1 + 0.25 * 3, 0.25 * 1 + 0.75 * 3, 0.0]))
    assert image.count_nonzero() == 2


@pytest.mark.parametrize("model", MODELS)
def test_scores_have_a_gradient_for_every_weight(model: LeNetModel) -> None:
    network = build_lenet(model, {"channels": [4, 6], "hidden": 20, "rectify": True}).to(DEVICE)
    network(*scattered(3, 200)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("model", MODELS)
def test_items_do_not_mix_and_are_at_the_pixels_by_default(model: LeNetModel) -> None:
    network = build_lenet(model).to(DEVICE)
    values, positions = scattered(3, 157)
    together = network(values, positions)
    assert together.shape == (3, 10)
    assert_close(together[1:2], network(values[1:2], positions[1:2]))
    values = torch.rand(2, 784, 1, device=DEVICE)
    expected = network(values, grid_positions(device=DEVICE).expand(2, -1, -1))
    assert_close(network(values), expected)
    # from cached lattices
    assert_close(network(values), expected)


def test_the_stem_is_the_filter_of_the_paper() -> None:
    stem = PermutohedralStem(5, neighborhood_size=1, scale=0.8, normalization="none").to(DEVICE)
    values, positions = scattered(2, 300)
    weight, bias = stem.convolution.weight, stem.convolution.bias
    assert bias is not None
    for item in range(2):
        expected = permutohedral_filter(values[item], positions[item] * 0.8, weight, grid_positions(2, DEVICE) * 0.8)
        image = stem(values, positions)[item]
        assert_close(image[:, 3, 7], expected[3 * 24 + 7] + bias)


def test_filling_leaves_no_holes() -> None:
    """A constant is seen as such however few the samples are, where the plain filter sees their gaps."""
    _, positions = scattered(2, 100)
    values = torch.full((2, 100, 1), 0.7, device=DEVICE)
    stem = FilledStem(3, coarse_sigmas=[1.0, 4.0]).to(DEVICE)
    assert stem.convolution.bias is not None
    expected = 0.7 * stem.convolution.weight.sum(dim=(0, 1)) + stem.convolution.bias
    assert_close(stem(values, positions), expected[:, None, None].expand(2, 3, 24, 24))
    plain = PermutohedralStem(3).to(DEVICE)(values, positions).detach()
    assert float(plain.std(dim=(2, 3)).min()) > 0.01


def test_filling_keeps_what_is_known() -> None:
    """With a vanishing prior the samples alone count where there are any."""
    values, positions = torch.rand(1, 784, 1, device=DEVICE), grid_positions(device=DEVICE)[None]
    stem, plain = FilledStem(3, prior=1e-6).to(DEVICE), PermutohedralStem(3).to(DEVICE)
    plain.load_state_dict(stem.state_dict())
    # inside, where the filter does not reach beyond the pixels
    inner = (slice(None), slice(None), slice(6, 18), slice(6, 18))
    difference = (stem(values, positions) - plain(values, positions))[inner]
    assert float(difference.detach().abs().max()) < 1e-4


@pytest.mark.parametrize("options", [{"sise": 3}, {"prior": 0.0}, {"coarse_sigmas": []}])
def test_rejects_wrong_options(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        build_lenet("filled", options)
    assert isinstance(build_lenet("filled"), LeNet)
