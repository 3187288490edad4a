"""Denoisers that are linear in their weights."""

from __future__ import annotations

import pytest
import torch

from experiments.denoising.quadratic import LinearDenoiser, responses_of, set_weights, weights_of
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser


@pytest.mark.parametrize("model", [SpatialDenoiser, PermutohedralDenoiser, CombinedDenoiser])
def test_output_is_the_sum_of_the_responses_times_the_weights(model: type[LinearDenoiser]) -> None:
    denoiser = model()
    weights = torch.randn(weights_of(denoiser).shape)
    set_weights(denoiser, weights)
    assert torch.equal(weights_of(denoiser), weights)
    noisy = torch.rand(2, 1, 13, 17)
    expected = (responses_of(denoiser, noisy) * weights[:, None, None]).sum(dim=1, keepdim=True)
    torch.testing.assert_close(denoiser(noisy), expected, atol=1e-5, rtol=1e-5)
