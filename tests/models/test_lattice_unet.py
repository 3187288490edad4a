"""Networks on pyramids: items never mix, everything learns, and levels see far."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import permutohedral as ph
from permutohedral.models.lattice_unet import LatticeUNet


def clouds(points: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Values, features and items of three clouds."""
    return torch.randn(points, 2), torch.randn(points, 3) * 4, torch.arange(points) % 3


@pytest.mark.parametrize("channels", [(8,), (8, 12), (4, 8, 16)])
def test_items_never_mix(channels: tuple[int, ...]) -> None:
    values, features, batch = clouds()
    segment = LatticeUNet(2, 4, 3, channels)
    together = segment(values, features, batch)
    assert together.shape == (60, 4)
    for item in range(3):
        rows = batch == item
        torch.testing.assert_close(together[rows], segment(values[rows], features[rows]), rtol=1e-4, atol=1e-5)


def test_shared_pyramid_gives_the_same_result() -> None:
    values, features, batch = clouds()
    network = LatticeUNet(2, 4, channels=(8, 16))
    pyramid = ph.levels.build_pyramid(features, network.levels, batch=batch)
    torch.testing.assert_close(network(values, pyramid=pyramid), network(values, features, batch))
    with pytest.raises(ph.errors.InputError, match="pass exactly one"):
        network(values)
    with pytest.raises(ph.errors.InputError, match="pyramid must have 2 levels"):
        network(values, pyramid=ph.levels.build_pyramid(features, 3))
    with pytest.raises(ph.errors.InputError, match="width of each level"):
        LatticeUNet(2, 4, channels=())
    with pytest.raises(ph.errors.InputError, match="between must be one of 'linear', 'convolution'"):
        LatticeUNet(2, 4, between="nearest")  # type: ignore[arg-type]


def test_every_parameter_has_a_gradient() -> None:
    values, features, batch = clouds()
    learned = LatticeUNet(2, 4, channels=(8, 16), between="convolution")
    for network in (LatticeUNet(2, 4, channels=(8, 16)), learned):
        network(values, features, batch).square().sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().max()) > 0, name


def test_learns_from_far_points() -> None:
    """The class of a whole cloud is known at one end of it, and asked for at the other."""
    torch.manual_seed(0)
    along = torch.arange(24.0).repeat(8)
    features = torch.stack([along, torch.rand(192), torch.rand(192)], dim=1)
    batch = torch.arange(8).repeat_interleave(24)
    label = batch % 2
    values = torch.where((along == 0)[:, None], label[:, None].float() * 2 - 1, 0.0)
    far = along > 16
    network = LatticeUNet(1, 2, channels=(8, 8, 8, 8))
    pyramid = ph.levels.build_pyramid(features, 4, batch=batch)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(network(values, pyramid=pyramid)[far], label[far])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    predicted = network(values, pyramid=pyramid)[far].argmax(dim=1)
    assert float((predicted == label[far]).float().mean()) > 0.95
