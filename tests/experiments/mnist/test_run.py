"""Digits from scattered samples: batches, training, rows, report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import DEVICE
from torch import Tensor
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.mnist import MnistSplit
from permutohedral.errors import InputError, PermutohedralError
from permutohedral.experiments import rows
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.experiment import with_seeds
from permutohedral.experiments.mnist import run as mnist
from permutohedral.experiments.mnist.report import (
    EXPERIMENTS,
    OUR_ROWS,
    PAPER_ROWS,
    mnist_summary,
    mnist_table,
    write_mnist_report,
)
from permutohedral.experiments.mnist.run import (
    COLUMNS,
    Batches,
    DigitsTask,
    MnistConfig,
    build_model,
    load_weights,
    run,
)
from permutohedral.experiments.result import Result, read_result, write_result
from permutohedral.experiments.training import RunOptions, TrainingSettings

MNIST = EXPERIMENTS["mnist"]

TRAINING = TrainingSettings(steps=8, batch_size=16, learning_rate=0.01, schedule="inverse")
SMALL = {"channels": [4, 6], "hidden": 20}


def made_digits(split: MnistSplit, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """Two classes: a horizontal and a vertical bar, somewhere."""
    random = torch.Generator().manual_seed(("train", "test").index(split))
    labels = torch.arange(96) % 2
    images = torch.zeros(96, 28, 28, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        place = int(torch.randint(8, 17, (), generator=random))
        if label:
            image[place : place + 4, 4:24] = 255
        else:
            image[4:24, place : place + 4] = 255
    return images, labels


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mnist._load_once.cache_clear()
    monkeypatch.setattr(mnist, "load_mnist", made_digits)
    yield
    mnist._load_once.cache_clear()


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


def row(**changes: object) -> MnistConfig:
    base = MnistConfig("row", "Row", "pcnn", TRAINING, options={**SMALL, "neighborhood_size": 1})
    return replace(base, **changes)  # type: ignore[arg-type]


def batches(**changes: object) -> Batches:
    images, labels = (tensor.to(DEVICE) for tensor in made_digits("train"))
    return Batches(images, labels, row(**changes))


@pytest.mark.parametrize("name", sorted(shipped_configs("mnist")))
def test_every_configuration_parses(name: str) -> None:
    config = read_config(MnistConfig, shipped_configs("mnist")[name])
    assert config.name == name
    assert name in PAPER_ROWS + OUR_ROWS
    assert (config.paper is not None) == (name in PAPER_ROWS)
    if name in PAPER_ROWS:
        caffe = TrainingSettings(10_000, 64, "sgd", 0.01, 0.9, 5e-4, "inverse")
        assert config.training == caffe
        assert config.bias_rate == 2
        assert config.model == name.split("_")[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"normalisation": "none"}}, "options of the model pcnn do not fit"),
        ({"share": 0.0}, "share must be positive"),
        ({"paper": (0.99,)}, "paper must give 4 accuracies"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        row(**changes)


def test_batches_depend_on_their_number_alone() -> None:
    one, other = batches(samples="random", share=0.2), batches(samples="random", share=0.2)
    other(3)
    for left, right in zip(one(7), other(7), strict=True):
        assert left is not None
        assert right is not None
        assert torch.equal(left, right)
    values, positions, labels = one(8)
    assert values.shape == (16, 157, 1)
    assert positions is not None
    assert positions.shape == (16, 157, 2)
    assert labels.shape == (16,)
    before = one(7)[1]
    assert before is not None
    assert not torch.equal(positions, before)
    assert not torch.equal(batches(samples="random", share=0.2, seed=1)(7)[0], one(7)[0])


def test_an_epoch_shows_every_image_once() -> None:
    made = batches()
    # every pair of a label and a picture counts, as some pictures are alike
    expected = sorted(image.flatten().tolist() for image in mnist.scale(made.images).cpu())
    for epoch in range(2):
        seen = torch.cat([made(6 * epoch + number)[0] for number in range(6)])
        assert sorted(image.flatten().tolist() for image in seen.cpu()) == expected
    assert not torch.equal(made(0)[0], made(6)[0])


def test_mixed_batches_are_of_pixels_or_of_any_share() -> None:
    mixed, original = batches(samples="mixed", least_share=0.3), batches()
    shares = [mixed.draw_share(number) for number in range(200)]
    drawn = [share for share in shares if share is not None]
    assert 20 < shares.count(None) < 80
    assert 0.3 <= min(drawn) < 0.35
    assert 0.9 < max(drawn) <= 1
    assert all(original.draw_share(number) is None for number in range(9))


def test_distortion_moves_the_digit_and_not_the_positions() -> None:
    plain, slight, strong = (batches(distortion=strength)(0) for strength in (0.0, 1e-4, 1.0))
    assert strong[1] is None
    assert float((slight[0] - plain[0]).abs().max()) < 0.01
    difference = (strong[0] - plain[0]).abs().mean(dim=(1, 2))
    assert float(difference.min()) > 0.01
    # no digit leaves its image
    mass = strong[0].sum(dim=1) / plain[0].sum(dim=1)
    assert float((mass - 1).abs().max()) < 0.35
    random = batches(distortion=1.0, samples="random")(0)
    untouched = batches(samples="random")(0)
    assert random[1] is not None
    assert untouched[1] is not None
    assert torch.equal(random[1], untouched[1])
    assert not torch.equal(random[0], untouched[0])


def test_biases_learn_at_their_own_rate() -> None:
    task = DigitsTask(build_model(row()), row(), *made_digits("train"))
    groups = task.configure_optimizers()["optimizer"].param_groups
    assert [group["lr"] for group in groups] == [0.01, 0.02]
    assert sum(len(group["params"]) for group in groups) == 8
    assert all(parameter.dim() == 1 for parameter in groups[1]["params"])


@pytest.mark.usefixtures("made")
def test_training_learns_and_the_result_tells_all(options: RunOptions) -> None:
    training = TrainingSettings(steps=30, batch_size=16, optimizer="adam", learning_rate=0.01)
    config = row(training=training, samples="mixed")
    result = run(config, options)
    assert result is not None
    accuracy = result.metrics["accuracy"]
    assert list(accuracy) == list(COLUMNS)
    assert accuracy["original"] > 0.9
    assert result.config["training"]["steps"] == 30
    assert result.seconds["training"] > 0
    images, labels = (tensor.to(options.device) for tensor in made_digits("test"))
    again = mnist.evaluate(load_weights(config, options.output).to(options.device), images, labels, config.seed)
    assert again == accuracy


@pytest.mark.usefixtures("made")
def test_a_resumed_training_ends_as_an_uninterrupted_one(options: RunOptions, tmp_path: Path) -> None:
    config = row(samples="random", share=0.2)
    run(replace(config, training=replace(TRAINING, steps=4)), options)
    run(config, replace(options, resume=True))
    whole = replace(options, output=tmp_path / "whole")
    run(config, whole)
    resumed, expected = (load_weights(config, folder).state_dict() for folder in (options.output, whole.output))
    for name, weight in expected.items():
        assert torch.allclose(resumed[name], weight, atol=1e-6), name


def test_seeds_come_row_by_row() -> None:
    configs = with_seeds([row(name="a"), row(name="b")], 2)
    assert [(config.name, config.seed) for config in configs] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


@pytest.mark.usefixtures("made")
def test_rows_that_are_done_are_kept(options: RunOptions) -> None:
    configs = with_seeds([row(training=replace(TRAINING, steps=1))], 2)
    lines: list[str] = []
    first = list(rows.run_rows(MNIST, configs, options, lines.append))
    assert [result.seed for result in first] == [0, 1]
    assert read_result(options.output / "runs" / "row-1.json").metrics == first[1].metrics
    untrained = replace(MNIST, run=lambda config, options: pytest.fail("trained again"))
    again = list(rows.run_rows(untrained, configs, replace(options, resume=True), lines.append))
    assert [result.metrics for result in again] == [result.metrics for result in first]
    assert lines[-1] == "Row, seed 1: kept"


def finished(name: str, seed: int, accuracy: float, paper: float | None = None) -> Result:
    figures = None if paper is None else [paper] * 4
    config = {"title": name.title(), "paper": figures, "test_images": None}
    environment = {"commit": "c", "backend": "native", "hardware": {"processor": "p", "cores": 2}}
    metrics = {"accuracy": dict.fromkeys(COLUMNS, accuracy)}
    return Result("mnist", name, config, metrics, seed, {"training": 2.0}, environment)


def test_rows_side_by_side_survive_one_that_fails(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_run(config: MnistConfig, _: RunOptions) -> Result:
        if config.name == "bad":
            raise InputError("out of digits")
        return finished(config.name, config.seed, 0.5)

    # threads see the patch, and start at once
    monkeypatch.setattr(rows, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))
    lines: list[str] = []
    outcomes = rows.run_rows(
        replace(MNIST, run=fake_run), [row(name="bad"), row(), row(seed=1)], options, lines.append, jobs=2
    )
    names = [next(outcomes).name, next(outcomes).name]
    with pytest.raises(PermutohedralError, match="bad with seed 0: InputError: out of digits"):
        next(outcomes)
    assert names == ["row", "row"]
    assert sorted(path.name for path in (options.output / "runs").iterdir()) == ["row-0.json", "row-1.json"]
    assert len(lines) == 3


def test_the_report_has_mean_and_spread_beside_the_paper(tmp_path: Path) -> None:
    results = [finished("pcnn", 0, 0.98, 0.99), finished("pcnn", 1, 0.99, 0.99), finished("ours", 0, 0.995)]
    [pcnn, ours] = mnist_summary(results)
    assert pcnn["mean"]["60 %"] == pytest.approx(0.985)
    assert pcnn["spread"]["60 %"] == pytest.approx(0.01 / 2**0.5, abs=1e-6)
    assert ours["spread"] is None
    table = mnist_table(results).splitlines()
    assert "0.9850 ± 0.0071 (0.9900)" in table[2]
    assert table[3].count("0.9950") == 4
    [path] = write_mnist_report(results, RunOptions(tmp_path), "make it")
    assert "`make it`" in path.read_text()
    content = json.loads((tmp_path / "mnist.json").read_text())
    assert len(content["results"]) == 3
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


@pytest.mark.usefixtures("made")
def test_the_command_prints_the_table(tmp_path: Path) -> None:
    arguments = ["reproduce", "mnist", "--smoke", "--row", "pcnn_20", "--output", str(tmp_path), "--accelerator", "cpu"]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    assert "| PCNN 20 % | 1 |" in result.stdout
    assert "(0.9042)" in result.stdout
    report = tmp_path / "report.md"
    report.unlink()
    again = CliRunner().invoke(application, ["reproduce", "mnist", "--report-only", "--output", str(tmp_path)])
    assert again.stdout == result.stdout
    assert report.is_file()


def test_results_are_read_in_the_order_of_the_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no results"):
        MNIST.read_results(tmp_path)
    for name, seed in (("alone", 0), ("mixed", 0), ("pcnn", 1), ("pcnn", 0), ("lenet", 0)):
        write_result(finished(name, seed, 0.5), tmp_path / "runs" / f"{name}-{seed}.json")
    names = [(result.name, result.seed) for result in MNIST.read_results(tmp_path)]
    assert names == [("lenet", 0), ("pcnn", 0), ("pcnn", 1), ("mixed", 0), ("alone", 0)]


def test_the_smoke_run_shortens_every_row() -> None:
    for config in MNIST.choose_rows((), (), smoke=True):
        assert config.training.steps <= 20
        assert config.train_images == 1000
    with pytest.raises(InputError, match="there is no row 'best'"):
        MNIST.choose_rows(["best"], (), smoke=False)
