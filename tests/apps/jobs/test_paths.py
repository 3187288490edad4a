"""Paths at the border of all jobs: no output is an input or another output, and odd names are errors of one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import assert_one_line_error, invoke
from PIL import Image

import permutohedral as ph
from permutohedral.apps.io.atomic import replacing, write_bytes
from permutohedral.errors import InputError, StorageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with photos and labels of two names, which is the current one."""
    random = np.random.default_rng(0)
    for place in ("photos", "labels"):
        (tmp_path / place).mkdir()
        for name in ("a.png", "b.png"):
            pixels = random.integers(0, 255, (8, 9, 3), np.uint8)
            if place == "labels":
                pixels = np.repeat(np.where(np.arange(9) < 4, 90, 255).astype(np.uint8)[None], 8, 0)
            Image.fromarray(pixels).save(tmp_path / place / name)
    (tmp_path / "link.png").symlink_to("labels/a.png")
    os.link(tmp_path / "labels" / "a.png", tmp_path / "hard.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


A = "photos/a.png"


@pytest.mark.parametrize("command", [
    f"filter {A} {A}", f"filter {A} photos", f"filter {A} labels/a.png --guide hard.png", f"denoise {A} ./{A}",
    "filter photos photos/../photos", "filter photos labels --guide labels",
    f"filter {A} link.png --guide labels/a.png",
    f"segment {A} labels/a.png out.png --overlay labels/a.png", f"segment {A} labels/a.png labels/a.png",
    f"segment {A} labels/a.png out.png --overlay link.png", f"segment {A} link.png labels/a.png",
    f"segment {A} labels/a.png out.png --overlay {A}", "segment photos labels out --overlay labels",
    "segment photos labels out --overlay photos", "segment photos labels labels",
    f"upsample labels/a.png {A} {A}", "upsample labels photos photos", f"solve {A} {A} {A}",
    f"solve {A} photos/b.png out.png --sample-weight out.png", f"colorize {A} labels/a.png link.png",
])  # fmt: skip
def test_no_output_is_an_input(command: str, folder: Path) -> None:
    (folder / "out.png").write_bytes((folder / A).read_bytes())
    before = {path: path.read_bytes() for path in folder.rglob("*.png")}
    assert_one_line_error(invoke(*command.split()), "would overwrite")
    assert {path: path.read_bytes() for path in folder.rglob("*.png")} == before


@pytest.mark.parametrize("command", [
    f"segment {A} labels/a.png out.png --overlay out.png", f"segment {A} labels/a.png out.png --overlay ./out.png",
    "segment photos labels out --overlay out", f"filter {A} labels/a.png out",
    f"segment {A} labels/a.png - --overlay -",
])  # fmt: skip
def test_no_output_is_another_output(command: str, folder: Path) -> None:
    assert_one_line_error(invoke(*command.split()), "two results would both be")
    assert not list(folder.glob("out*/*"))
    assert not (folder / "out.png").exists()


def test_letter_case_names_the_same_file_on_some_systems(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of new files are compared without case where file systems usually ignore it."""
    command = f"segment {A} labels/a.png out.png --overlay OUT.png".split()
    assert invoke(*command).exit_code == 0
    for name in ("out.png", "OUT.png"):
        (folder / name).unlink()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert_one_line_error(invoke(*command), "two results would both be out.png, also named OUT.png")


def test_jobs_on_clouds_and_arrays_check_their_outputs(folder: Path) -> None:
    pytest.importorskip("dask.array", reason="Dask is not installed")
    np.savez("cloud.npz", positions=np.zeros((3, 3)))
    os.link("cloud.npz", "other.npz")
    for output, image in (("other.npz", None), ("out.npz", "out.npz"), ("out.npz", "cloud.npz")):
        with pytest.raises(InputError, match=r"would overwrite cloud.npz|two results would both be out.npz"):
            ph.apps.segment_cloud("cloud.npz", output, image=image)
    for output in ("photos/../in.zarr", "in.zarr/out.zarr"):
        (folder / "in.zarr").mkdir(exist_ok=True)
        (folder / "in.zarr" / "zarr.json").touch()
        with pytest.raises(InputError, match=r"would overwrite in.zarr|contains the input, or lies in it"):
            ph.apps.filter_array("in.zarr", output)


@pytest.mark.parametrize("arguments", [("filter", A, ""), ("filter", A, "out.png", "--guide", ""),
    ("filter", A, "out.png", "--guide="), ("filter", "", "out.png")])  # fmt: skip
def test_empty_arguments_are_usage_errors(arguments: Any, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "An argument is empty" in result.stderr
    assert sorted(folder.rglob("*")) == before


def test_empty_paths_are_errors(folder: Path) -> None:
    for arguments, options in ((("", "out.png"), {}), ((A, ""), {}), ((A, "out.png"), {"guide": ""})):
        with pytest.raises(InputError, match="is an empty path"):
            ph.apps.filter_image(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a" * 300 + ".png", "photos/" + "b" * 256, "null\0character.png", "loop.png"])
def test_impossible_names_are_errors(name: str, folder: Path) -> None:
    (folder / "loop.png").symlink_to("loop.png")
    for arguments in ((name, "out.png"), (A, name)):
        with pytest.raises(InputError, match="which no file can be"):
            ph.apps.filter_image(*arguments)
    assert not (folder / "out.png").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_errors(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    for command in ("filter pipe.png out.png", f"filter {A} out.png --guide pipe.png", f"filter {A} pipe.png"):
        assert_one_line_error(invoke(*command.split()), "is a pipe or a device; pass a file, or - for an image")


def test_messages_have_no_control_characters(folder: Path) -> None:
    name = "e\033]0;title\007.png"
    assert_one_line_error(invoke("filter", name, "out.png"), r"e\x1b]0;title\x07.png")
    # a pattern of the shell found one file
    assert r"OUTPUT is missing after e\x1b]0;title\x07.png" in invoke("filter", name).stderr


def test_writing_removes_what_killed_processes_left(tmp_path: Path) -> None:
    old, new = tmp_path / ".permutohedral-old", tmp_path / ".permutohedral-new"
    for left in (old, new):
        left.mkdir()
        (left / "out.png").write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    write_bytes(tmp_path / "out.png", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "out.png"]


# holds a file open for writing until it is terminated
HOLD = """
import sys, time
import permutohedral.__main__ as command
from pathlib import Path
from permutohedral.apps.io.atomic import replacing

def hold():
    with replacing(Path(sys.argv[1])) as partial:
        partial.write_bytes(b"half")
        print("ready", flush=True)
        time.sleep(60)

command._run = hold
command.main()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a signal")
def test_termination_leaves_no_unfinished_file(tmp_path: Path) -> None:
    """The command is replaced by one that waits while it writes, since the moment of a real one is not known."""
    (tmp_path / "out.png").write_bytes(b"before")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out.png")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(timeout=30) == 143
    finally:
        process.kill()
        process.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]
    assert (tmp_path / "out.png").read_bytes() == b"before"


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="shells of Windows close no streams")
@pytest.mark.parametrize("arguments", ["--version", f"image filter {A} out.png", f"image filter {A} out.png --json"])
def test_closed_streams_are_no_errors(arguments: str, folder: Path) -> None:
    command = f"exec {sys.executable} -m permutohedral {arguments} <&- >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "out.png").exists() == (arguments != "--version")


def test_write_protected_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    path.write_bytes(b"before")
    path.chmod(0o444)
    with pytest.raises(StorageError, match=r"Permission denied|write-protected"):
        write_bytes(path, b"after")
    assert path.read_bytes() == b"before"


@pytest.mark.skipif(not hasattr(os, "chown") or os.geteuid() != 0, reason="only root gives files away")
def test_overwritten_files_keep_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    path.write_bytes(b"before")
    path.chmod(0o640)
    os.chown(path, 1234, 2345)
    with replacing(path) as partial:
        partial.write_bytes(b"after")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1234, 2345, 0o640)


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes here")
def test_overwritten_files_keep_their_attributes(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    path.write_bytes(b"before")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError as error:
        pytest.skip(f"this disk has no extended attributes: {error}")
    write_bytes(path, b"after")
    assert os.getxattr(path, "user.note") == b"kept"
