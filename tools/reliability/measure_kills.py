"""Kills trainings with SIGKILL at random moments until they have come to their end, and compares with straight ones.

`python tools/reliability/measure_kills.py [kills]` kills the functions behind `reproduce`, on small made data, and
writes `results/reliability/kills.json`. `python tools/reliability/measure_kills.py commands [kills]` kills the command
itself, with `--smoke` on the datasets (`PERMUTOHEDRAL_DATA`, else downloaded), and writes `killed-commands.json` there.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]

from reliability import killed_commands  # noqa: E402
from reliability.trainings import Experiment, finish, losses, prepare, start, what_is_left  # noqa: E402


def kill_often(experiment: Experiment, kills: int, folder: Path) -> dict[str, object]:
    """Trainings one after another, each killed a few times; how many ended differently from a straight one."""
    finish(experiment, folder / "warm")
    started = time.monotonic()
    finish(experiment, folder / "straight")
    duration = time.monotonic() - started
    expected = what_is_left(experiment, folder / "straight"), losses(folder / "straight")
    moments = random.Random(0)
    done = trainings = different = 0
    while done < kills:
        output = folder / f"killed-{trainings}"
        for _ in range(3):
            process = start(experiment, output, True)
            process.join(timeout=moments.uniform(0, duration))
            if process.exitcode is None:
                process.kill()
                done += 1
            process.join()
        finish(experiment, output, True)
        different += (what_is_left(experiment, output), losses(output)) != expected
        trainings += 1
    return {"kills": done, "trainings": trainings, "different": different}


def main(kills: int) -> None:
    """Both experiments."""
    prepare()
    results: dict[str, object] = {"command": f"python tools/reliability/measure_kills.py {kills}"}
    experiments: tuple[Experiment, ...] = ("denoising", "mnist")
    for experiment in experiments:
        with tempfile.TemporaryDirectory() as folder:
            results[experiment] = kill_often(experiment, kills, Path(folder))
        print(experiment, results[experiment], flush=True)
    write("kills", results)


def main_of_commands(kills: int) -> None:
    """`permutohedral reproduce denoising --smoke`, and `mnist`."""
    results: dict[str, object] = {"command": f"python tools/reliability/measure_kills.py commands {kills}"}
    for experiment in ("denoising", "mnist"):
        with tempfile.TemporaryDirectory() as folder:
            results[experiment] = killed_commands.kill_often([experiment], kills, Path(folder))
        print(experiment, results[experiment], flush=True)
    write("killed-commands", results)


def write(name: str, results: dict[str, object]) -> None:
    """Write a result under results/reliability."""
    path = ROOT / "results" / "reliability" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    of_commands = sys.argv[1:2] == ["commands"]
    numbers = [int(argument) for argument in sys.argv[1 + of_commands :]]
    if of_commands:
        main_of_commands(*(numbers or [20]))
    else:
        main(*(numbers or [100]))
