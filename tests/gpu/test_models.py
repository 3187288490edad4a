"""Networks with trained weights on a GPU, compared with the CPU."""

from __future__ import annotations

import pytest
import torch
from support import INTERPRETED

import permutohedral as ph

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the models are those of the CPU there")


@pytest.mark.parametrize("model", ["auto", "pcnn_cnn"])
@pytest.mark.parametrize("channels", [1, 3])
def test_denoises_an_image_of_any_device(model: str, channels: int) -> None:
    pixels = (0.5 + 0.1 * torch.randn(channels, 90, 120)).clamp(0, 1)
    expected = ph.apps.Denoiser(model)(pixels)
    for image in (pixels, pixels.cuda()):
        for device in ("cpu", "cuda"):
            denoised = ph.apps.Denoiser(model, device=device)(image)
            assert denoised.device == image.device
            # convolutions of GPUs round differently
            assert float((denoised.cpu() - expected).abs().max()) < 1 / 255


def test_classifies_points() -> None:
    network = ph.apps.PointSegmenter.from_pretrained()
    positions = 30 * torch.rand(2000, 3)
    given = torch.zeros(2000, 0), positions, torch.zeros(2000, dtype=torch.int64)
    expected = network(*given)
    found = network.cuda()(*(each.cuda() for each in given))
    assert found.is_cuda
    assert float((found.cpu() - expected).abs().max() / expected.abs().max()) < 1e-2
