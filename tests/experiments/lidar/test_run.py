"""Laser scans: training, evaluation, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import data_folder
from support import DEVICE, relative_error
from torch import Tensor, nn
from town import make_town
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.clouds.scenes import Cropping, make_scene
from permutohedral.clouds.weights import STANDARD_CLASSES, load_segmenter
from permutohedral.data.lidar import CLASSES, to_classes
from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.lidar.own_files import OwnTraining, train_on_files
from permutohedral.experiments.lidar.report import EXPERIMENTS, ROWS, VARIANTS, lidar_table, write_lidar_report
from permutohedral.experiments.lidar.run import HALVED, UNSEEN, LidarConfig, build_model, evaluate, run, time_step
from permutohedral.experiments.lidar.ship import ship
from permutohedral.experiments.result import Result, read_weights, write_result
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.deep_denoising import count_weights

LIDAR = EXPERIMENTS["lidar"]
TRAINING = TrainingSettings(steps=4, batch_size=2, optimizer="adam", learning_rate=0.01, weight_decay=0.0)
SMALL_CROPS = Cropping(20.0, 30.0, points=500)


def options(folder: Path) -> RunOptions:
    return RunOptions(folder, progress=False, accelerator="gpu" if DEVICE.type == "cuda" else "cpu")


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """All places, as small towns."""
    for seed, name in enumerate(("zurich", "fusa", "lake", "house")):
        positions, labels = make_town(1500, seed=seed)
        np.savez(tmp_path / f"{name}.npz", positions=positions.numpy(), classification=labels.numpy())
    return tmp_path


def row(**changes: object) -> LidarConfig:
    base = LidarConfig("row", "Row", "pointwise", TRAINING, {"channels": [16]}, cropping=SMALL_CROPS)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_every_shipped_row_is_in_the_table_and_parses() -> None:
    assert sorted([*ROWS, *VARIANTS]) == sorted(shipped_configs("lidar"))
    for name, path in shipped_configs("lidar").items():
        assert read_config(LidarConfig, path).name == name


def test_all_networks_have_as_many_weights_and_are_trained_alike() -> None:
    configs = LIDAR.choose_rows((), (), smoke=False)
    weights = [count_weights(build_model(config)) for config in configs]
    assert min(weights) > 0.96 * max(weights)
    assert len({(config.training, config.cropping, config.places) for config in configs}) == 1


def test_training_learns_from_heights(towns: Path) -> None:
    result = run(row(training=replace(TRAINING, steps=60)), replace(options(towns / "out"), data=towns))
    assert result is not None
    # ground is flat, and all that is high looks alike to single points
    assert result.metrics["iou"][UNSEEN]["ground"] > 0.9
    assert result.metrics["weights"] == count_weights(build_model(row()))
    # the east half, and all of the other place
    numbers = {place: int(np.sum(result.metrics["confusion"][place])) for place in (HALVED, UNSEEN)}
    assert numbers[UNSEEN] == 1500
    assert 600 < numbers[HALVED] < 900


def test_a_resumed_training_ends_where_an_uninterrupted_one_does(towns: Path) -> None:
    whole, interrupted = (replace(options(towns / name), data=towns) for name in ("whole", "interrupted"))
    run(row(), whole)
    run(row(training=replace(TRAINING, steps=2)), interrupted)
    run(row(), replace(interrupted, resume=True))
    expected, actual = (read_weights(o.output / "weights" / "row-0.safetensors") for o in (whole, interrupted))
    assert all(relative_error(actual[name].double(), expected[name].double()) < 1e-4 for name in expected)
    assert relative_error(expected["head.weight"], build_model(row()).state_dict()["head.weight"]) > 1e-3


class Guess(nn.Module):
    """The same class for the points of the west, another for those of the east."""

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        west = (positions[:, 0] < 0).long()
        return nn.functional.one_hot(west, 3).float()


def test_figures_by_their_definition() -> None:
    positions, labels = make_town(400, side=20.0)
    labels[:40] = 12
    scene = make_scene(positions, to_classes(labels))
    assert scene.labels is not None
    measured = evaluate(Guess(), scene, torch.device("cpu"))
    centered = scene.positions - scene.positions.mean(dim=0)
    guess, truth = (centered[:, 0] < 0).long().numpy()[40:], scene.labels.numpy()[40:]
    for number, name in enumerate(CLASSES):
        union = ((guess == number) | (truth == number)).sum()
        expected = ((guess == number) & (truth == number)).sum() / max(union, 1)
        assert measured["iou"][name] == pytest.approx(expected)
    assert measured["miou"] == pytest.approx(np.mean(list(measured["iou"].values())))
    assert measured["accuracy"] == pytest.approx((guess == truth).mean())


def test_places_to_train_on_leave_the_unseen_one_out() -> None:
    with pytest.raises(InputError, match="places to train on are zurich, lake, house"):
        row(places=("fusa",))


def test_the_report_gives_mean_and_spread_of_the_seeds(tmp_path: Path) -> None:
    results = []
    for seed, share in enumerate((0.7, 0.8, 0.9)):
        iou = {place: dict.fromkeys(CLASSES, share) for place in (HALVED, UNSEEN)}
        metrics = {"miou": {HALVED: share, UNSEEN: share / 2}, "iou": iou, "weights": 1234}
        environment = {"commit": "abc", "hardware": {"processor": "x", "cores": 2}}
        config = {"title": "Row", "training": {"steps": 100, "batch_size": 8}}
        results.append(Result("lidar", "row", config, metrics, seed, {}, environment))
    line = "| Row | 1,234 | 3 | 800 | 0.800 ± 0.100 | 0.800 / 0.800 / 0.800 | 0.400 ± 0.050 | 0.800 / 0.800 / 0.800 |"
    assert line in lidar_table(results)
    [path] = write_lidar_report(results, RunOptions(tmp_path), "permutohedral reproduce lidar")
    assert line in path.read_text()
    assert "row on x, 2 cores at `abc`" in path.read_text()


def test_steps_are_timed(towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("_WARM_UP", 1), ("_TIMED", 2)):
        monkeypatch.setattr(f"permutohedral.experiments.lidar.run.{name}", number)
    times = time_step(row(), replace(options(towns), data=towns))
    assert times["milliseconds"] > 0
    assert 0 < times["points"] <= 1200
    assert times["dense_points"] > 0


def test_the_command_times_steps_and_makes_the_whole_way(towns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"milliseconds": 12.34, "points": 4567.0, "dense_milliseconds": 5.67, "dense_points": 8901.0}
    monkeypatch.setattr("permutohedral.experiments.lidar.report.time_step", lambda *_: times)
    place = ["--output", str(towns / "out"), "--data", str(towns), "--accelerator", "cpu"]
    arguments = ["reproduce", "lidar", "--smoke", "--time-steps", "--row", "pointwise", *place]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    assert "| point by point |" in result.stdout
    assert "point by point: 12.3 ms a step" in result.stderr
    assert "| pointwise | 4,567 | 12.3 | 8,901 | 5.7 |" in (towns / "out" / "report.md").read_text()


def test_networks_are_trained_on_own_files(towns: Path) -> None:
    path = towns / "network.safetensors"
    training = OwnTraining({"low": (2,), "high": (5, 6)}, steps=2, crops=1, cropping=SMALL_CROPS)
    accuracy = train_on_files([towns / "fusa.npz"], path, training, options(towns / "out"))
    assert 0 <= accuracy <= 1
    network, description = load_segmenter(path)
    assert [each.name for each in description.classes] == ["low", "high"]
    again = replace(training, start=path, steps=1)
    train_on_files([towns / "fusa.npz"], towns / "again.safetensors", again, options(towns / "out"))
    started = load_segmenter(towns / "again.safetensors")[0].state_dict()
    fresh = description.build().state_dict()
    name = "network.head.0.weight"
    kept = network.state_dict()[name]
    assert relative_error(started[name], kept) < 0.5 * relative_error(fresh[name], kept)
    three = replace(again, classes={"low": (2,), "middle": (5,), "high": (6,)})
    with pytest.raises(InputError, match="tells 2 classes apart, not 3"):
        train_on_files([towns / "fusa.npz"], towns / "three.safetensors", three, options(towns / "out"))


def test_files_without_the_classes_are_refused(towns: Path) -> None:
    for classes, message in (
        ({"road": (11,)}, "has no points of the classes road"),
        ({"a": (2,), "b": (11,)}, "class b"),
    ):
        with pytest.raises(InputError, match=message):
            train_on_files([towns / "fusa.npz"], towns / "n.safetensors", OwnTraining(classes), options(towns))
    with pytest.raises(InputError, match="belongs to two classes"):
        train_on_files(
            [towns / "fusa.npz"], towns / "n.safetensors", OwnTraining({"a": (2,), "b": (2,)}), options(towns)
        )
    with pytest.raises(InputError, match=r"something\.safetensors"):
        train_on_files([towns / "fusa.npz"], towns / "n.bin", OwnTraining(), options(towns))


def test_a_trained_row_is_shipped(towns: Path) -> None:
    trained = replace(options(towns / "out"), data=towns)
    result = run(row(above="nothing"), trained)
    assert result is not None
    write_result(result, towns / "out" / "runs" / "row-0.json")
    ship(towns / "out", towns / "network.safetensors", "row", seed=0)
    network, description = load_segmenter(towns / "network.safetensors")
    assert (description.classes, description.above) == (STANDARD_CLASSES, "nothing")
    expected = read_weights(towns / "out" / "weights" / "row-0.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


def test_the_scans_are_split_by_place() -> None:
    from permutohedral.experiments.lidar.run import training_scene

    pytest.importorskip("lazrs")
    scene = training_scene("house", data_folder("lidar"))
    assert len(scene.positions) == 57084
