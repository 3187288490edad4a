"""U-Nets on pyramids: batches, units of positions, heads, reach, and learning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.nn import LatticeGroupNorm, LatticeUNet


def clouds(points: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Values, features and items of three clouds."""
    return torch.randn(points, 2), torch.randn(points, 3) * 4, torch.arange(points) % 3


@pytest.mark.parametrize("widths", [(8,), (8, 12), (4, 8, 16)])
def test_items_never_mix(widths: tuple[int, ...]) -> None:
    values, features, batch = clouds()
    segment = LatticeUNet(2, 4, step=1.0, widths=widths)
    together = segment(values, features, batch)
    assert together.shape == (60, 4)
    for item in range(3):
        rows = batch == item
        torch.testing.assert_close(together[rows], segment(values[rows], features[rows]), rtol=1e-4, atol=1e-5)


def test_shared_pyramid_gives_the_same_result() -> None:
    values, features, batch = clouds()
    network = LatticeUNet(2, 4, step=1.0, widths=(8, 16))
    pyramid = ph.levels.build_pyramid(features, network.num_levels, batch=batch)
    torch.testing.assert_close(network(values, pyramid=pyramid), network(values, features, batch))
    with pytest.raises(InputError, match="pass exactly one"):
        network(values)
    with pytest.raises(InputError, match="pyramid must have 2 levels"):
        network(values, pyramid=ph.levels.build_pyramid(features, 3))
    with pytest.raises(InputError, match="channels of each level"):
        LatticeUNet(2, 4, step=1.0, widths=())
    with pytest.raises(InputError, match="between must be one of 'linear', 'convolution'"):
        LatticeUNet(2, 4, step=1.0, between="nearest")  # type: ignore[arg-type]


def test_every_parameter_has_a_gradient() -> None:
    values, features, batch = clouds()
    learned = LatticeUNet(2, 4, step=1.0, widths=(8, 16), between="convolution")
    for network in (LatticeUNet(2, 4, step=1.0, widths=(8, 16)), learned):
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
    network = LatticeUNet(1, 2, step=1.0, widths=(8, 8, 8, 8))
    pyramid = ph.levels.build_pyramid(features, 4, batch=batch)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(network(values, pyramid=pyramid)[far], label[far])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    predicted = network(values, pyramid=pyramid)[far].argmax(dim=1)
    assert float((predicted == label[far]).float().mean()) > 0.95


def test_step_is_in_units_of_the_positions() -> None:
    values, positions, batch = clouds()
    in_steps, in_meters = (LatticeUNet(2, 4, step=step, widths=(8, 16)) for step in (1.0, 0.25))
    in_meters.load_state_dict(in_steps.state_dict())
    torch.testing.assert_close(in_meters(values, positions / 4, batch), in_steps(values, positions, batch))
    with pytest.raises(TypeError, match="step"):
        LatticeUNet(2, 4)  # type: ignore[call-arg]
    for wrong in (0.0, -1.0, float("inf"), True, "1 m"):
        with pytest.raises(InputError, match="step must be a positive number in the units of the positions"):
            LatticeUNet(2, 4, step=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["points", "clouds"])
def test_batches_in_three_forms_have_the_same_scores(head: Any) -> None:
    values, positions = torch.randn(3, 20, 2), torch.randn(3, 20, 3) * 4
    batch = torch.arange(3).repeat_interleave(20)
    network = LatticeUNet(2, 4, step=1.0, widths=(8, 16), head=head).eval()
    ragged = network(values.flatten(0, 1), positions.flatten(0, 1), batch)
    assert ragged.shape == ((60, 4) if head == "points" else (3, 4))
    dense = network(values, positions)
    assert dense.shape == ((3, 20, 4) if head == "points" else (3, 4))
    torch.testing.assert_close(dense.reshape(ragged.shape), ragged)
    listed = network(list(values), list(positions))
    together = torch.cat(listed) if head == "points" else listed
    torch.testing.assert_close(together, ragged)
    # clouds of several sizes, and one cloud without a batch
    sizes = [20, 7, 13]
    parts = [(v[:size], p[:size]) for v, p, size in zip(values, positions, sizes, strict=True)]
    for found, part in zip(network(*map(list, zip(*parts, strict=True))), parts, strict=True):
        torch.testing.assert_close(found, network(*part).reshape(found.shape), rtol=1e-4, atol=1e-5)


def test_head_for_clouds_does_not_depend_on_order() -> None:
    values, positions, batch = clouds()
    network = LatticeUNet(2, 4, step=1.0, widths=(8, 16), head="clouds")
    order = torch.randperm(60)
    torch.testing.assert_close(
        network(values[order], positions[order], batch[order]), network(values, positions, batch)
    )
    network(values, positions, batch).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_network_of_positions_alone() -> None:
    _, positions, batch = clouds()
    network = LatticeUNet(0, 4, step=1.0, widths=(8, 16))
    expected = network(torch.zeros(60, 0), positions, batch)
    assert torch.equal(network(None, positions, batch), expected)
    assert network(None, positions.view(3, 20, 3)).shape == (3, 20, 4)
    assert torch.equal(network(None, pyramid=network.build_pyramid(positions, batch)), expected)
    with pytest.raises(InputError, match=r"values must be \[\.\.\., points, 2\] .* got 'NoneType'"):
        LatticeUNet(2, 4, step=1.0)(None, positions)
    with pytest.raises(InputError, match=r"takes 0 channels, got shape \(60, 1\)"):
        network(torch.zeros(60, 1), positions)


@pytest.mark.parametrize(
    ("scale", "items", "remedy"),
    [(1000.0, 1, "a larger step"), (0.01, 1, "a smaller step"), (0.01, 4, "a smaller step")],
)
def test_warns_once_where_the_step_does_not_fit(scale: float, items: int, remedy: str) -> None:
    positions, batch = scale * torch.rand(8000, 3), torch.arange(8000) % items
    network = LatticeUNet(0, 4, step=0.5, widths=(4,))
    with pytest.warns(UserWarning, match=rf"step=0\.5 does not fit .* 8,000 points have [\d,]+ .*{remedy}") as found:
        network(None, positions, batch)
    assert [each.filename for each in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(None, positions, batch)


@pytest.mark.parametrize(("points", "scale"), [(8000, 5.0), (8000, 1.0), (50, 1000.0), (500, 0.01)])
def test_does_not_warn_where_the_step_fits(points: int, scale: float) -> None:
    """Nor for few points, which share little or much with any step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LatticeUNet(0, 4, step=0.5, widths=(4,))(None, scale * torch.rand(points, 3))


@pytest.mark.parametrize("between", ["linear", "convolution"])
@pytest.mark.parametrize(("widths", "blocks", "size"), [((4,), 2, 1), ((4, 4), (1, 2), 1), ((4, 4, 4), 1, 2)])
def test_reach_is_how_far_a_point_sees(
    widths: tuple[int, ...], blocks: Any, size: int, between: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line, where the bound is tight. Normalizations see the whole cloud, so they are left out."""
    monkeypatch.setattr(LatticeGroupNorm, "forward", lambda self, values, *others, **options: values)
    network = LatticeUNet(1, 2, 1, step=0.5, widths=widths, blocks=blocks, neighborhood_size=size, between=between)
    reach = network.reach() * network.step
    positions = torch.linspace(-1.2 * reach, 1.2 * reach, 2001, dtype=torch.float64)[:, None]
    values = torch.zeros(2001, 1, dtype=torch.float64, requires_grad=True)
    [gradient] = torch.autograd.grad(network.double()(values, positions)[1000].sum(), values)
    seen = positions[gradient[:, 0] != 0].abs().max()
    assert 0.9 * reach < float(seen) <= reach
    assert LatticeUNet(1, 2, step=1.0, head="clouds").reach() == float("inf")


def test_blocks_and_neighborhoods_of_each_level() -> None:
    values, positions, batch = clouds()
    small, large = (
        LatticeUNet(2, 4, step=1.0, widths=(8, 16), blocks=blocks, neighborhood_size=size)
        for blocks, size in ((1, 1), ((1, 3), 2))
    )
    assert large(values, positions, batch).shape == small(values, positions, batch).shape
    assert sum(map(torch.numel, large.parameters())) > 4 * sum(map(torch.numel, small.parameters()))
    with pytest.raises(InputError, match="one for each of 2 levels"):
        LatticeUNet(2, 4, step=1.0, widths=(8, 16), blocks=(1, 2, 3))


def test_dropout_and_density_input() -> None:
    values, positions, batch = clouds()
    network = LatticeUNet(2, 4, step=1.0, widths=(8, 16), dropout=0.5)
    assert not torch.equal(network(values, positions, batch), network(values, positions, batch))
    assert torch.equal(network.eval()(values, positions, batch), network(values, positions, batch))
    # every point twice
    twice = [torch.cat([each, each]) for each in (values, positions, batch)]
    for density_input in (True, False):
        network = LatticeUNet(2, 4, step=1.0, widths=(8, 16), density_input=density_input)
        same = torch.allclose(network(*twice)[:60], network(values, positions, batch), atol=1e-5, rtol=1e-4)
        assert same is not density_input


def test_rejects_wrong_arguments() -> None:
    network = LatticeUNet(2, 4, step=1.0)
    values, positions, batch = clouds()
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((values, positions[:, :2]), r"positions must be \[points, 3\]"),
        ((values, positions.half()), "positions must be float32 or float64"),
        (([values], [positions], batch), "batch must be None for lists"),
        (([values, values], [positions]), "lists with a tensor of each cloud"),
        (([values[1:]], [positions]), "lists with a tensor of each cloud"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InputError, match=message):
            network(*arguments)
    with pytest.raises(InputError, match="head must be one of 'points', 'clouds'"):
        LatticeUNet(2, 4, step=1.0, head="voxels")  # type: ignore[arg-type]
