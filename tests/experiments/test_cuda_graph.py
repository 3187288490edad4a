"""A training step as a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE, relative_error
from torch import Tensor

from permutohedral.experiments.cuda_graph import CapturedStep
from permutohedral.models.deep_denoising import DeepDenoiser

pytestmark = pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")


def mean_squared(output: Tensor, clean: Tensor) -> Tensor:
    return (output - clean).square().mean()


def test_a_replay_computes_what_the_step_computes() -> None:
    torch.manual_seed(0)
    model = DeepDenoiser([8, 12], [1, 1], [1, 0], lattice_channels=4).to(DEVICE)
    batches = [(torch.rand(2, 1, 32, 32, device=DEVICE), torch.rand(2, 1, 32, 32, device=DEVICE)) for _ in range(3)]
    model.bound_lattices(2.0)
    step = CapturedStep(model, mean_squared, batches[0])
    for noisy, clean in batches:
        loss = float(step(noisy, clean))
        found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        expected = mean_squared(model(noisy), clean)
        gradients = torch.autograd.grad(expected, list(model.parameters()))
        assert abs(loss / float(expected) - 1) < 1e-4
        for actual, gradient in zip(found, gradients, strict=True):
            assert relative_error(actual, gradient) < 1e-3
    assert 0 < model.lattice_fullness() <= 1
