"""Networks with trained weights on a GPU, compared with the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import INTERPRETED

import permutohedral as ph

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the models are those of the CPU there")


@pytest.mark.parametrize("channels", [1, 3])
def test_denoises_an_image_of_any_device(channels: int) -> None:
    pixels = (0.5 + 0.1 * torch.randn(channels, 90, 120)).clamp(0, 1)
    denoiser = ph.apps.Denoiser.from_pretrained()
    expected = denoiser(pixels)
    for image in (pixels, pixels.cuda()):
        for device in ("cpu", "cuda"):
            denoised = denoiser.to(device)(image)
            assert denoised.device == image.device
            # convolutions of GPUs round differently
            assert float((denoised.cpu() - expected).abs().max()) < 1 / 255


def test_classifies_points() -> None:
    network = ph.apps.PointSegmenter(0, 3).eval()
    positions = 30 * torch.rand(2000, 3)
    given = torch.zeros(2000, 0), positions, torch.zeros(2000, dtype=torch.int64)
    expected = network(*given)
    found = network.cuda()(*(each.cuda() for each in given))
    assert found.is_cuda
    assert float((found.cpu() - expected).abs().max() / expected.abs().max()) < 1e-2


def test_jobs_compute_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    Image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    for device in ("cpu", "cuda:0"):
        [result] = ph.apps.filter_image(tmp_path / "photo.png", tmp_path / f"{device[:3]}.png", device=device)
        assert result.error is None
    cpu, gpu = (np.asarray(Image.open(tmp_path / f"{name}.png")).astype(int) for name in ("cpu", "cud"))
    # the methods of "auto" differ
    assert np.abs(cpu - gpu).mean() < 2
