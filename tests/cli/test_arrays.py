"""The commands for data beyond memory."""

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


def test_filter_of_a_volume(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).random((6, 7, 8), dtype=np.float32)
    zarr.create_array(str(tmp_path / "in.zarr"), shape=volume.shape, dtype=volume.dtype)[...] = volume
    options = "--sigma-space", "1,2,2", "--sigma-range", 0.3, "--json"
    result = invoke("filter", tmp_path / "in.zarr", tmp_path / "out.zarr", *options)
    assert result.exit_code == 0, result.output
    [told] = json.loads(result.stdout)
    assert (told["shape"], told["axes"], told["tiles"]) == ([6, 7, 8], "ZYX", 1)
    expected = ph.bilateral_filter(torch.from_numpy(volume)[None], (1.0, 2.0, 2.0), 0.3, spatial_axes=3)[0]
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "out.zarr"))[...], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in.zarr", "out.zarr"), "there is no in.zarr"),
        (("in.zarr", "out.tif"), "ends with .zarr"),
        (("in.zarr", "more.zarr", "out.zarr"), "one by one"),
        (("in.zarr", "out.zarr", "--halo", "1"), "are for pictures"),
        (("in.png", "out.png", "--workers", "2"), "are for arrays"),
        (("in.png", "out.png", "--sigma-space", "1,2"), "are for arrays"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], message: str) -> None:
    result = invoke("filter", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
