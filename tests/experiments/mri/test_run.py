"""Reconstruction: batches, training, evaluation, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import DEVICE, relative_error
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.bsds500 import GrayImage, Split
from permutohedral.data.measurements import field_of_view
from permutohedral.errors import InputError
from permutohedral.experiments.config import parse_config, read_config, shipped_configs
from permutohedral.experiments.mri import run as mri
from permutohedral.experiments.mri.report import EXPERIMENTS, ROWS, by_domain, mri_tables, write_mri_report
from permutohedral.experiments.mri.run import (
    Batches,
    MriConfig,
    build_model,
    evaluate,
    held_out,
    photographs,
    run,
    score,
)
from permutohedral.experiments.result import read_weights
from permutohedral.experiments.rows import run_rows
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.deep_denoising import count_weights

MRI = EXPERIMENTS["mri"]

TRAINING = TrainingSettings(steps=6, batch_size=2, optimizer="adam", learning_rate=0.01, weight_decay=0.0)


def made_images(split: Split, folder: Path | None = None, limit: int | None = None) -> list[GrayImage]:
    """Pictures of a few flat regions, 72 x 80 pixels."""
    random = np.random.default_rng(("train", "val", "test").index(split))
    images = []
    for number in range(limit or 4):
        seeds = random.random((6, 2)) * (72, 80)
        grid = np.stack(np.meshgrid(np.arange(72), np.arange(80), indexing="ij"), axis=-1)
        nearest = ((grid[:, :, None] - seeds) ** 2).sum(axis=-1).argmin(axis=-1)
        images.append(GrayImage(f"{split}/{number}", torch.from_numpy(random.random(6)[nearest]).float()))
    return images


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mri, "load_images", made_images)
    mri._load_once.cache_clear()


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


def row(**changes: object) -> MriConfig:
    base = MriConfig("row", "Row", "image", "permutohedral", {"channels": None}, TRAINING, size=16, test_images=2)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_every_shipped_row_is_in_the_table() -> None:
    assert sorted(ROWS) == sorted(shipped_configs("mri"))


@pytest.mark.parametrize("name", ROWS)
def test_every_configuration_parses(name: str) -> None:
    config = read_config(MriConfig, shipped_configs("mri")[name])
    assert config.name == name
    assert name.startswith(config.domain)


@pytest.mark.parametrize("domain", ["image", "spectrum"])
def test_the_baseline_has_as_many_weights_and_as_much_training(domain: str) -> None:
    network, ours = MRI.choose_rows([f"{domain}_network", f"{domain}_permutohedral"], (), smoke=False)
    weights = [count_weights(build_model(config)) for config in (network, ours)]
    assert abs(weights[0] / weights[1] - 1) < 0.03
    assert network.training == ours.training
    assert (network.size, network.test_images, network.seed) == (ours.size, ours.test_images, ours.seed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method": "permutohedral"}, "needs a training"),
        ({"method": "linear", "training": {"steps": 1, "batch_size": 1}}, "has no weights for a training"),
        ({"method": "kaiser_bessel", "options": {"with": 3}}, "options of the method kaiser_bessel do not fit"),
        ({"method": "linear", "size": 30}, "multiple of 4"),
        ({"method": "conjugate_gradients"}, "fit a spectrum"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config(MriConfig, {"name": "x", "title": "X", "domain": "image", **content})


@pytest.mark.parametrize("domain", ["image", "spectrum"])
def test_batches_are_reproducible_and_of_all_kinds(domain: str) -> None:
    config = row(domain=domain, factors=(2.0, 4.0))
    batches, again = (Batches(photographs("train", 3, None), config) for _ in range(2))
    samples = set()
    for number in range(12):
        measured, clean = batches(number)
        assert clean.shape == (2, 16, 16)
        assert measured.values.shape == (2, len(measured.positions), 1 if domain == "image" else 2)
        assert measured.areas.shape == (len(measured.positions), 2)
        samples.add(len(measured.positions))
    other, truth = again(11)
    assert torch.equal(other.values, measured.values)
    assert torch.equal(truth, clean)
    assert len(samples) >= 4


def test_what_is_held_out_is_prepared_for_its_domain(options: RunOptions) -> None:
    plain, faded = (held_out(row(domain=domain), options) for domain in ("image", "spectrum"))
    assert {name: len(images) for name, images in plain.items()} == {"phantom": 1, "photographs": 2}
    outside = field_of_view(16) == 0
    assert bool(plain["photographs"][:, outside].any())
    assert not bool(faded["photographs"][:, outside].any())


def test_only_the_field_of_view_counts_in_the_spectrum() -> None:
    truth = torch.zeros(1, 32, 32, dtype=torch.float64)
    wrong = torch.where(field_of_view(32) == 0, 1.0, 0.1)[None].double()
    assert score(wrong, truth, "spectrum")["psnr"] == 20.0
    assert score(wrong, truth, "image")["psnr"] < 10
    assert score(truth, truth, "image") == {"psnr": 120.0, "ssim": 1.0}


def test_training_improves_and_the_result_tells_all(options: RunOptions) -> None:
    training = replace(TRAINING, steps=40, batch_size=4, learning_rate=0.005, schedule="cosine")
    config = row(domain="spectrum", options={"channels": [8, 8, 8]}, training=training)
    before = evaluate(build_model(config).to(DEVICE).eval(), config, options)["scores"]
    result = run(config, options)
    assert result is not None
    after = result.metrics["scores"]
    assert set(after) == set(before)
    assert len(after) == 2 * 2 * 3
    gain = [after[name]["psnr"] - before[name]["psnr"] for name in after]
    assert sum(gain) / len(gain) > 0.1
    assert result.metrics["weights"] == count_weights(build_model(config))
    assert all(time > 0 for time in result.metrics["milliseconds"].values())
    with np.load(options.output / "examples" / "row.npz") as examples:
        assert examples["phantom, radial"].shape == (16, 16)


@pytest.mark.parametrize(
    ("domain", "method"), [("image", "network"), ("image", "permutohedral"), ("spectrum", "permutohedral")]
)
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    domain: str, method: str, options: RunOptions, tmp_path: Path
) -> None:
    training = replace(TRAINING, steps=4, optimizer="sgd", learning_rate=0.001)
    whole = row(domain=domain, method=method, options={"channels": [4, 4, 4]}, training=training, factors=(4.0,))
    run(whole, options)
    interrupted = replace(options, output=tmp_path / "again")
    run(replace(whole, training=replace(training, steps=2)), interrupted)
    run(whole, replace(interrupted, resume=True))
    expected, actual = (read_weights(o.output / "weights" / "row.safetensors") for o in (options, interrupted))
    start = build_model(whole).state_dict()
    assert any(relative_error(expected[name], start[name]) > 1e-4 for name in expected)
    assert all(relative_error(actual[name], expected[name]) < 1e-5 for name in expected)


def test_the_report_has_a_table_for_each_factor(options: RunOptions) -> None:
    configs = [row(name=name, title=name, method=name, options={}, training=None) for name in ("nearest", "linear")]
    told: list[str] = []
    list(run_rows(MRI, configs, options, told.append))
    results = MRI.read_results(options.output)
    assert list(by_domain(results)) == ["image"]
    [path] = write_mri_report(results, options, "permutohedral reproduce mri")
    text = path.read_text()
    assert mri_tables(results) in text
    shown = f"{results[0].metrics['scores']['phantom, radial, 8x']['psnr']:.2f}"
    assert f"| {results[0].name} |  | {shown} / " in text
    assert [line.split("|")[1].strip() for line in text.splitlines() if "Weights" in line] == ["4x", "2x", "8x"]
    assert all((options.output / name).stat().st_size > 1000 for name in ("image_psnr.png", "image_pictures.png"))
    list(run_rows(MRI, configs, replace(options, resume=True), told.append))
    assert sum("kept" in line for line in told) == 2


def test_the_command_makes_the_whole_way(tmp_path: Path) -> None:
    rows = ["--row", "image_linear", "--row", "spectrum_gridding"]
    place = ["--output", str(tmp_path), "--accelerator", "cpu"]
    result = CliRunner().invoke(application, ["reproduce", "mri", "--smoke", "--seeds", "2", *rows, *place])
    assert result.exit_code == 0, result.output
    weights = {path.name for path in (tmp_path / "weights").iterdir()}
    assert weights == {"spectrum_gridding.safetensors", "spectrum_gridding-1.safetensors"}
    # one line in each table: the mean
    assert result.stdout.count("| linear |") == 3
    assert result.stdout.count("| permutohedral alone | 617 |") == 3
    again = CliRunner().invoke(application, ["reproduce", "mri", "--report-only", *place])
    assert again.stdout == result.stdout


def test_mistakes_are_told(tmp_path: Path, options: RunOptions) -> None:
    unknown = CliRunner().invoke(application, ["reproduce", "mri", "--row", "image_magic"])
    assert unknown.exit_code == 1
    assert "there is no row 'image_magic'" in unknown.stderr
    empty = CliRunner().invoke(application, ["reproduce", "mri", "--report-only", "--output", str(tmp_path)])
    assert "there are no results" in empty.stderr
    with pytest.raises(InputError, match="exceeds the photographs"):
        held_out(row(size=64), options)
