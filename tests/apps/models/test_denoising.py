from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import DEVICE, assert_close
from torch import Tensor, nn

import permutohedral as ph
from experiments.training import count_weights
from permutohedral.apps.models.deep_denoising import DeepDenoiser, Level, PermutohedralBlock
from permutohedral.apps.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from permutohedral.errors import InputError

LINEAR = [SpatialDenoiser, PermutohedralDenoiser, CombinedDenoiser]
SMALL: dict[str, Any] = {"channels": [8, 12], "blocks": [1, 1], "permutohedral_blocks": [1, 0]}


def noisy_images(batch: int = 2, height: int = 13, width: int = 17) -> Tensor:
    return torch.rand(batch, 1, height, width, device=DEVICE)


@pytest.mark.parametrize(
    ("model", "weights"), [(SpatialDenoiser, 25), (PermutohedralDenoiser, 65), (CombinedDenoiser, 90)]
)
def test_numbers_of_weights_match_the_paper(model: type[nn.Module], weights: int) -> None:
    assert count_weights(model()) == weights


@pytest.mark.parametrize("model", [*LINEAR, DeepDenoiser])
def test_items_of_a_batch_do_not_mix(model: type[nn.Module]) -> None:
    denoiser, noisy = model().to(DEVICE), noisy_images(batch=3)
    together = denoiser(noisy)
    assert together.shape == noisy.shape
    for item in range(3):
        assert_close(denoiser(noisy[item : item + 1]), together[item : item + 1])


@pytest.mark.parametrize("model", [*LINEAR, DeepDenoiser])
def test_rejects_color_images(model: type[nn.Module]) -> None:
    with pytest.raises(InputError, match="gray images"):
        model()(torch.rand(1, 3, 8, 8))


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


def test_permutohedral_blocks_follow_the_coarser_grids() -> None:
    body: Level | None = DeepDenoiser(channels=[8, 12, 16], blocks=[1, 2, 2], permutohedral_blocks=[0, 1, 2]).body
    kinds = []
    while body is not None:
        kinds.append(["".join(type(block).__name__[0] for block in part) for part in (body.before, body.after)])
        body = body.coarser
    assert kinds == [["S", "S"], ["SS", "PSS"], ["", "PSPS"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"permutohedral_blocks": [2, 0]}, "between 0 and blocks = 1, got 2"),
        ({"channels": [8]}, "one number per grid"),
        ({"repeats": 0}, "repeats"),
        ({"embedding_dimension": 0}, "embedding_dimension"),
    ],
)
def test_rejects_wrong_options_of_the_deep_denoiser(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeepDenoiser(**(SMALL | options))


def test_every_weight_of_the_deep_denoiser_takes_part() -> None:
    denoiser = DeepDenoiser(**SMALL).to(DEVICE)
    denoiser(noisy_images()).square().sum().backward()
    for name, parameter in denoiser.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_repeats_share_their_weights() -> None:
    once, twice = DeepDenoiser(**SMALL), DeepDenoiser(**SMALL, repeats=2)
    assert count_weights(once) == count_weights(twice)
    twice.load_state_dict(once.state_dict())
    noisy = noisy_images().cpu()
    assert not torch.allclose(once(noisy), twice(noisy))


def test_the_deep_denoiser_does_not_depend_on_the_memory_format() -> None:
    denoiser, noisy = DeepDenoiser(**SMALL).to(DEVICE), noisy_images()
    denoised = denoiser(noisy)
    other_format: nn.Module = denoiser.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert_close(other_format(noisy), denoised)


def test_the_embedding_of_the_deep_denoiser_receives_gradients_and_is_bounded() -> None:
    block = PermutohedralBlock(channels=8, extent=3.0).to(DEVICE)
    rows = 100 * torch.randn(2, 90, 8, device=DEVICE)
    assert float(block.features(rows, (9, 10))[..., 2:].detach().abs().max()) <= 3.0
    block(torch.randn(2, 8, 9, 10, device=DEVICE)).square().sum().backward()
    assert float(block.embed.weight.grad.abs().min()) > 0  # type: ignore[union-attr]


def test_a_deep_denoiser_learns() -> None:
    torch.manual_seed(0)
    denoiser = DeepDenoiser(**SMALL, lattice_channels=4).to(DEVICE)
    clean = F.interpolate(torch.rand(4, 1, 4, 4, device=DEVICE), size=(16, 16))
    noisy = clean + 0.1 * torch.randn_like(clean)
    optimizer = torch.optim.Adam(denoiser.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = (denoiser(noisy) - clean).square().mean()
        loss.backward()
        optimizer.step()
    # the noisy input itself has an error of 0.01
    assert float(loss.detach()) < 0.006
