from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import DEVICE, assert_close
from torch import Tensor, nn

from experiments.training import count_weights
from permutohedral.apps.models.network import DeepDenoiser, Level, PermutohedralBlock
from permutohedral.errors import InputError

SMALL: dict[str, Any] = {"channels": [8, 12], "blocks": [1, 1], "permutohedral_blocks": [1, 0]}


def noisy_images(batch: int = 2, height: int = 13, width: int = 17) -> Tensor:
    return torch.rand(batch, 1, height, width, device=DEVICE)


def test_items_of_a_batch_do_not_mix() -> None:
    denoiser, noisy = DeepDenoiser().to(DEVICE), noisy_images(batch=3)
    together = denoiser(noisy)
    assert together.shape == noisy.shape
    for item in range(3):
        assert_close(denoiser(noisy[item : item + 1]), together[item : item + 1])


def test_rejects_color_images() -> None:
    with pytest.raises(InputError, match="gray images"):
        DeepDenoiser()(torch.rand(1, 3, 8, 8))


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
