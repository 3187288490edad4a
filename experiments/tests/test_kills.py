"""A killed command, typed again with `--resume`, leaves the results of an uninterrupted one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.training import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROWS = {"denoising": "cnn", "mnist": "pcnn_coverage_20"}


def start(name: str, output: Path) -> subprocess.Popen[bytes]:
    options = ["--row", ROWS[name], "--smoke", "--resume", "--device", "cpu", "--output", str(output)]
    command = [sys.executable, "-m", "experiments", name, *options]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(name: str, output: Path) -> None:
    process = start(name, output)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error.decode()


def finished_files(output: Path) -> list[Path]:
    """Return all files but those that a process was writing when it was killed."""
    return sorted(path for path in output.rglob("*") if path.is_file() and ".permutohedral-" not in path.as_posix())


def left_behind(output: Path) -> dict[str, Any]:
    """Return the values, the weights to the bit, and the names of other files."""
    found: dict[str, Any] = {}
    for path in finished_files(output):
        name = path.relative_to(output).as_posix()
        found[name] = path.read_bytes() if path.suffix == ".safetensors" else None
        if path.suffix == ".csv":
            found[name] = [line.split(",")[:5] for line in path.read_text().splitlines()]
    return found


@pytest.mark.parametrize("name", ROWS)
def test_a_killed_command_resumes(name: str, tmp_path: Path) -> None:
    finish(name, tmp_path / "straight")
    moments, killed, kills = random.Random(name), tmp_path / "killed", 0
    for _ in range(6):
        process = start(name, killed)
        while process.poll() is None and not list(killed.rglob("*.ckpt")):
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.communicate()
        kills += process.returncode == -9
        for checkpoint in finished_files(killed):
            if checkpoint.suffix == ".ckpt":
                read_checkpoint(checkpoint)
        if kills == 2:
            break
    assert kills
    finish(name, killed)
    assert left_behind(killed) == left_behind(tmp_path / "straight")
