"""Categories of toy parts: training, evaluation, report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import DEVICE
from torch import Tensor, nn
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.data.ldraw import CONVERTED, Parts, load_parts, to_int16
from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.parts.report import EXPERIMENTS, ROWS
from permutohedral.experiments.parts.run import PartsConfig, build_model, draw_points, evaluate, flatten, run, vary
from permutohedral.experiments.training import RunOptions, TrainingSettings
from permutohedral.models.deep_denoising import count_weights

TRAINING = TrainingSettings(steps=25, batch_size=8, optimizer="adam", learning_rate=0.01, weight_decay=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Balls and sticks."""
    random = np.random.default_rng(0)
    clouds = random.normal(size=(60, 80, 3))
    clouds[::2, :, :2] *= 0.05
    clouds /= np.linalg.norm(clouds, axis=2).max(axis=1)[:, None, None]
    labels = np.arange(60) % 2
    np.savez(
        tmp_path / CONVERTED,
        positions=to_int16(clouds.astype(np.float32)),
        labels=labels,
        bases=np.arange(60),
        classes=np.array(["stick", "ball"]),
    )
    return tmp_path


def row(**changes: object) -> PartsConfig:
    base = PartsConfig("row", "Row", "lattice", TRAINING, {"channels": [8], "step": 0.5}, points=40)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_every_shipped_row_parses_and_has_as_many_weights() -> None:
    assert sorted(ROWS) == sorted(shipped_configs("parts"))
    configs = [read_config(PartsConfig, path) for path in shipped_configs("parts").values()]
    weights = [count_weights(build_model(config, classes=29)) for config in configs]
    assert min(weights) > 0.95 * max(weights)
    assert len({config.training for config in configs}) == 1


@pytest.mark.parametrize(("model", "options"), [("lattice", {"channels": [8], "step": 0.5}), ("pointwise", {})])
def test_shapes_are_learned(folder: Path, model: str, options: dict[str, object]) -> None:
    accelerator = "gpu" if DEVICE.type == "cuda" else "cpu"
    where = RunOptions(folder / "out", data=folder, progress=False, accelerator=accelerator)
    result = run(row(model=model, options=options), where)
    assert result is not None
    assert result.metrics["accuracy"]["all"] > 0.9
    assert result.metrics["categories"] == 2


def test_figures_by_their_definition(folder: Path) -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, positions: Tensor, item: Tensor) -> Tensor:
            return torch.eye(2)[torch.zeros(int(item.max()) + 1, dtype=torch.int64)]

    parts = load_parts(folder)
    labels = parts.labels.clone()
    labels[:10] = 0
    given = Parts(parts.classes, parts.positions, labels, parts.bases)
    share = float((labels == 0).float().mean())
    found = evaluate(First(), given, 40)["accuracy"]
    assert found == {"all": pytest.approx(share), "mean of the categories": pytest.approx(0.5)}


def test_clouds_are_turned_about_the_vertical() -> None:
    generator = torch.Generator().manual_seed(0)
    clouds = torch.rand(3, 50, 3)
    varied = vary(clouds, generator)
    ratio = varied[:, :, [0, 2]].norm(dim=2) / clouds[:, :, [0, 2]].norm(dim=2)
    assert bool((ratio.median(dim=1).values - 1).abs().max() < 0.12)
    assert float((varied - clouds).abs().max()) > 0.2
    drawn = draw_points(clouds, 7, generator)
    assert all(any(torch.equal(point, each) for each in clouds[2]) for point in drawn[2])
    positions, item = flatten(drawn)
    assert (positions.shape, item.tolist()) == ((21, 3), [0] * 7 + [1] * 7 + [2] * 7)


def test_the_command_makes_the_whole_way(folder: Path) -> None:
    place = ["--output", str(folder / "out"), "--data", str(folder), "--accelerator", "cpu", "--seeds", "1"]
    result = CliRunner().invoke(application, ["reproduce", "parts", "--smoke", "--row", "pointwise", *place])
    assert result.exit_code == 0, result.output
    assert "| point by point, after PointNet |" in (folder / "out" / "report.md").read_text()
    assert EXPERIMENTS["parts"].read_results(folder / "out")[0].metrics["parts"] > 0


def test_wrong_options() -> None:
    with pytest.raises(InputError, match="do not fit"):
        row(options={"width": 3})
    with pytest.raises(InputError, match="there is no network"):
        row(model="transformer")
