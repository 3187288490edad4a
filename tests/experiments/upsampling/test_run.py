"""The upsampling tables: data, methods, the choice of settings, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from permutohedral.data.middlebury import load_scene
from permutohedral.errors import DataError, InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.experiments.upsampling.learned import ColorTask, Crops
from permutohedral.experiments.upsampling.methods import METHODS
from permutohedral.experiments.upsampling.report import EXPERIMENTS, tables, write_upsampling_report
from permutohedral.experiments.upsampling.run import Picture, UpsamplingConfig, choose, ends_of, evaluate, run
from permutohedral.models.color_upsampling import ColorUpsampler

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes of a disk before a wall, in the layout of the set."""
    folder = tmp_path_factory.mktemp("data") / "middlebury"
    for kind in ("color", "disparity"):
        (folder / kind).mkdir(parents=True)
    y, x = np.indices((32, 48))
    for number, name in enumerate(("cones", "teddy", "art", "books", "moebius", "tsukuba", "venus")):
        disk = (y - 16) ** 2 + (x - 24) ** 2 < (8 + number) ** 2
        color = np.where(disk[..., None], (200, 120, 40), (40, 90, 160)) + RANDOM.normal(0, 4, (32, 48, 3))
        Image.fromarray(np.clip(color, 0, 255).astype(np.uint8)).save(folder / "color" / f"{name}.png")
        Image.fromarray(np.where(disk, 200, 80).astype(np.uint8)).save(folder / "disparity" / f"{name}.png")
    return folder.parent


def row(method: str = "bicubic", **changes: Any) -> UpsamplingConfig:
    return UpsamplingConfig(**{"name": "row", "title": "Row", "task": "depth", "method": method, **changes})


def test_every_shipped_row_parses() -> None:
    for experiment in EXPERIMENTS.values():
        shipped = shipped_configs(experiment.name)
        assert sorted((*experiment.rows, *experiment.more_rows)) == sorted(shipped)
        for name, path in shipped.items():
            config = read_config(UpsamplingConfig, path)
            assert config.name == name
            assert (config.task == "features") == (experiment.name == "features")
            chosen = [value for choice in config.choices() for value in choice.values()]
            assert all(isinstance(value, (int, float)) or value == "point" for value in chosen)


def test_missing_data_tells_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERMUTOHEDRAL_DATA", raising=False)
    for folder in (None, tmp_path):
        with pytest.raises(DataError, match=r"disparity/NAME\.png"):
            load_scene("art", folder)


def test_ours_beat_interpolation_and_the_report_says_so(data: Path, tmp_path: Path) -> None:
    options = RunOptions(tmp_path, data, "cpu", progress=False)
    grid = {"sigma_space": [0.75], "sigma_gray": [0.3], "sigma_color": [0.1]}
    rows = row(name="bicubic", factors=(4,)), row("solver", factors=(4,), grid=grid)
    results = [result for each in rows if (result := run(each, options)) is not None]
    scores = [result.metrics["4"]["score"] for result in results]
    assert scores[1] < 0.5 * scores[0]
    assert set(results[0].metrics["4"]["pictures"]) == {"art", "books", "moebius", "tsukuba", "venus"}
    (page,) = write_upsampling_report(results, options, "the command")
    assert f"| Row | {scores[1]:.2f} |" in page.read_text()
    assert tables(results).count("\n| ") == 4
    assert EXPERIMENTS["upsampling"].headline(results[1]) == f"4x {scores[1]:.2f}"


def test_the_better_settings_are_chosen_and_ends_are_told() -> None:
    guide = torch.from_numpy(np.where(np.indices((16, 16))[1] < 6, 0.2, 0.8)).float().expand(3, -1, -1)
    picture = Picture("edge", 255 * guide[:1], guide)
    grid = {"sigma_space": [0.5], "sigma_gray": [9.0, 0.2, 4.0], "sigma_color": [0.1, 0.2], "steps": [2]}
    config = row("gaussian", grid=grid)
    settings = choose(config, [picture], 4)
    assert settings["sigma_gray"] == 0.2
    assert ends_of(config, settings) == ["sigma_color"]
    scores = [
        evaluate(METHODS["gaussian"], "depth", picture, 4, {**settings, "sigma_gray": sigma})[0] for sigma in (0.2, 9.0)
    ]
    assert scores[0] < scores[1]


def test_colors_are_measured_in_decibels() -> None:
    gray = torch.rand(1, 16, 16)
    truth = torch.full((3, 16, 16), 0.25)
    picture = Picture("flat", truth - gray, gray, gray)
    perfect, _ = evaluate(METHODS["bicubic"], "chroma", Picture("flat", truth, gray), 4, {})
    assert perfect > 80
    assert evaluate(METHODS["bicubic"], "chroma", picture, 4, {})[0] < 40


def test_kept_pixels_are_kept() -> None:
    truth = torch.rand(3, 16, 24)
    seen = []

    def method(coarse: Tensor, guide: Tensor, factor: float, settings: Any) -> Tensor:
        seen.append(coarse)
        return METHODS["linear"](coarse, guide, factor, settings)

    evaluate(method, "kept", Picture("noise", truth, truth[:1]), 4, {})
    assert torch.equal(seen[0], truth[:, ::4, ::4])
    found = METHODS["linear"](seen[0], truth[:1], 4, {})
    torch.testing.assert_close(found[:, ::4, ::4], seen[0])


def test_training_brings_the_filter_nearer() -> None:
    pictures = [torch.rand(3, 1, 8).repeat_interleave(12, dim=2).expand(3, 70, 96) for _ in range(4)]
    model = ColorUpsampler(1.5, 0.2)
    task = ColorTask(model, TrainingSettings(steps=15, batch_size=2), Crops(pictures, 4, 2, seed=0))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(15):
        optimizer.zero_grad()
        task.training_step(step).backward()
        optimizer.step()
    with torch.no_grad():
        trained, untrained = (
            ColorTask(each, task.settings, task.crops).training_step(99) for each in (model, ColorUpsampler(1.5, 0.2))
        )
    assert trained < untrained - 0.1


def test_only_the_filter_is_trained() -> None:
    with pytest.raises(InputError, match="weights to train"):
        row("gaussian", training=TrainingSettings(steps=1, batch_size=1))


@pytest.mark.parametrize("method", ["guidedFilter", "jointBilateralFilter", "dtFilter"])
def test_opencv_filters_keep_constants(method: str) -> None:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2, "ximgproc"):
        pytest.skip("OpenCV without its contributed modules")
    settings = {"sigma_space": 0.5, "sigma_range": 0.1}
    found = METHODS[method](torch.full((1, 4, 4), 7.0), torch.rand(3, 16, 16), 4, settings)
    assert float((found - 7).abs().max()) < 1e-3


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InputError, match="method must be"):
        row("nearest")
