"""The GrabCut table: data, methods, halves, report."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.grabcut import load_photographs
from permutohedral.errors import DataError, InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.grabcut.learned import FieldTraining, LearnedCutout, train
from permutohedral.experiments.grabcut.report import EXPERIMENTS, MORE_ROWS, ROWS
from permutohedral.experiments.grabcut.run import GrabcutConfig, choose, evaluate, measure, run, to_tensors
from permutohedral.experiments.training import RunOptions
from permutohedral.models.cutout import CutoutSettings, cut_out

CPU = torch.device("cpu")
SETTINGS = CutoutSettings(sigma_space=6.0, sigma_range=0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photographs of a disk in the layout of the database."""
    folder, random = tmp_path_factory.mktemp("data") / "grabcut", np.random.default_rng(0)
    for name in ("images", "lasso", "rect", "truth"):
        (folder / name).mkdir(parents=True)
    y, x = np.indices((48, 60))
    distance = np.hypot(y - 24, x - 30)
    for number in range(4):
        radius = 12 + number
        colors = np.where(distance[..., None] < radius, (180, 140, 60), (60, 90, 150))
        pixels = np.clip(colors + random.normal(0, 60, (48, 60, 3)), 0, 255)
        lasso = np.select([distance < radius - 6, distance < radius + 6, distance < radius + 14], [255, 128, 64], 0)
        rect = np.where((abs(y - 24) < radius + 3) & (abs(x - 30) < radius + 3), 128, 64)
        truth = np.select([abs(distance - radius) < 0.5, distance < radius], [128, 255], 0)
        for kind, image in (("images", pixels), ("lasso", lasso), ("rect", rect), ("truth", truth)):
            Image.fromarray(image.astype(np.uint8)).save(folder / kind / f"{number}.png")
    return folder.parent


def row(**changes: Any) -> GrabcutConfig:
    return replace(GrabcutConfig("row", "Row", "mixtures", "lasso", SETTINGS), **changes)


def test_every_shipped_row_is_in_the_table_and_parses() -> None:
    assert sorted((*ROWS, *MORE_ROWS)) == sorted(shipped_configs("grabcut"))
    for name, path in shipped_configs("grabcut").items():
        assert read_config(GrabcutConfig, path).name == name


def test_photographs_are_read(data: Path) -> None:
    photo = load_photographs("lasso", data)[1]
    assert photo.name == "1"
    assert photo.pixels.shape == (48, 60, 3)
    masks = torch.stack([photo.background, photo.foreground, photo.unknown])
    assert int(masks.sum(dim=0).max()) == 1
    assert not masks[:, 0, 0].any()
    assert not load_photographs("rect", data / "grabcut", limit=2)[1].foreground.any()
    assert bool((photo.truth <= photo.counted).all())


def test_a_rectangle_around_everything_tells_nothing(data: Path, tmp_path: Path) -> None:
    for name in ("images", "rect", "truth"):
        (tmp_path / name).mkdir()
        for number in (0, 1):
            content = (data / "grabcut" / name / f"{number}.png").read_bytes()
            (tmp_path / name / f"{number}.png").write_bytes(content)
    Image.new("L", (60, 48), 128).save(tmp_path / "rect" / "1.png")
    assert [photo.name for photo in load_photographs("rect", tmp_path)] == ["0"]


def test_missing_data_tells_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    with pytest.raises(DataError, match="images/NAME"):
        load_photographs("lasso")
    with pytest.raises(DataError, match="images/NAME"):
        load_photographs("lasso", tmp_path)
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="no photographs"):
        load_photographs("lasso", tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "a.png")
    with pytest.raises(DataError, match="cannot read"):
        load_photographs("lasso", tmp_path)
    with pytest.raises(InputError, match="trimap"):
        load_photographs("polygon", tmp_path)  # type: ignore[arg-type]


def test_measures(data: Path) -> None:
    photo = load_photographs("lasso", data)[0]
    assert measure(photo, photo.truth) == {"wrong": 0, "wrong_of_unknown": 0, "intersection_over_union": 1}
    nothing = measure(photo, torch.zeros_like(photo.truth))
    assert nothing["wrong"] == pytest.approx(float(photo.truth.sum() / photo.counted.sum()))
    assert nothing["intersection_over_union"] == 0
    # mixed pixels do not count
    assert measure(photo, photo.truth | ~photo.counted)["wrong"] == 0


@pytest.mark.parametrize("trimap", ["lasso", "rect"])
def test_the_field_beats_colors_alone(data: Path, tmp_path: Path, trimap: Any) -> None:
    options = RunOptions(tmp_path, data, "cpu", progress=False)
    settings = replace(SETTINGS, rounds=1 if trimap == "lasso" else 3)
    alone = run(row(trimap=trimap, settings=settings), options)
    # with the first weight of the colors the field hardly matters
    grid = {"colors": (5.0, 0.1), "sigma_range": (0.3,)}
    field = run(row(trimap=trimap, settings=settings, method="fixed", grid=grid), options)
    assert len(field.metrics["photographs"]) == 4
    assert field.metrics["mean"]["wrong"] < 0.5 * alone.metrics["mean"]["wrong"]
    assert [choice["colors"] for choice in field.metrics["chosen"]] == [0.1, 0.1]


def test_the_better_settings_are_chosen(data: Path) -> None:
    half = load_photographs("lasso", data, limit=2)
    good, bad = SETTINGS, replace(SETTINGS, colors=5.0)
    assert choose([bad, good], half, CPU) == good
    assert evaluate(half[0], lambda photo, trimap: cut_out(photo, trimap, good) > 0.5, CPU)["seconds"] >= 0


def test_training_lowers_the_error(data: Path) -> None:
    photos = load_photographs("lasso", data)
    examples = [(*to_tensors(photo, CPU), photo.truth, photo.counted) for photo in photos]
    poor = replace(SETTINGS, colors=0.5, sigma_range=0.05, bilateral=0.5, near=0.2, steps=3)
    model = LearnedCutout(poor)

    def error() -> float:
        found = [cut_out(*example[:2], model.settings()) > 0.5 for example in examples]
        return sum(measure(photo, each)["wrong"] for photo, each in zip(photos, found, strict=True))

    before, start = error(), asdict(model.settings())
    assert start == pytest.approx(asdict(poor))
    train(model, examples, FieldTraining(steps=24, learning_rate=0.15, crop=48), seed=0)
    assert error() < 0.7 * before
    moved = asdict(model.settings())
    assert {name for name in start if moved[name] == start[name]} == {"steps", "rounds"}


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fixed"},
        {"grid": {"colors": (1.0,)}},
        {"method": "learned"},
        {"training": FieldTraining(1)},
        {"method": "learned", "training": FieldTraining(1)},
        {"method": "learned", "grid": {"colors": (1.0,)}},
        {"method": "fixed", "grid": {"absent": (1.0,)}},
    ],
)
def test_rows_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        row(**changes)


def test_opencv_is_asked_for_by_name(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(InputError, match="opencv"):
        run(row(method="opencv"), RunOptions(tmp_path, data, "cpu", progress=False))


def test_opencv_cuts_out(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="OpenCV, of the extra 'bench', is not installed")
    result = run(row(method="opencv"), RunOptions(tmp_path, data, "cpu", progress=False))
    assert result.metrics["mean"]["wrong"] < 0.02


def test_the_command_runs_every_row(data: Path, tmp_path: Path) -> None:
    arguments = [
        "reproduce",
        "grabcut",
        "--smoke",
        "--data",
        str(data),
        "--output",
        str(tmp_path),
        "--accelerator",
        "cpu",
    ]
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    report = (tmp_path / "report.md").read_text()
    for name in ROWS:
        assert EXPERIMENTS["grabcut"].choose_rows([name])[0].title in report
        assert (tmp_path / f"{name}.json").is_file()
