"""`permutohedral array filter`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.cli.application import application

pytest.importorskip("dask.array", reason="Dask is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

import zarr


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(application, [str(argument) for argument in arguments])


def test_filters_a_volume(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).random((6, 7, 8), dtype=np.float32)
    zarr.create_array(str(tmp_path / "in.zarr"), shape=volume.shape, dtype=volume.dtype)[...] = volume
    options = "--sigma-space", "1,2,2", "--sigma-color", 0.3, "--json"
    result = invoke("array", "filter", tmp_path / "in.zarr", tmp_path / "out.zarr", *options)
    assert result.exit_code == 0, result.output
    [report] = json.loads(result.stdout)
    assert (report["shape"], report["axes"], report["tiles"]) == ([6, 7, 8], "ZYX", 1)
    expected = ph.bilateral_filter(
        torch.from_numpy(volume)[None], sigma_space=(1.0, 2.0, 2.0), sigma_color=0.3, spatial_dims=3
    )[0]
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "out.zarr"))[...], expected)


def test_prints_a_note_on_large_bandwidths_of_integers(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "in.zarr"), data=np.zeros((9, 9), np.uint16))
    result = invoke("array", "filter", tmp_path / "in.zarr", tmp_path / "out.zarr", "--sigma-color", 6553)
    assert result.exit_code == 0, result.output
    assert "note: sigma_color is 6553, but the largest uint16 counts as 1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("in.zarr", "out.zarr"), 1, "error: input in.zarr does not exist"),
        (("in.zarr", "out.tif"), 1, "ends with .zarr"),
        (("in.zarr", "out.zarr", "--sigma-space", "1,x"), 2, "numbers with commas between"),
        (("in.zarr", "out.zarr", "--sigma-space", "1,-2"), 2, "must be positive"),
        (("in.zarr", "out.zarr", "--sigma-color", "0"), 2, "must be positive"),
    ],
)
def test_reports_mistakes(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = invoke("array", "filter", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
