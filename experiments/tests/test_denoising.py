"""Denoising: training on made images, crops, and the weights of the package."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import DEVICE

import permutohedral as ph
from experiments.data.bsds500 import GrayImage
from experiments.denoising import images
from experiments.denoising.crops import CropSampler
from experiments.denoising.deep import EXPERIMENTS, EightViews, build_model
from experiments.denoising.models import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from experiments.denoising.quadratic import LinearDenoiser, responses_of, set_weights, weights_of
from experiments.denoising.run import Candidates, DenoisingConfig, fit_model, report, run
from experiments.denoising.ship import ROW, assemble
from experiments.denoising.walk import walk_to_neighbors
from experiments.results import Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings
from permutohedral.errors import InputError


def made_images(split: str, folder: Path | None = None, limit: int | None = None) -> list[GrayImage]:
    """Make images of a few flat regions."""
    generator = torch.Generator().manual_seed(len(split))
    shades = torch.rand(limit or 6, 4, 5, generator=generator)
    pixels = shades.repeat_interleave(10, dim=1).repeat_interleave(10, dim=2)
    return [GrayImage(f"{split}/{number}", image) for number, image in enumerate(pixels)]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    monkeypatch.setattr(images, "load_images", made_images)
    return RunOptions(tmp_path, tmp_path, device_name="cpu")


def settings(**changes: Any) -> TrainingSettings:
    values: dict[str, Any] = {
        "steps": 60,
        "batch_size": 6,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "weight_decay": 0.0,
    } | changes
    return TrainingSettings(**values)


def row(model: str, **changes: Any) -> DenoisingConfig:
    values: dict[str, Any] = {"train_images": 6, "test_images": 3, "split": "validation"} | changes
    if model in ("permutohedral", "combined"):
        values = {"sigma_space": 1.0, "sigma_color": 0.4} | values
    return DenoisingConfig("row", "Row", model, **values)  # type: ignore[arg-type]


def psnr_of(config: DenoisingConfig, options: RunOptions) -> float:
    return float(run(config, options)[0]["psnr"])


@pytest.mark.parametrize("model", [SpatialDenoiser, PermutohedralDenoiser, CombinedDenoiser])
def test_output_is_the_sum_of_the_responses_times_the_weights(model: type[LinearDenoiser]) -> None:
    denoiser = model()
    weights = torch.randn(weights_of(denoiser).shape)
    set_weights(denoiser, weights)
    assert torch.equal(weights_of(denoiser), weights)
    noisy = torch.rand(2, 1, 13, 17)
    expected = (responses_of(denoiser, noisy) * weights[:, None, None]).sum(dim=1, keepdim=True)
    torch.testing.assert_close(denoiser(noisy), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("normalization", ["symmetric", "density", "coverage", "none"])
@pytest.mark.parametrize("neighbors", ["exact", "walk"])
def test_responses_have_the_normalization_and_neighbors_of_the_row(
    normalization: str, neighbors: str, options: RunOptions
) -> None:
    config = row("permutohedral", normalization=normalization, neighbors=neighbors, around="gaussian", sigma_color=0.1)
    denoiser = fit_model(config, options)
    assert isinstance(denoiser, PermutohedralDenoiser)
    noisy = torch.rand(1, 1, 20, 21)
    before = denoiser(noisy)
    weights = torch.randn(65)
    set_weights(denoiser, weights)
    torch.testing.assert_close(weights_of(denoiser), weights)
    expected = (responses_of(denoiser, noisy) * weights[:, None, None]).sum(dim=1, keepdim=True)
    torch.testing.assert_close(denoiser(noisy), expected, atol=1e-4, rtol=1e-4)
    other = fit_model(replace(config, neighbors="walk" if neighbors == "exact" else "exact"), options)
    assert not torch.allclose(other(noisy), before, atol=1e-2)


def test_the_walk_stops_at_the_first_missing_lattice_point() -> None:
    lattice = ph.build_lattice(4 * torch.rand(30, 2, generator=torch.Generator().manual_seed(0)), neighborhood_size=2)
    key_of = {tuple(key): number for number, key in enumerate(lattice.source.keys[:, 1:].tolist())}
    table = walk_to_neighbors(lattice)
    lost = 0
    for column, key in enumerate(key_of):
        for number, tap in enumerate(lattice.neighborhood.taps.tolist()):
            # all lattice points on the way, axis by axis
            place, reached = list(key), True
            for axis, count in enumerate(tap):
                for _ in range(count):
                    place = [x - 1 + 3 * (axis == other) for other, x in enumerate(place)]
                    reached &= tuple(place) in key_of
            assert table[number, column] == (key_of[tuple(place)] if reached else -1)
            lost += not reached and tuple(place) in key_of
    assert lost > 0


def test_symmetric_normalization_is_that_of_the_released_layer_with_its_walk() -> None:
    points = 4 * torch.rand(60, 3, generator=torch.Generator().manual_seed(1))
    lattice = ph.build_lattice(points, neighborhood_size=2)
    lattice = replace(lattice, neighbors=walk_to_neighbors(lattice))
    weight = ph.lattice.gaussian_weight(3, 2)
    rows, columns = torch.arange(60)[:, None], lattice.source.vertices.reshape(60, 4).long()
    slicing = torch.zeros(60, lattice.num_lattice_points)
    slicing[rows, columns] = lattice.source.barycentric.reshape(60, 4)
    blur = torch.zeros(lattice.num_lattice_points, lattice.num_lattice_points)
    for tap, neighbors in zip(weight.flatten(), lattice.neighbors.long(), strict=True):
        found = neighbors >= 0
        blur[found.nonzero()[:, 0], neighbors[found]] += tap
    kernel = slicing @ blur @ slicing.T
    # the walk finds some pairs in one direction only
    assert (kernel - kernel.T).abs().max() > 0.1
    expected = kernel / kernel.sum(1).sqrt() / kernel.sum(1, keepdim=True).sqrt()
    pairs = ph.permutohedral_filter(
        torch.eye(60), lattice, weight.reshape(-1, 1, 1) * torch.eye(60), normalization="symmetric"
    )
    torch.testing.assert_close(pairs, expected)


def test_training_approaches_least_squares(options: RunOptions) -> None:
    initial, least = psnr_of(row("combined"), options), psnr_of(row("combined", weights="least_squares"), options)
    trained = psnr_of(row("combined", training=settings(), loss="logarithmic"), options)
    assert initial + 0.3 < trained
    assert least > initial + 0.3


def test_weight_decay_pulls_to_the_gaussian_only_around_it(options: RunOptions) -> None:
    decay = settings(optimizer="sgd", learning_rate=0.1, momentum=0.0, weight_decay=5.0, steps=30)
    gaussian = weights_of(PermutohedralDenoiser()).detach()
    for around, expected in (("gaussian", gaussian), (None, torch.zeros(65))):
        denoiser = fit_model(row("permutohedral", training=decay, around=around), options)
        assert isinstance(denoiser, PermutohedralDenoiser)
        torch.testing.assert_close(weights_of(denoiser).detach(), expected, atol=0.05, rtol=0)


def test_a_row_with_candidates_evaluates_each_and_the_report_names_the_best(options: RunOptions) -> None:
    tried = Candidates(sigma_spaces=(1.0, 9.0), sigma_colors=(0.2,))
    scales = row("permutohedral", candidates=tried)
    metrics, _ = run(scales, options)
    steps = row("spatial", candidates=Candidates(steps=(1, 50)), training=settings())
    assert metrics["psnr"]["1 px, 0.2"] == psnr_of(row("permutohedral", sigma_color=0.2), options)
    assert metrics["psnr"]["1 px, 0.2"] > metrics["psnr"]["9 px, 0.2"]
    trained = run(steps, options)[0]["psnr"]
    assert trained["50 steps"] > trained["1 steps"]
    [page] = report([Result("denoising", "row", asdict(scales), metrics, 0)], options)
    assert "| Row | 1 px, 0.2 |" in str(page.tables[0])


def test_the_report_compares_a_row_with_the_same_noise() -> None:
    first, second = (
        row("identity", split="test", paper=20.0),
        row("identity", split="test", table="choices", base="row"),
    )
    results = [
        Result("denoising", name, asdict(replace(config, name=name)), {"psnr": 20.0 + seed + gain}, seed)
        for name, config, gain in (("row", first, 0.0), ("other", second, 0.25))
        for seed in range(2)
    ]
    [page] = report(results, RunOptions(Path()))
    assert "| 20.50 ± 0.707 | +0.50 |" in str(page.tables[0])
    assert str(page.tables[1]).endswith("| +0.25 |")


def test_eight_views_of_a_symmetric_filter_are_the_filter() -> None:
    model, noisy = SpatialDenoiser(), torch.rand(1, 1, 9, 12)
    torch.testing.assert_close(EightViews(model)(noisy), model(noisy))


def test_weights_of_the_package_are_the_row_and_its_tuned_copies(tmp_path: Path, options: RunOptions) -> None:
    [config] = EXPERIMENTS["deep_denoising"].choose_rows([ROW])
    model, noisy = build_model(config).eval(), torch.rand(1, 1, 24, 24)
    write_weights(weights_path(config, tmp_path), model)
    few = settings(steps=1, batch_size=2, learning_rate=1e-12)
    denoiser = assemble(tmp_path, [10.0], options, settings=few, crop=24)
    denoiser.save(tmp_path / "weights.safetensors")
    again = ph.apps.Denoiser.from_pretrained(tmp_path / "weights.safetensors")
    assert again.noise_levels == (10.0, 25.0)
    tuned, shipped = again.networks
    with torch.no_grad():
        torch.testing.assert_close(shipped(noisy), model(noisy))
        # tuning starts as the network of scaled images
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
