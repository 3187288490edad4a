"""The denoisers of the paper's Table (b)."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn

import permutohedral as ph
from experiments.denoising.models import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from experiments.training import count_weights
from permutohedral.errors import InputError

LINEAR = [SpatialDenoiser, PermutohedralDenoiser, CombinedDenoiser]


def noisy_images(batch: int = 2, height: int = 13, width: int = 17) -> Tensor:
    return torch.rand(batch, 1, height, width, device=DEVICE)


@pytest.mark.parametrize(
    ("model", "weights"), [(SpatialDenoiser, 25), (PermutohedralDenoiser, 65), (CombinedDenoiser, 90)]
)
def test_numbers_of_weights_match_the_paper(model: type[nn.Module], weights: int) -> None:
    assert count_weights(model()) == weights


@pytest.mark.parametrize("model", LINEAR)
def test_items_of_a_batch_do_not_mix(model: type[nn.Module]) -> None:
    denoiser, noisy = model().to(DEVICE), noisy_images(batch=3)
    together = denoiser(noisy)
    assert together.shape == noisy.shape
    for item in range(3):
        assert_close(denoiser(noisy[item : item + 1]), together[item : item + 1])
    with pytest.raises(InputError, match="gray images"):
        denoiser(torch.rand(1, 3, 8, 8))


def test_the_spatial_filter_is_a_correlation() -> None:
    denoiser = SpatialDenoiser(size=3)
    weight = torch.arange(9.0)
    denoiser.weight.data = weight.view(1, 1, 3, 3)
    impulse = torch.zeros(1, 1, 7, 7)
    impulse[0, 0, 3, 3] = 1
    assert torch.equal(denoiser(impulse)[0, 0, 2:5, 2:5], weight.reshape(3, 3).flip(0, 1))


def test_the_untrained_permutohedral_denoiser_is_the_gaussian_bilateral_filter() -> None:
    noisy = noisy_images(batch=1)
    places = ph.features.positions(noisy.shape[2:], sigma=1.5, device=DEVICE, dtype=noisy.dtype)
    features = ph.features.join(places, ph.features.colors(noisy[0], sigma=0.2))
    expected = ph.gaussian_filter(ph.features.colors(noisy[0]), features, method="dense")
    found = PermutohedralDenoiser(sigma_space=1.5, sigma_color=0.2).to(DEVICE)(noisy)
    assert_close(ph.features.colors(found[0]), expected)


def test_the_combined_denoiser_starts_as_the_permutohedral_one() -> None:
    noisy = noisy_images()
    assert_close(CombinedDenoiser().to(DEVICE)(noisy), PermutohedralDenoiser().to(DEVICE)(noisy))


def test_a_tile_with_its_origin_agrees_with_the_whole_inside() -> None:
    denoiser = CombinedDenoiser().to(DEVICE)
    nn.init.normal_(denoiser.spatial.weight)
    noisy = noisy_images(batch=1, height=40, width=60)
    whole = denoiser(noisy)
    tile = denoiser(noisy[..., 5:, 20:], origin=(5, 20))
    assert_close(tile[..., 12:, 12:], whole[..., 17:, 32:])


def test_the_scale_receives_gradients() -> None:
    denoiser = PermutohedralDenoiser(learn_sigma=True).to(DEVICE)
    denoiser(noisy_images()).square().sum().backward()
    gradient = denoiser.convolution.log_scale.grad  # type: ignore[union-attr]
    assert gradient is not None
    assert bool((gradient != 0).all())
