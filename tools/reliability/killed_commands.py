"""`permutohedral reproduce ... --smoke` as a user types it, killed and typed again with `--resume`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def as_typed(arguments: list[str], output: Path) -> list[str]:
    """What follows `permutohedral` on the command line."""
    return ["reproduce", *arguments, "--smoke", "--resume", "--accelerator", "cpu", "--output", str(output)]


def start(arguments: list[str], output: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "permutohedral", *as_typed(arguments, output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(arguments: list[str], output: Path) -> None:
    """The command to its end."""
    process = start(arguments, output)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()


def left_behind(output: Path) -> dict[str, Any]:
    """What a run leaves, by file: of results all but times and machine, of weights every bit."""
    found: dict[str, Any] = {}
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        if path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.suffix == ".json":
            found[name] = _without_times(json.loads(path.read_text()))
        elif path.is_file():
            found[name] = None
    return found


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        passing = ("seconds", "environment", "training_seconds", "command")
        return {name: _without_times(part) for name, part in content.items() if name not in passing}
    return [_without_times(part) for part in content] if isinstance(content, list) else content


def kill_often(arguments: list[str], kills: int, folder: Path) -> dict[str, int]:
    """Runs of a command, each killed up to three times; how many left something else than an uninterrupted one."""
    finish(arguments, folder / "warm")
    started = time.monotonic()
    finish(arguments, folder / "straight")
    duration = time.monotonic() - started
    expected = left_behind(folder / "straight")
    assert expected == left_behind(folder / "warm"), "two uninterrupted runs differ"
    moments = random.Random(0)
    done = runs = different = 0
    while done < kills:
        output = folder / f"killed-{runs}"
        for _ in range(3):
            process = start(arguments, output)
            try:
                process.communicate(timeout=moments.uniform(0, duration))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                done += 1
        finish(arguments, output)
        different += left_behind(output) != expected
        runs += 1
    return {"kills": done, "runs": runs, "different": different}
