"""Killed at any moment and resumed, a training ends as if nothing had happened: the same losses, weights and scores."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from datasets import data_folder
from reliability import killed_commands
from reliability.trainings import STEPS, Experiment, finish, losses, prepare, start, what_is_left
from typer.testing import CliRunner

from permutohedral.cli.application import application
from permutohedral.experiments.checkpoints import read_checkpoint

KILLS = 6


@pytest.fixture(scope="module", params=["denoising", "mnist"])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    chosen: Experiment = request.param
    return chosen


@pytest.fixture(scope="module")
def straight(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An uninterrupted training, and the seconds it took."""
    folder = tmp_path_factory.mktemp("straight")
    prepare()
    started = time.monotonic()
    finish(experiment, folder)
    return folder, time.monotonic() - started


def assert_as_if_uninterrupted(experiment: Experiment, folder: Path, straight: Path) -> None:
    assert what_is_left(experiment, folder) == what_is_left(experiment, straight)
    assert len(losses(folder)) == STEPS
    assert losses(folder) == losses(straight)
    assert not list(folder.rglob("*.partial*"))


def test_killed_at_random_moments(experiment: Experiment, straight: tuple[Path, float], tmp_path: Path) -> None:
    moments = random.Random(experiment)
    for _ in range(KILLS):
        process = start(experiment, tmp_path, True)
        process.join(timeout=moments.uniform(0, straight[1]))
        process.kill()
        process.join()
        for checkpoint in tmp_path.rglob("*.ckpt"):
            read_checkpoint(checkpoint)
    finish(experiment, tmp_path, True)
    assert_as_if_uninterrupted(experiment, tmp_path, straight[0])


@pytest.mark.parametrize(
    "moment", ["before 1", "after 3", "before 20", "after 20", "before 21", "before 22", "after 22"]
)
def test_killed_while_a_file_is_replaced(
    moment: str, experiment: Experiment, straight: tuple[Path, float], tmp_path: Path
) -> None:
    """The first twenty are checkpoints, then come the weights and the result."""
    process = start(experiment, tmp_path, True, {"KILL": moment})
    process.join(timeout=120)
    assert process.exitcode == -9
    finish(experiment, tmp_path, True)
    assert_as_if_uninterrupted(experiment, tmp_path, straight[0])


def test_the_command_itself(tmp_path: Path) -> None:
    """Killed as soon as there is a checkpoint, and typed again."""
    arguments = ["denoising", "--row", "cnn", "--data", str(data_folder("bsds500"))]
    # on a busy machine the command may have come to its end before it is killed
    for attempt in range(5):
        killed = tmp_path / str(attempt)
        process = killed_commands.start(arguments, killed)
        while process.poll() is None and not list(killed.rglob("*.ckpt")):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        if process.returncode == -9:
            break
    assert process.returncode == -9
    for output in (killed, tmp_path / "straight"):
        # in this process, which has loaded everything; only what is killed needs one of its own
        typed = CliRunner().invoke(application, killed_commands.as_typed(arguments, output))
        assert typed.exit_code == 0, typed.output
    left = killed_commands.left_behind(killed)
    assert left["cnn.safetensors"]
    assert left == killed_commands.left_behind(tmp_path / "straight")
