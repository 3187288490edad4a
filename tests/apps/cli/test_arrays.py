"""`permutohedral array filter`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.apps.cli.application import application

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
    assert (report["shape"], report["axes"], report["num_tiles"]) == ([6, 7, 8], "ZYX", 1)
    expected = ph.bilateral_filter(
        torch.from_numpy(volume)[None], sigma_space=(1.0, 2.0, 2.0), sigma_color=0.3, spatial_dims=3
    )[0]
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "out.zarr"))[...], expected)


def test_prints_a_note_on_large_bandwidths_of_integers(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "in.zarr"), data=np.zeros((9, 9), np.uint16))
    result = invoke("array", "filter", tmp_path / "in.zarr", tmp_path / "out.zarr", "--sigma-color", 6553)
    assert result.exit_code == 0, result.output
    assert "note: sigma_color is 6553, but white is 1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("in.zarr", "out.zarr"), 1, "error: there is no file or folder in.zarr"),
        (("in.zarr", "out.zarr", "--sigma-space", "1,x"), 2, "numbers with commas between"),
        (("in.zarr", "out.zarr", "--sigma-space", "1,-2"), 2, "must be positive"),
        (("in.zarr", "out.zarr", "--sigma-color", "0"), 2, "must be positive"),
    ],
)
def test_reports_mistakes(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = invoke("array", "filter", *arguments)
    assert result.exit_code == code
    assert message in result.stderr


DISK_FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))"
TERMINATED = """
import os, signal, sys

writes = 0

def terminate(event, details):
    global writes
    writes += event == "os.rename" and "unfinished/c/" in str(details[1])
    if writes == 20:
        writes += 1
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(terminate)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits and signals")
@pytest.mark.parametrize(("event", "code", "message"), [
    (DISK_FULL, 1, "error: cannot write "), ("", 1, "error: cannot read the array "), (TERMINATED, 143, ""),
])  # fmt: skip
def test_one_message_for_many_chunks(event: str, code: int, message: str, tmp_path: Path) -> None:
    """Chunks are read and written together, and the event loop of zarr reports each that has no end."""
    image = np.random.default_rng(0).random((400, 400))
    zarr.create_array(str(tmp_path / "in.zarr"), data=image, chunks=(16, 16))
    if not event:
        (tmp_path / "in.zarr" / "c" / "0" / "0").write_bytes(b"damaged")
    program = f"{event}\nfrom permutohedral.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, "array", "filter", "in.zarr", "out.zarr", "--axes", "YX"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)
