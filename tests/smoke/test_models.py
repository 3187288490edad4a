"""Layers, random fields, guided upsampling, pyramids and shipped weights of an installed package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import permutohedral as ph


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def two_halves() -> Tensor:
    """Return an image `[3, 24, 32]`, dark on the left and bright on the right."""
    return (torch.arange(32) >= 16).float().expand(3, 24, 32) * 0.8 + 0.1


def train(layer: torch.nn.Module, *inputs: Tensor, target: Tensor) -> list[float]:
    optimizer, losses = torch.optim.Adam(layer.parameters(), lr=0.05), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(*inputs) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_permutohedral_conv_learns() -> None:
    torch.manual_seed(0)
    features, values = 3 * random(200, 2), random(200, 2, seed=1)
    losses = train(ph.nn.PermutohedralConv(2, 1, dimension=2), values, features, target=values.sum(1, keepdim=True))
    assert losses[-1] < losses[0] / 2


def test_bilateral_conv_learns() -> None:
    torch.manual_seed(0)
    image = random(2, 3, 12, 14)
    losses = train(ph.nn.BilateralConv2d(3, 1), image, target=image.mean(1, keepdim=True))
    assert losses[-1] < losses[0] / 2


def test_layer_loads_its_state() -> None:
    image = random(1, 3, 12, 14)
    layer, other = ph.nn.BilateralConv2d(3, 4), ph.nn.BilateralConv2d(3, 4)
    assert not torch.equal(layer(image), other(image))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(image), other(image), rtol=0, atol=1e-6)


def test_learned_sigma_has_a_gradient() -> None:
    layer = ph.nn.BilateralFilter(sigma_space=2.0, sigma_color=0.2, learn_sigma=True)
    layer(random(3, 12, 14)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_dense_crf_removes_an_isolated_label() -> None:
    guide, probabilities = two_halves(), torch.full((2, 24, 32), 0.2)
    probabilities[0, :, :16] = probabilities[1, :, 16:] = 0.8
    probabilities[:, 12, 5] = torch.tensor([0.3, 0.7])
    marginals = ph.nn.DenseCRF(2)(probabilities.log(), guide).softmax(0)
    expected = (torch.arange(32) >= 16).long().expand(24, 32)
    assert probabilities.argmax(0)[12, 5] == 1
    assert torch.equal(marginals.argmax(0), expected)


def test_mean_field_returns_marginals() -> None:
    kernel = ph.crf.bilateral_kernel(random(3, 20, 30), sigma_space=10.0, sigma_color=0.1, compatibility=4.0)
    energies = random(5, 20, 30, seed=1).requires_grad_()
    marginals = ph.crf.mean_field(energies, [kernel])
    torch.testing.assert_close(marginals.sum(0), torch.ones(20, 30))
    marginals[0].sum().backward()
    assert energies.grad is not None
    assert energies.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", ["solver", "gaussian", "affine"])
def test_upsample_follows_the_edge_of_the_guide(mode: str) -> None:
    coarse = torch.tensor([[1.0, 1.0, 5.0, 5.0]]).expand(1, 3, 4)
    result = ph.upsample(coarse, two_halves(), mode=mode)  # type: ignore[arg-type]
    assert result.shape == (1, 24, 32)
    torch.testing.assert_close(result[0, :, 15], torch.ones(24), rtol=0, atol=0.1)
    torch.testing.assert_close(result[0, :, 16], torch.full((24,), 5.0), rtol=0, atol=0.1)


def test_solver_fills_unknown_pixels() -> None:
    target = (torch.arange(32) >= 16).float().expand(1, 24, 32) * 4 + 1
    known = (random(24, 32) < 0.2).float()
    solved = ph.bilateral_solver(target * known, two_halves(), sample_weight=known)
    torch.testing.assert_close(solved, target, rtol=0, atol=0.1)


def test_interpolate_keeps_known_values() -> None:
    values, features = random(50, 2), 5 * random(50, 3, seed=1)
    values[::5] = float("nan")
    filled = ph.interpolate(values, features)
    known = ~values.isnan()
    assert torch.equal(filled[known], values[known])
    assert filled.isfinite().all()


def test_coarsen_sums_splatted_values() -> None:
    pyramid = ph.levels.build_pyramid((9 * random(200, 3)).double(), num_levels=3)
    values = random(200, 2, seed=1).double()
    rows = [ph.splat(values, lattice) for lattice in pyramid.levels]
    for level in (0, 1):
        torch.testing.assert_close(ph.levels.coarsen(rows[level], pyramid, level), rows[level + 1])


def test_pydensecrf_drop_in_returns_marginals() -> None:
    from permutohedral.compat.pydensecrf import densecrf

    field = densecrf.DenseCRF2D(16, 12, 2)
    field.setUnaryEnergy(random(2, 192).numpy())
    field.addPairwiseGaussian(sxy=3, compat=3)
    np.testing.assert_allclose(np.array(field.inference(2)).sum(axis=0), np.ones(192), atol=1e-5)


def test_shipped_weights_denoise() -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'permutohedral[images]'")
    clean = two_halves()
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    denoised = ph.apps.Denoiser.from_pretrained()(noisy)
    assert (denoised - clean).square().mean() < (noisy - clean).square().mean() / 2
