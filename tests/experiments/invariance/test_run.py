"""Rotated and scaled digits: training, evaluation, report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.mnist import MnistSplit
from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.invariance.report import (
    EXPERIMENTS,
    accuracy_table,
    change_table,
    invariance_summary,
    write_invariance_report,
)
from permutohedral.experiments.invariance.run import (
    ANGLES,
    FACTORS,
    InvarianceConfig,
    InvarianceTask,
    build_model,
    conditions,
    digits,
    evaluate,
    level_loss,
    load_weights,
    measure_change,
    run,
    transform,
)
from permutohedral.experiments.mnist import run as mnist
from permutohedral.experiments.result import Result, read_result
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.invariance import Stack, StackStem, Transformation, whole_circle
from permutohedral.models.lenet import SpatialStem

TRAINING = TrainingSettings(steps=2, batch_size=16, optimizer="adam", learning_rate=0.01)
TRANSFORMATIONS: tuple[Transformation, ...] = ("rotation", "scale")


def made_digits(split: MnistSplit, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """Noise in the middle of the image; the label is the number of the image, modulo ten."""
    random = torch.Generator().manual_seed(("train", "test").index(split))
    images = torch.zeros(48, 28, 28, dtype=torch.uint8)
    images[:, 6:22, 6:22] = torch.randint(256, (48, 16, 16), generator=random, dtype=torch.uint8)
    return images, torch.arange(48) % 10


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mnist._load_once.cache_clear()
    monkeypatch.setattr(mnist, "load_mnist", made_digits)
    yield
    mnist._load_once.cache_clear()


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


def row(**changes: object) -> InvarianceConfig:
    small = {"bandwidth": 85.0, "levels": 1, "channels": [3, 4], "hidden": 12}
    base = InvarianceConfig("row", "Row", "rotation", "stack", TRAINING, small, test_images=12)
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_the_rows_differ_in_nothing_but_what_their_names_say(transformation: Transformation) -> None:
    assert sorted(shipped_configs(transformation)) == sorted(EXPERIMENTS[transformation].rows)
    configs = [
        read_config(InvarianceConfig, shipped_configs(transformation)[name])
        for name in EXPERIMENTS[transformation].rows
    ]
    assert [config.name for config in configs] == list(EXPERIMENTS[transformation].rows)
    assert [config.model for config in configs] == ["lenet", "pcnn", "stack", "copies", "lenet"]
    assert [config.augmentation > 0 for config in configs] == [False, False, False, False, True]
    for config in configs:
        assert config.training == configs[0].training
        assert config.transformation == transformation
        assert (config.options["rectify"], config.options["dropout"]) == (True, 0.5)


RESULTS = Path(__file__).resolve().parents[3] / "results"


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_published_results_are_of_the_configurations(transformation: Transformation) -> None:
    """Also of the variants, which were evaluated on digits held out of the training set."""
    shipped = shipped_configs(transformation)
    variants = {path.stem: path for path in shipped[EXPERIMENTS[transformation].rows[0]].parent.glob("variants/*.yaml")}
    assert variants
    for name, path in (shipped | variants).items():
        config = read_config(InvarianceConfig, path)
        assert config.name == name
        assert (config.split == "validation") == (name in variants)
        folder = RESULTS / transformation / ("variants" if name in variants else "runs")
        for seed in range(1 if name in variants else 3):
            result = read_result(folder / f"{name}-{seed}.json")
            assert result.config == json.loads(json.dumps(asdict(replace(config, seed=seed))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"bandwidth": 10.0}}, "options of the model stack do not fit"),
        ({"window": -1}, "window must be at least 0"),
        ({"augmentation": -0.5}, "augmentation must not be negative"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        row(**changes)


def test_transformed_images_are_turned_and_scaled() -> None:
    images = torch.rand(3, 28, 28)
    amounts = torch.tensor([0.0, 90.0, 180.0])
    expected = torch.stack([torch.rot90(image, turns) for turns, image in enumerate(images)])
    torch.testing.assert_close(transform(images, "rotation", amounts), expected, atol=1e-4, rtol=0)
    square = torch.zeros(2, 28, 28)
    square[:, 10:18, 10:18] = 1
    half, double = transform(square, "scale", torch.tensor([0.5, 2.0]).log())
    assert float(half.sum()) == pytest.approx(16)
    assert float(double.sum()) == pytest.approx(256, rel=0.1)
    assert float(double[7:21, 7:21].min()) == pytest.approx(1)


def test_the_loss_is_the_likelihood_of_label_and_level() -> None:
    scores, labels = torch.randn(6, 5, 10), torch.arange(6)
    pooled = functional.cross_entropy(scores.logsumexp(dim=1), labels)
    assert_close(level_loss(scores, labels, None), pooled)
    assert_close(level_loss(scores, labels, 2), pooled)
    joint = functional.cross_entropy(scores.flatten(1), 2 * 10 + labels)
    assert_close(level_loss(scores, labels, 0), joint)
    likelihood = scores.flatten(1).softmax(dim=1).reshape(6, 5, 10)
    inner = likelihood[torch.arange(6), 1:4, labels].sum(dim=1).log().mean()
    assert_close(level_loss(scores, labels, 1), -inner)


@pytest.mark.usefixtures("made")
def test_validation_digits_are_not_trained_on(options: RunOptions) -> None:
    config = row(split="validation", test_images=None)
    train, test = (digits(config, purpose, options)[0] for purpose in ("train", "test"))
    everything = made_digits("train")[0]
    assert torch.equal(torch.cat([train, test]), everything)
    assert len(test) == 24
    assert len(digits(row(), "test", options)[0]) == 12
    assert torch.equal(digits(row(test_images=None), "test", options)[0], made_digits("test")[0])


def test_angles_are_drawn_once_and_factors_are_the_same_for_all() -> None:
    angles = conditions(row(), 1000)
    assert list(angles) == [str(angle) for angle in ANGLES]
    assert not bool(angles["0"].any())
    for angle in ANGLES[1:]:
        assert 0.98 * angle < float(angles[str(angle)].abs().max()) <= angle
    assert_close(angles["60"], 2 * angles["30"])
    assert not torch.equal(conditions(row(seed=1), 1000)["30"], angles["30"])
    factors = conditions(row(transformation="scale", options={"bandwidth": 0.1, "levels": 1}), 4)
    assert list(factors) == [f"{factor:g}" for factor in FACTORS]
    assert_close(factors["0.7"].exp(), torch.full((4,), 0.7))


class _Brightest(nn.Module):
    """Says which of ten parts of the image's height is brightest."""

    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(-1, 28, 28)[:, 4:24].reshape(-1, 10, 56).sum(dim=2)


def test_accuracy_counts_the_digits_that_are_recognized(options: RunOptions) -> None:
    images = torch.zeros(300, 28, 28, dtype=torch.uint8)
    labels = torch.arange(300) % 10
    for image, label in zip(images, labels.tolist(), strict=True):
        image[4 + 2 * label : 6 + 2 * label, 10:18] = 255
    labels[:30] = (labels[:30] + 1) % 10
    accuracy = evaluate(_Brightest(), images, labels, row(), options)
    assert accuracy["0"] == pytest.approx(0.9)
    assert accuracy["180"] < 0.5


def test_the_change_of_a_layer_is_relative() -> None:
    images = made_digits("test")[0][:4].to(DEVICE)
    stem = SpatialStem(3).to(DEVICE)
    plain = measure_change(stem, images, "rotation")
    nn.init.zeros_(stem.convolution.bias)  # type: ignore[arg-type]
    stem.convolution.weight.data *= 3
    assert measure_change(stem, images, "rotation") == pytest.approx(plain, rel=1e-4)
    circle = StackStem(3, whole_circle(Stack("rotation", 10.0, 1))).to(DEVICE)
    pooled = measure_change(circle, images, "rotation")
    # half a turn is a whole number of levels, and needs no interpolation
    assert pooled["180"] < 1e-3
    assert plain["180"] > 0.5
    assert pooled["10"] < plain["10"]
    scaled = measure_change(SpatialStem(3).to(DEVICE), images, "scale")
    assert scaled["0.5"] > scaled["0.9"] > 0


@pytest.mark.usefixtures("made")
def test_a_run_trains_measures_and_keeps_the_weights(options: RunOptions) -> None:
    config = row()
    result = run(config, options)
    assert result is not None
    assert list(result.metrics["accuracy"]) == [str(angle) for angle in ANGLES]
    assert list(result.metrics["accuracy_whole_circle"]) == [str(angle) for angle in ANGLES]
    assert result.metrics["change_whole_circle"]["180"] < 1e-3 < result.metrics["change"]["180"]
    start, trained = build_model(config).state_dict(), load_weights(config, options.output).state_dict()
    assert all(not torch.equal(start[name], trained[name]) for name in start)
    assert result.metrics["weights"] == sum(weight.numel() for weight in trained.values())
    plain = run(row(model="lenet", transformation="scale", options={}, augmentation=0.5), options)
    assert plain is not None
    assert "change_whole_circle" not in plain.metrics


@pytest.mark.usefixtures("made")
def test_only_an_augmented_row_sees_transformed_digits() -> None:
    seen = []

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(10))

        def forward(self, values: Tensor) -> Tensor:
            seen.append(values)
            return values[:, :10, 0] + self.bias

    images, labels = made_digits("train")
    for augmentation in (0.0, 90.0):
        config = row(model="lenet", options={}, augmentation=augmentation)
        task = InvarianceTask(Recorder(), config, images, labels)
        task.on_fit_start()
        task.training_step(0)
    known = {tuple(image.flatten().tolist()) for image in mnist.scale(images)}
    plain, augmented = ([tuple(image.flatten().tolist()) in known for image in batch] for batch in seen)
    assert all(plain)
    assert not any(augmented)


def finished(name: str, seed: int, accuracy: float) -> Result:
    paper = 0.9893 if name == "stacked" else None
    config = {**asdict(row()), "title": name.title(), "test_images": None, "paper": paper}
    environment = {"commit": "c", "backend": "native", "hardware": {"processor": "p", "cores": 2}}
    # as they are read from a file: in the order of the alphabet
    metrics = {
        "accuracy": dict.fromkeys(sorted(map(str, ANGLES)), accuracy),
        "accuracy_whole_circle": dict.fromkeys(map(str, ANGLES), accuracy / 2),
        "change": {"10": 0.2, "5": 0.1},
        "change_whole_circle": {"10": 0.02, "5": 0.01},
        "weights": 7,
    }
    return Result("rotation", name, config, metrics, seed, {"training": 2.0}, environment)


def test_the_report_has_mean_and_spread_and_marks_the_best(tmp_path: Path) -> None:
    results = [finished("plain", 0, 0.9), finished("plain", 1, 0.92), finished("stacked", 0, 0.95)]
    [plain, stacked] = invariance_summary(results)
    assert list(plain["accuracy"]) == [str(angle) for angle in ANGLES]
    assert plain["accuracy"]["30"] == pytest.approx(0.91)
    assert plain["accuracy_spread"]["30"] == pytest.approx(0.02 / math.sqrt(2), abs=1e-6)
    assert stacked["accuracy_spread"] is None
    table = accuracy_table(results).splitlines()
    assert table[2].startswith("| Plain | 2 | 0.9100 ± 0.0141 |")
    assert table[3].startswith("| Plain, all rotations | 2 | 0.4550 ± 0.0071 |")
    assert table[4].startswith("| Stacked | 1 | **0.9500** (0.9893) | **0.9500** |")
    assert change_table(results).splitlines()[3] == "| Plain, all rotations | 0.010 | 0.020 |"
    [path] = write_invariance_report(results, RunOptions(tmp_path), "make it")
    assert "`make it`" in path.read_text()
    assert len(json.loads((tmp_path / "rotation.json").read_text())["results"]) == 3
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


@pytest.mark.usefixtures("made")
def test_the_command_prints_both_tables(tmp_path: Path) -> None:
    arguments = ["reproduce", "scale", "--smoke", "--row", "lenet", "--row", "pcnn", "--accelerator", "cpu"]
    result = CliRunner().invoke(application, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "| LeNet | 1 |" in result.stdout
    assert result.stdout.count("| PCNN |") == 2
    (tmp_path / "report.md").unlink()
    again = CliRunner().invoke(application, ["reproduce", "scale", "--report-only", "--output", str(tmp_path)])
    assert again.stdout == result.stdout
    assert (tmp_path / "report.md").is_file()


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_the_smoke_run_shortens_every_row(transformation: Transformation) -> None:
    for config in EXPERIMENTS[transformation].choose_rows((), (), smoke=True):
        assert config.training.steps <= 10
        assert config.train_images == 500
    with pytest.raises(InputError, match="there is no row 'best'"):
        EXPERIMENTS[transformation].choose_rows(["best"], (), smoke=False)
