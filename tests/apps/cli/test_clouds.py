"""`permutohedral cloud smooth` and `segment`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from town import make_town
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.apps import PointSegmenter
from permutohedral.apps.cli.application import application
from permutohedral.apps.io.clouds import read_cloud


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    positions, labels = make_town(800)
    np.savez(tmp_path / "town.npz", positions=positions.numpy(), classification=labels.numpy())
    torch.manual_seed(0)
    network = PointSegmenter(0, {"ground": 2, "vegetation": 5, "building": 6}, channels=(4,))
    # always building
    with torch.no_grad():
        weight, bias = network.network.head[-1].parameters()
        weight.zero_()
        bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    network.save(tmp_path / "network.safetensors")
    PointSegmenter(2, 3, channels=(4,)).save(tmp_path / "values.safetensors")
    return tmp_path


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(application, list(map(str, arguments)))
    return result.exit_code, result.stdout, result.stderr


def test_segments_and_draws(folder: Path) -> None:
    model, image = folder / "network.safetensors", folder / "above.png"
    command = ["cloud", "segment", folder / "town.npz", folder / "out.npz", "--model", model, "--image", image]
    code, out, errors = invoke(*command, "--json", "--device", "cpu")
    assert code == 0, errors
    [report] = json.loads(out)
    assert report["classes"] == {"ground": 0, "vegetation": 0, "building": 800}
    assert (report["input"], report["error"]) == (str(folder / "town.npz"), None)
    written = read_cloud(folder / "out.npz")
    assert written.labels is not None
    assert written.labels.tolist() == [6] * 800
    assert image.read_bytes().startswith(b"\x89PNG")


def test_reports_mistakes_and_leaves_no_files(folder: Path) -> None:
    for arguments, message in (
        (("town.npz", "out.laz"), "must have the format of"),
        (("nothing.npz", "out.npz"), "there is no file or folder"),
        (("town.npz", "out.npz"), "model is missing, and none is shipped; train one"),
        (("town.npz", "out.npz", "--model", "nothing.safetensors"), "cannot read the network"),
        (("town.npz", "out.npz", "--model", "values.safetensors"), "reads 2 values of each point"),
        (("town.npz", "out.npz", "--image", "above.txt"), "its ending must be one of"),
        (("town.npz", "town.npz"), "the result would overwrite"),
        (("town.npz", "out.npz", "--model", "network.safetensors", "--device", "tpu"), "pass auto, cpu, cuda"),
    ):
        paths = [folder / each if "." in each else each for each in arguments]
        code, _, errors = invoke("cloud", "segment", *paths)
        assert code == 1
        assert message in errors
    assert not list(folder.glob("out*"))


def test_smooths_a_field(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="laspy is not installed")
    pytest.importorskip("dask.array", reason="Dask is not installed")
    positions, _ = make_town(400)
    scan = laspy.create(point_format=6, file_version="1.4")
    scan.header.scales, scan.header.offsets = [0.001] * 3, np.floor(positions.numpy().min(axis=0))
    scan.x, scan.y, scan.z = positions.numpy().T
    scan.intensity = np.random.default_rng(0).integers(0, 60_000, 400).astype(np.uint16)
    scan.write(tmp_path / "in.las")
    command = ["cloud", "smooth", tmp_path / "in.las", tmp_path / "out.las", "--field"]
    code, _, errors = invoke(*command, "intensity", "--sigma-space", "3")
    assert code == 0, errors
    before, after = laspy.read(tmp_path / "in.las"), laspy.read(tmp_path / "out.las")
    np.testing.assert_array_equal(after.xyz, before.xyz)
    features = torch.from_numpy((np.array(before.xyz) - np.array(before.xyz).min(axis=0)) / 3)
    wanted = ph.gaussian_filter(torch.from_numpy(np.asarray(before.intensity, np.float64))[:, None], features)[:, 0]
    np.testing.assert_allclose(after.intensity, wanted, rtol=0, atol=0.6)
    for field, reason in (("height", "lacks"), ("classification", "averaged"), ("point_source_id", "averaged")):
        code, _, errors = invoke(*command, field)
        assert code == 1
        assert f"field is '{field}', which " in errors
        assert reason in errors
        assert errors.endswith("; pass position, intensity, scan_angle, gps_time\n")
