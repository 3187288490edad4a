"""SIGKILL in the middle of a command: each output is the previous or the new one, and `--resume` completes the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("dask.array", reason="Dask is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")
pytest.importorskip("laspy", reason="laspy is not installed")

import laspy
import zarr

from permutohedral.apps import PointSegmenter

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system kills processes in another way"),
]

# Each line of stdin asks for a command; the answer is its exit code. Moment 0 runs it in this process, so that all it
# needs is imported. Other moments run it in a child, which kills itself before this change of a file.
SERVER = """
import json, os, signal, sys

import permutohedral.__main__ as program

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "os.chmod", "os.chown"}

def run(folder, moment, arguments):
    def count(event, details):
        nonlocal moment
        writes = event == "open" and str(details[0]).startswith(folder) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in CHANGES:
            moment -= 1
            if moment == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    os.chdir(folder)
    if moment:
        sys.addaudithook(count)
    sys.argv = ["permutohedral", *arguments]
    try:
        program.main()
    except SystemExit as error:
        return error.code or 0

for line in sys.stdin:
    request = json.loads(line)
    if request[1] == 0:
        code = run(*request)
    else:
        child = os.fork()
        if child == 0:
            os._exit(run(*request))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
"""

# a moment after the end of every command
NEVER = 1_000_000


class Commands:
    """A process that runs commands, to their end or to a moment."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, folder: Path, arguments: str, moment: int = 0) -> int:
        """Return the exit code of a command, which is killed before its change number `moment`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(folder), moment, arguments.split()]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    found = Commands()
    yield found
    found.process.kill()
    found.process.communicate()


def write_inputs(folder: Path) -> None:
    random = np.random.default_rng(0)
    for place in (folder, folder / "photos", folder / "maps"):
        place.mkdir(exist_ok=True)
    for name in ("photo.png", "photos/a.png", "photos/b.png"):
        Image.fromarray(random.integers(0, 255, (12, 14, 3), np.uint8)).save(folder / name)
    labels = np.repeat(np.where(np.arange(14) < 6, 90, 255).astype(np.uint8)[None], 12, 0)
    for name in ("labels.png", "maps/a.png", "maps/b.png"):
        Image.fromarray(labels).save(folder / name)
    Image.fromarray(labels[::3, ::3]).save(folder / "coarse.png")
    colors = np.zeros((12, 14, 4), np.uint8)
    colors[2:4, 2:9] = (250, 30, 20, 255)
    Image.fromarray(colors).save(folder / "strokes.png")
    Image.fromarray(labels).convert("L").save(folder / "gray.png")
    scan = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    scan.header.scales = np.full(3, 0.001)
    scan.x, scan.y, scan.z = random.random((3, 60)) * 8
    scan.write(folder / "scan.las")
    PointSegmenter(0, 2, channels=(4,)).save(folder / "model.safetensors")
    zarr.create_array(str(folder / "in.zarr"), data=random.random((8, 8), np.float32), chunks=(4, 8))


def content(path: Path) -> Any:
    """Return what a reader gets; None if there is nothing."""
    if path.suffix == ".zarr":
        return np.asarray(zarr.open_array(str(path), mode="r")[...]).tolist() if path.exists() else None
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("command", [
    "image filter photo.png out.png", "image denoise photo.png out.png --sigma 25",
    "image segment photo.png labels.png out.png --overlay over.png",
    "map upsample coarse.png photo.png out.png", "map solve labels.png photo.png out.png",
    "image colorize gray.png strokes.png out.png", "cloud segment scan.las out.las --model model.safetensors",
])  # fmt: skip
def test_outputs_are_old_or_new(commands: Commands, command: str, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    outputs = [tmp_path / name for name in command.split() if name.startswith(("out", "over"))]
    inputs = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert commands.run(tmp_path, command) == 0
    new = [content(path) for path in outputs]
    moment, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        moment += 1
        for path in outputs:
            path.write_bytes(b"old")
        code = commands.run(tmp_path, command, moment)
        found = [content(path) for path in outputs]
        assert all(each in (b"old", right) for each, right in zip(found, new, strict=True)), moment
    assert (code, found) == (0, new)
    assert moment > 4
    assert {path: path.read_bytes() for path in inputs} == inputs


@pytest.mark.parametrize(("command", "before", "step"), [
    ("array filter in.zarr out.zarr --axes YX --sigma-space 1", "--sigma-color 9", 3),
    ("cloud smooth scan.las out.las", "--sigma-space 3", 2),
    # existing results of other settings are errors with --resume
    ("image segment photos maps out --overlay over", None, 2),
])  # fmt: skip
def test_resuming_completes(commands: Commands, command: str, before: str | None, step: int, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    places = [tmp_path / name for name in command.split() if name.startswith(("out", "over"))]
    assert commands.run(tmp_path, command) == 0
    names = [path for place in places for path in (sorted(place.iterdir()) if before is None else [place])]
    new, old = [content(path) for path in names], [None] * len(names)
    earlier = tmp_path / "earlier"
    if before is not None:
        assert commands.run(tmp_path, f"{command} {before}") == 0
        old = [content(path) for path in names]
        assert old != new
        places[0].rename(earlier)

    def reset() -> None:
        for path in (*tmp_path.glob("out*"), *tmp_path.glob("over*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if earlier.is_dir():
            shutil.copytree(earlier, places[0])
        elif earlier.exists():
            shutil.copy(earlier, places[0])

    moment, code, missing, resumed = 1, -signal.SIGKILL, 0, 0
    while code == -signal.SIGKILL:
        reset()
        code = commands.run(tmp_path, command, moment)
        found = [content(path) for path in names]
        if found == [None] and before is not None:
            missing += 1
        else:
            assert all(each in both for each, *both in zip(found, old, new, strict=True)), moment
        if commands.run(tmp_path, f"{command} --resume", NEVER) == 0:
            resumed += 1
        else:
            # killed before the unfinished output recorded its settings: resuming would keep a result of other settings
            assert found == old, moment
            assert commands.run(tmp_path, command, NEVER) == 0, moment
        assert [content(path) for path in names] == new, moment
        assert [path.name for path in tmp_path.glob("out*")] == [places[0].name], moment
        moment += step
    assert code == 0
    # a folder has no name between two renamings
    assert missing <= 1
    assert resumed > 3
