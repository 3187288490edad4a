"""Denoising: configurations, training, evaluation, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import data_folder
from support import DEVICE, relative_error
from torch import nn

from permutohedral.data.bsds500 import GrayImage, Split, add_noise
from permutohedral.errors import InputError
from permutohedral.experiments.config import parse_config, read_config, read_mapping, shipped_configs
from permutohedral.experiments.denoising import run as denoising
from permutohedral.experiments.denoising import scales as scale_choice
from permutohedral.experiments.denoising.quadratic import measure_quadratic_errors
from permutohedral.experiments.denoising.report import EXPERIMENTS, PAPER_ROWS, denoising_table, write_denoising_report
from permutohedral.experiments.denoising.run import (
    DenoisingConfig,
    build_model,
    evaluate,
    load_weights,
    loss_of,
    run,
)
from permutohedral.experiments.denoising.scales import cross_validate, with_scale
from permutohedral.experiments.result import read_result
from permutohedral.experiments.rows import run_rows
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.deep_denoising import count_weights
from permutohedral.models.denoising import CombinedDenoiser
from permutohedral.reporting.quality import psnr

DENOISING = EXPERIMENTS["denoising"]

TRAINING = TrainingSettings(steps=30, batch_size=2, optimizer="adam", learning_rate=0.002, weight_decay=0.0)


def made_images(split: Split, folder: Path | None = None, limit: int | None = None) -> list[GrayImage]:
    """Pictures of a few flat regions, 48 x 56 pixels."""
    random = np.random.default_rng(("train", "val", "test").index(split))
    images = []
    for number in range(limit or 4):
        seeds = random.random((6, 2)) * (48, 56)
        grid = np.stack(np.meshgrid(np.arange(48), np.arange(56), indexing="ij"), axis=-1)
        nearest = ((grid[:, :, None] - seeds) ** 2).sum(axis=-1).argmin(axis=-1)
        images.append(GrayImage(f"{split}/{number}", torch.from_numpy(random.random(6)[nearest]).float()))
    return images


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising, "load_images", made_images)


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


def row(**changes: object) -> DenoisingConfig:
    base = DenoisingConfig("row", "Row", "combined", paper=26.65, training=TRAINING, train_images=4, test_images=2)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(shipped_configs("denoising")))
def test_every_configuration_parses_and_keeps_its_promise(name: str) -> None:
    config = read_config(DenoisingConfig, shipped_configs("denoising")[name])
    assert config.name == name
    assert (config.paper is not None) == (name in PAPER_ROWS)
    weights = count_weights(build_model(config))
    limits = {"deep_small": 100_000, "deep_large": 600_000}
    assert weights <= limits.get(name, weights)
    if name.endswith("_spatial"):
        ours = read_config(DenoisingConfig, shipped_configs("denoising")[name.removesuffix("_spatial")])
        assert weights >= count_weights(build_model(ours))
        # as many steps as the same time allows; all else is equal
        assert config.training is not None
        assert ours.training is not None
        assert replace(config.training, steps=ours.training.steps) == ours.training


def test_the_smoke_settings_parse() -> None:
    limits = read_mapping(shipped_configs("smoke")["denoising"])
    for config in DENOISING.choose_rows((), (), smoke=True):
        assert config.test_images == limits["test_images"]
        assert config.training is None or config.training.steps <= limits["training"]["steps"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": "spatial", "options": {"sise": 3}}, "options of the model spatial do not fit"),
        ({"model": "deep", "training": {"steps": 1, "batch_size": 1}}, "take samples: crops"),
        ({"model": "deep", "start": "least_squares"}, "linear in its weights"),
        ({"model": "spatial", "training": {"steps": 0, "batch_size": 1}}, "steps must be at least 1"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config(DenoisingConfig, {"name": "x", "title": "X", **content})


def test_a_configuration_leaves_random_numbers_alone() -> None:
    state = torch.get_rng_state()
    row()
    assert torch.equal(torch.get_rng_state(), state)


def test_quadratic_errors_are_those_of_the_images() -> None:
    images = made_images("train", limit=3)
    model = CombinedDenoiser().to(DEVICE)
    errors = measure_quadratic_errors(model, images, 0.1, 0, DEVICE)
    model.set_weights(model.weights().detach() + 0.01 * torch.randn(90, device=DEVICE))
    expected = [
        (model(add_noise(i, 0.1).to(DEVICE)[None, None])[0, 0].cpu() - i.pixels).square().mean() for i in images
    ]
    # one float32 filter over 90 summed responses
    assert relative_error(errors.evaluate(model.weights()), torch.stack(expected)) < 1e-4


def test_least_squares_cannot_be_improved() -> None:
    errors = measure_quadratic_errors(CombinedDenoiser().to(DEVICE), made_images("train"), 0.1, 0, DEVICE)
    best = errors.least_squares().to(DEVICE)
    least = errors.evaluate(best).mean()
    for _ in range(20):
        assert errors.evaluate(best + 0.01 * torch.randn_like(best)).mean() > least


@pytest.mark.usefixtures("made")
def test_training_improves_and_the_result_tells_all(options: RunOptions) -> None:
    result = run(row(), options)
    untrained = run(row(training=None), options)
    assert result is not None
    assert untrained is not None
    assert result.metrics["psnr"] > untrained.metrics["psnr"] + 0.2
    assert result.metrics["weights"] == 90
    assert result.config["training"]["steps"] == 30
    assert set(result.metrics["psnr_per_image"]) == {"test/0", "test/1"}
    assert {"commit", "hardware", "versions"} <= set(result.environment)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("model", ["deep", "combined"])
def test_any_model_trains_on_crops(model: str, options: RunOptions) -> None:
    arguments = (
        {"channels": [4], "blocks": [1], "permutohedral_blocks": [1]} if model == "deep" else {"learn_scale": True}
    )
    config = row(model=model, options=arguments, samples="crops", crop=16, training=replace(TRAINING, steps=3))
    before = build_model(config).state_dict()
    assert run(config, options) is not None
    after = load_weights(config, options.output).state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("made")
def test_bm3d_is_a_row_to_compare_with(options: RunOptions) -> None:
    pytest.importorskip("bm3d", reason="bm3d is not installed")
    config = row(model="bm3d", training=None, center=24, test_images=1)
    result = run(config, options)
    assert result is not None
    assert result.metrics["psnr"] > 23
    with pytest.raises(InputError, match="no weights to train"):
        replace(config, training=TRAINING)


@pytest.mark.usefixtures("made")
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(options: RunOptions, tmp_path: Path) -> None:
    training = replace(TRAINING, steps=6, optimizer="sgd", schedule="constant")
    whole = row(model="spatial", samples="crops", crop=16, loss="euclidean", training=training)
    run(whole, options)
    interrupted = replace(options, output=tmp_path / "again")
    run(replace(whole, training=replace(training, steps=3)), interrupted)
    run(whole, replace(interrupted, resume=True))
    expected, actual = (load_weights(whole, o.output).state_dict()["weight"] for o in (options, interrupted))
    assert relative_error(actual, expected) < 1e-6
    assert relative_error(actual, torch.full((1, 1, 5, 5), 1 / 25)) > 1e-3


@pytest.mark.usefixtures("made")
def test_a_checkpoint_of_another_configuration_is_left_alone(options: RunOptions) -> None:
    run(row(model="spatial"), options)
    expected = run(row(model="spatial", seed=1), replace(options, output=options.output / "alone"))
    resumed = run(row(model="spatial", seed=1), replace(options, resume=True))
    assert expected is not None
    assert resumed is not None
    assert resumed.metrics == expected.metrics


@pytest.mark.usefixtures("made")
def test_a_training_that_takes_too_long_ends_and_tells_its_steps(options: RunOptions) -> None:
    config = row(model="spatial", samples="crops", crop=16, training=replace(TRAINING, steps=100_000), time_limit=0.1)
    result = run(config, options)
    assert result is not None
    assert 1 <= result.metrics["steps"] < 100_000
    assert load_weights(config, options.output)


@pytest.mark.usefixtures("made")
def test_the_val_images_can_be_trained_on(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(config: DenoisingConfig, split: Split, limit: int | None, options: RunOptions) -> list[GrayImage]:
        loaded.append(split)
        return made_images(split, limit=limit)

    monkeypatch.setattr(denoising, "load", load)
    config = row(model="spatial", samples="crops", crop=16, training=replace(TRAINING, steps=1), train_on_val=True)
    run(config, options)
    assert loaded == ["train", "val", "test"]


@pytest.mark.usefixtures("made")
def test_an_interrupted_evaluation_goes_on(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    config = row(model="identity", training=None, test_images=4)
    expected = run(config, options)
    measured: list[str] = []
    evaluate = denoising.evaluate

    def interrupted(model: nn.Module, images: list[GrayImage], *others: Any) -> dict[str, float]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        return counted(model, images, *others)

    def counted(model: nn.Module, images: list[GrayImage], *others: Any) -> dict[str, float]:
        measured.append(images[0].name)
        return evaluate(model, images, *others)

    monkeypatch.setattr(denoising, "_KEEP_EVERY", 0.0)
    monkeypatch.setattr(denoising, "evaluate", interrupted)
    again = replace(options, resume=True)
    with pytest.raises(KeyboardInterrupt):
        run(config, again)
    monkeypatch.setattr(denoising, "evaluate", counted)
    resumed = run(config, again)
    assert expected is not None
    assert resumed is not None
    assert resumed.metrics == expected.metrics
    assert len(measured) == len(set(measured)) == 4


@pytest.mark.usefixtures("made")
def test_reproduce_writes_every_row_and_keeps_those_that_are_done(options: RunOptions) -> None:
    configs = [row(name="a", training=None), row(name="b", model="spatial")]
    told: list[str] = []
    results = list(run_rows(DENOISING, configs, options, told.append))
    assert [read_result(options.output / f"{name}.json").name for name in "ab"] == ["a", "b"]
    later = [*configs[:1], replace(configs[1], seed=5)]
    again = list(run_rows(DENOISING, later, replace(options, resume=True), told.append))
    assert again[0].metrics == results[0].metrics
    assert sum("kept" in line for line in told) == 1
    assert again[1].seed == 5


def test_an_unknown_row_is_told_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"no row 'cnm'; there are .*cnn"):
        DENOISING.choose_rows(["cnm"], (), smoke=False)
    assert [config.name for config in DENOISING.choose_rows((), (), smoke=False)] == list(PAPER_ROWS)


@pytest.mark.usefixtures("made")
def test_cross_validation_takes_the_best_scale(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_choice, "SIGMA_SPACES", (1.0, 2.0))
    monkeypatch.setattr(scale_choice, "SIGMA_RANGES", (0.02, 0.3))
    scales = cross_validate(row(), options, 2, lambda line: None)
    table = scales.metrics["psnr"]
    assert len(table) == 4
    best = max(table, key=table.__getitem__)
    assert best == f"{scales.metrics['sigma_space']:g}, {scales.metrics['sigma_range']:g}"
    assert with_scale(row(), scales).options == {}
    scaled = with_scale(row(options={"sigma_space": 9.0, "sigma_range": 9.0, "size": 3}), scales)
    assert scaled.options["sigma_range"] == 0.3
    assert scaled.options["size"] == 3


@pytest.mark.usefixtures("made")
def test_the_report_shows_the_paper_beside_ours(options: RunOptions) -> None:
    configs = [row(name="a", title="A", paper=None, training=None), row(name="b", title="B")]
    results = list(run_rows(DENOISING, configs, options, print))
    [path] = write_denoising_report(results, options, "permutohedral reproduce denoising")
    text = path.read_text()
    assert f"| B | 90 | 26.65 | {results[1].metrics['psnr']:.2f} |" in text
    assert "`permutohedral reproduce denoising`" in text
    assert f"- B: {results[1].metrics['train_psnr']:.3f} dB on the training images" in text
    assert all((options.output / f"{name}.png").stat().st_size > 1000 for name in ("psnr", "crops", "filters"))
    assert denoising_table(results).count("\n") == 3


def test_the_losses_are_the_mean_error_and_the_mean_of_its_logarithm() -> None:
    errors = torch.tensor([0.01, 0.04])
    assert float(loss_of(errors, "euclidean")) == pytest.approx(0.025 / 2)
    assert float(loss_of(errors, "logarithmic")) == pytest.approx(np.log([0.01, 0.04]).mean())


def test_psnr_of_the_noise() -> None:
    config = row(model="identity", training=None)
    image = GrayImage("flat", torch.full((200, 200), 0.5))
    assert abs(evaluate(nn.Identity(), [image], config, torch.device("cpu"))["flat"] - 20.17) < 0.1
    assert psnr(torch.ones(2, 2), torch.zeros(2, 2)) == 0.0


def test_on_real_images_the_lattice_beats_the_best_spatial_filter(options: RunOptions) -> None:
    real = replace(options, data=data_folder("bsds500"))
    scores = [
        run(replace(config, train_images=8, test_images=6, center=128), real)
        for config in DENOISING.choose_rows(["cnn", "pcnn_gauss"], (), smoke=True)
    ]
    cnn, gauss = (result.metrics["psnr"] for result in scores if result is not None)
    assert gauss > cnn > 22


def test_eight_views_are_turned_back_and_do_not_depend_on_how_the_image_lies() -> None:
    class Shear(nn.Module):
        """Sees rows and columns differently, and either end of both."""

        def forward(self, noisy: torch.Tensor) -> torch.Tensor:
            y, x = torch.arange(noisy.shape[-2])[:, None], torch.arange(noisy.shape[-1])
            return noisy + 0.1 * noisy.roll(1, -2) + 0.01 * y + 0.003 * x

    image = torch.rand(1, 1, 5, 7)
    views = denoising.EightViews(nn.Identity())
    assert torch.allclose(views(image), image)
    views = denoising.EightViews(Shear())
    assert torch.allclose(views(image.flip(-1)), views(image).flip(-1), atol=1e-6)
    assert torch.allclose(views(image.flip(-2)), views(image).flip(-2), atol=1e-6)
    assert torch.allclose(views(image.mT), views(image).mT, atol=1e-6)
    assert not torch.allclose(views(image), Shear()(image), atol=1e-2)


@pytest.mark.usefixtures("made")
def test_eight_views_are_evaluated_beside_the_image_itself(options: RunOptions) -> None:
    # a mean over 5 x 5 pixels does the same to all of them
    result = run(row(model="spatial", training=None, views=True), options)
    assert result is not None
    assert abs(result.metrics["psnr_of_eight_views"] - result.metrics["psnr"]) < 1e-4
