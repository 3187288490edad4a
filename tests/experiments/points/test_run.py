"""Point clouds: training, evaluation, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import DEVICE, relative_error
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.solids import SOLIDS, make_clouds
from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.experiment import with_seeds
from permutohedral.experiments.points.report import EXPERIMENTS, ROWS, points_table, write_points_report
from permutohedral.experiments.points.run import CloudsTask, PointsConfig, build_model, run
from permutohedral.experiments.result import Result, read_weights
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.deep_denoising import count_weights

POINTS = EXPERIMENTS["points"]

TRAINING = TrainingSettings(steps=60, batch_size=16, optimizer="adam", learning_rate=0.01, weight_decay=0.0)


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(tmp_path / "out", progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


def row(**changes: object) -> PointsConfig:
    arguments = {"features": "position", "values": "position_normal", "channels": [8, 8, 8, 8], "hidden": 16}
    base = PointsConfig("row", "Row", "permutohedral", TRAINING, arguments, train_clouds=160, test_clouds=120)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_every_shipped_row_is_in_the_table_and_parses() -> None:
    assert sorted(ROWS) == sorted(shipped_configs("points"))
    for name, path in shipped_configs("points").items():
        assert read_config(PointsConfig, path).name == name


def test_the_baselines_have_no_fewer_weights() -> None:
    configs = {config.name: config for config in POINTS.choose_rows((), (), smoke=False)}
    weights = {name: count_weights(build_model(config)) for name, config in configs.items()}
    assert weights["pointwise_position"] >= weights["position"]
    assert weights["pointwise_normal"] >= max(weights["position_normal"], weights["position_normal_values"])
    assert min(weights.values()) > 0.8 * max(weights.values())
    assert len({config.training for config in configs.values()}) == 1


def test_training_recognizes_solids(options: RunOptions) -> None:
    result = run(row(training=replace(TRAINING, steps=150)), options)
    assert result is not None
    # a guess is right once in eight times
    assert result.metrics["accuracy"]["all"] > 0.4
    confusion = torch.tensor(result.metrics["confusion"])
    labels = make_clouds(120, seed=2, noise=0.03).labels
    assert confusion.sum(dim=1).tolist() == torch.bincount(labels, minlength=len(SOLIDS)).tolist()
    assert int(confusion.diagonal().sum()) / 120 == result.metrics["accuracy"]["all"]


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(options: RunOptions, tmp_path: Path) -> None:
    training = replace(TRAINING, steps=4, optimizer="sgd", batch_size=8)
    whole = row(training=training, train_clouds=24, test_clouds=8)
    run(whole, options)
    interrupted = replace(options, output=tmp_path / "again")
    run(replace(whole, training=replace(training, steps=2)), interrupted)
    run(whole, replace(interrupted, resume=True))
    expected, actual = (read_weights(o.output / "weights" / "row-0.safetensors") for o in (options, interrupted))
    assert all(relative_error(actual[name].double(), expected[name].double()) < 1e-4 for name in expected)
    start = build_model(whole).state_dict()
    assert relative_error(expected["head.weight"], start["head.weight"]) > 1e-3


def test_an_epoch_sees_every_cloud_once() -> None:
    config = row(train_clouds=32, training=replace(TRAINING, batch_size=8))
    task = CloudsTask(build_model(config), config, make_clouds(32, seed=0))
    assert sorted(torch.cat([task.choose(number) for number in range(4)]).tolist()) == list(range(32))
    assert not torch.equal(task.choose(0), task.choose(4))
    assert torch.equal(task.choose(5), task.choose(5))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of 16 exceeds the 8 clouds"):
        row(train_clouds=8)


def test_the_table_gives_mean_and_spread_of_the_seeds(tmp_path: Path, options: RunOptions) -> None:
    confusion = torch.eye(len(SOLIDS), dtype=torch.int64).tolist()
    results = []
    for config, share in zip(with_seeds([row()], 3), (0.7, 0.8, 0.9), strict=True):
        metrics = {"accuracy": {"all": share}, "confusion": confusion, "weights": 1234}
        environment = {"commit": "abc", "hardware": {"processor": "x", "cores": 2}, "threads": 1}
        settings = {"title": config.title, "noise": 0.03, "test_clouds": 120, "train_clouds": 160}
        results.append(Result("points", "row", settings, metrics, config.seed, {"training": 2.0}, environment))
    assert "| Row | 1,234 | 3 | 0.800 ± 0.100 |" in points_table(results)
    [path] = write_points_report(results, RunOptions(tmp_path), "permutohedral reproduce points")
    assert points_table(results) in path.read_text()
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("clouds.png", "confusion.png"))


def test_the_command_makes_the_whole_way(tmp_path: Path) -> None:
    place = ["--output", str(tmp_path), "--accelerator", "cpu"]
    arguments = ["reproduce", "points", "--smoke", "--seeds", "2", "--row", "position_normal", *place]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    assert "| permutohedral, position + normal |" in result.stdout
    assert [entry.seed for entry in POINTS.read_results(tmp_path)] == [0, 1]
    again = CliRunner().invoke(application, [*arguments, "--resume"])
    assert again.stderr.count("kept") == 2
    unknown = CliRunner().invoke(application, ["reproduce", "points", "--row", "cube"])
    assert unknown.exit_code == 1
    assert "there is no row 'cube'" in unknown.stderr
