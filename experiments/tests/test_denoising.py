"""Denoising: training on made images, crops, and the weights of the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import DEVICE

from experiments.data.bsds500 import GrayImage
from experiments.denoising import run as denoising
from experiments.denoising.crops import CropSampler
from experiments.denoising.run import EXPERIMENTS, DenoisingConfig, EightViews, build_model, run
from experiments.denoising.ship import DEEP_ROW, add_deep, tune_deep
from experiments.results import weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, seed_everything
from permutohedral.errors import InputError
from permutohedral.models.denoising import PermutohedralDenoiser, SpatialDenoiser
from permutohedral.models.pretrained import Entry, read_pretrained, save_pretrained


def made_images(split: str, folder: Path | None = None, limit: int | None = None) -> list[GrayImage]:
    """Make images of a few flat regions."""
    generator = torch.Generator().manual_seed(len(split))
    shades = torch.rand(limit or 6, 4, 5, generator=generator)
    pixels = shades.repeat_interleave(10, dim=1).repeat_interleave(10, dim=2)
    return [GrayImage(f"{split}/{number}", image) for number, image in enumerate(pixels)]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    monkeypatch.setattr(denoising, "load_images", made_images)
    return RunOptions(tmp_path, device_name="cpu")


def row(model: str, **changes: object) -> DenoisingConfig:
    training = TrainingSettings(steps=60, batch_size=4, optimizer="adam", learning_rate=0.01, weight_decay=0.0)
    values = {"training": training, "train_images": 6, "test_images": 3, "crop": 24} | changes
    return DenoisingConfig("row", "Row", model, **values)  # type: ignore[arg-type]


def test_training_on_images_approaches_the_closed_form(options: RunOptions) -> None:
    metrics, seconds = run(row("combined"), options)
    assert metrics["weights"] == 90
    assert metrics["train_psnr"] > metrics["train_psnr_of_least_squares"] - 1.0
    assert metrics["psnr"] == pytest.approx(sum(metrics["psnr_per_image"].values()) / 3)
    assert set(seconds) == {"training", "evaluation"}


def test_training_on_crops_starts_from_the_closed_form(options: RunOptions) -> None:
    noisy = run(row("identity", training=None), options)[0]["psnr"]
    initial = run(row("spatial", training=None), options)[0]["psnr"]
    seed_everything(0)
    trained = run(row("spatial", samples="crops", start="least_squares", views=True), options)[0]
    assert trained["psnr"] > max(initial, noisy) + 0.5
    assert trained["psnr_of_eight_views"] > trained["psnr"] - 0.5
    assert trained["steps"] == 60


def test_cross_validation_chooses_the_scale_of_lattice_rows(options: RunOptions) -> None:
    lattice, spatial = row("permutohedral", options={"sigma_space": 9.0, "sigma_color": 9.0}), row("spatial")
    lines: list[str] = []
    chosen = EXPERIMENTS["denoising"].actions["cross_validate"]([lattice, spatial], options, lines.append)
    assert chosen[0].options["sigma_space"] in denoising.SIGMA_SPACES
    assert chosen[1] == spatial
    assert len(lines) == len(denoising.SIGMA_SPACES) * len(denoising.SIGMA_COLORS)
    assert (options.output / "scales.json").is_file()


def test_eight_views_of_a_symmetric_filter_are_the_filter() -> None:
    model, noisy = SpatialDenoiser(), torch.rand(1, 1, 9, 12)
    torch.testing.assert_close(EightViews(model)(noisy), model(noisy))


def test_the_deep_row_is_added_to_the_weights_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_pretrained([(Entry("a", "permutohedral", {}, 60.0), PermutohedralDenoiser())], path)
    [config] = EXPERIMENTS["denoising"].choose_rows([DEEP_ROW])
    model = build_model(config)
    write_weights(weights_path(config, tmp_path), model)
    # a second time it is replaced
    for _ in range(2):
        add_deep(tmp_path, path)
    (_, _), (entry, added) = read_pretrained(path)
    assert (entry.name, entry.noise) == (DEEP_ROW, 25.0)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in added.state_dict().items())


def test_tuning_starts_as_the_network_of_scaled_images(tmp_path: Path, options: RunOptions) -> None:
    path, noisy = tmp_path / "weights.safetensors", torch.rand(1, 1, 24, 24)
    [config] = EXPERIMENTS["denoising"].choose_rows([DEEP_ROW])
    save_pretrained([(Entry(DEEP_ROW, "deep", config.options, 25.0), build_model(config))], path)
    settings = TrainingSettings(steps=1, batch_size=2, optimizer="adam", learning_rate=1e-12, weight_decay=0.0)
    # a second time it is replaced
    for _ in range(2):
        tune_deep(10.0, path, options, settings, crop=24)
    (_, model), (entry, tuned) = read_pretrained(path)
    assert (entry.name, entry.noise) == (DEEP_ROW, 10.0)
    with torch.no_grad():
        scaled = 0.5 + (model(0.5 + 2.5 * (noisy - 0.5)) - 0.5) / 2.5
        torch.testing.assert_close(tuned(noisy), scaled)
        assert not torch.allclose(tuned(noisy), model(noisy), atol=1e-3)


CROP, SIGMA = 6, 0.1


def numbered_image(name: str, height: int, width: int, first: int) -> GrayImage:
    """Make an image whose pixels are different numbers."""
    return GrayImage(name, torch.arange(first, first + height * width).float().reshape(height, width))


IMAGES = [numbered_image("tall", 11, 7, 0), numbered_image("wide", 7, 12, 1000)]


def sampler(sigma: float = SIGMA, seed: int = 0) -> CropSampler:
    return CropSampler(IMAGES, CROP, sigma, seed, DEVICE)


def test_a_batch_is_the_same_whenever_it_is_drawn() -> None:
    first = sampler()
    first.draw(0, 4)
    for again, once in zip(first.draw(5, 4), sampler().draw(5, 4), strict=True):
        assert torch.equal(again, once)
    assert not torch.equal(sampler().draw(5, 4)[0], sampler().draw(6, 4)[0])
    assert not torch.equal(sampler().draw(5, 4)[0], sampler(seed=1).draw(5, 4)[0])


def test_rejects_crops_larger_than_an_image() -> None:
    with pytest.raises(InputError, match="crop must fit every image, got 8 for tall"):
        CropSampler(IMAGES, 8, SIGMA, 0)
