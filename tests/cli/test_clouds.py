"""`permutohedral segment-points` and `train-points`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from town import make_town
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.clouds.weights import STANDARD_CLASSES, Description, save_segmenter
from permutohedral.data.cloud_files import read_cloud


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    positions, labels = make_town(800)
    np.savez(tmp_path / "town.npz", positions=positions.numpy(), classification=labels.numpy())
    description = Description("pointwise", {"channels": [4]}, STANDARD_CLASSES)
    torch.manual_seed(0)
    network = description.build()
    # building, whatever it sees
    torch.nn.init.zeros_(network.head.weight)  # type: ignore[union-attr,arg-type]
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))  # type: ignore[union-attr,operator]
    save_segmenter(network, description, tmp_path / "network.safetensors")
    return tmp_path


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(application, list(map(str, arguments)))
    return result.exit_code, result.stdout, result.stderr


def test_points_are_classified_and_drawn(folder: Path) -> None:
    model, picture = folder / "network.safetensors", folder / "above.png"
    command = ["segment-points", folder / "town.npz", folder / "out.npz", "--model", model, "--picture", picture]
    code, out, errors = invoke(*command, "--json", "--accelerator", "cpu")
    assert code == 0, errors
    assert json.loads(out) == {"ground": 0, "vegetation": 0, "building": 800}
    written = read_cloud(folder / "out.npz")
    assert written.labels is not None
    assert written.labels.tolist() == [6] * 800
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_shipped_network_finds_the_ground(folder: Path) -> None:
    code, _, errors = invoke("segment-points", folder / "town.npz", folder / "out.npz", "--accelerator", "cpu")
    assert code == 0, errors
    before, after = read_cloud(folder / "town.npz").labels, read_cloud(folder / "out.npz").labels
    assert before is not None
    assert after is not None
    assert float((after[before == 2] == 2).float().mean()) > 0.9
    assert float((after[before != 2] == 2).float().mean()) < 0.1


def test_mistakes_are_told_and_leave_nothing(folder: Path) -> None:
    for arguments, message in (
        (("town.npz", "out.laz"), "must be of the format of"),
        (("nothing.npz", "out.npz"), "cannot read the point cloud"),
        (("town.npz", "out.npz", "--model", "nothing.safetensors"), "cannot read the network"),
        (("town.npz", "out.npz", "--picture", "above.txt"), "its ending must be one of"),
        (("town.npz", "out.npz", "--accelerator", "tpu"), "must be auto, cpu or gpu"),
    ):
        paths = [folder / each if "." in each else each for each in arguments]
        code, _, errors = invoke("segment-points", *paths)
        assert code == 1
        assert message in errors
    assert not list(folder.glob("out*"))


def test_training_writes_a_network(folder: Path) -> None:
    command = ["train-points", folder / "town.npz", folder / "own.safetensors", "--steps", 1, "--crops", 1]
    code, _, errors = invoke(*command, "--class", "low=2", "--class", "high=5,6", "--accelerator", "cpu")
    assert code == 0, errors
    assert "of the classified points it was trained on are right" in errors
    code, out, _ = invoke("segment-points", folder / "town.npz", folder / "out.npz", "--model", command[2], "--json")
    assert code == 0
    assert sum(json.loads(out).values()) == 800
    code, _, errors = invoke(*command, "--class", "low")
    assert code == 1
    assert "takes NAME=NUMBERS" in errors
    for seed in (-1, 2**32):
        code, _, errors = invoke(*command, "--seed", seed)
        assert code == 2
        assert "Invalid value for '--seed'" in errors
