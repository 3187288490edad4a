"""Two processes that train together see the losses that one sees; when one dies, the other says so and can go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reliability.trainings import STEPS, Experiment, finish, losses, together, what_is_left
from support import TOLERANCE

# each process adds up half of a batch, and the halves are added afterwards
LOSS_TOLERANCE = TOLERANCE[torch.float32]


def assert_same_curve(both: Path, alone: Path) -> None:
    mean = [(first + second) / 2 for first, second in zip(losses(both, 0), losses(both, 1), strict=True)]
    expected = losses(alone)
    assert len(mean) == len(expected) == STEPS
    largest = max(abs(loss) for loss in expected)
    assert max(abs(a - b) for a, b in zip(mean, expected, strict=True)) <= LOSS_TOLERANCE * largest


@pytest.fixture(scope="module", params=["denoising", "mnist"])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    chosen: Experiment = request.param
    return chosen


@pytest.fixture(scope="module")
def alone(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, with the batches that two share. Without dropout, which each process draws for its part alone."""
    folder = tmp_path_factory.mktemp("alone")
    finish(experiment, folder, False, {"DROPOUT": "0"})
    return folder


def test_two_processes_equal_one(experiment: Experiment, alone: Path, tmp_path: Path) -> None:
    for process in together(experiment, tmp_path, DROPOUT="0"):
        process.join(timeout=120)
        assert process.exitcode == 0
    assert_same_curve(tmp_path, alone)
    assert set(what_is_left(experiment, tmp_path)[1]) == set(what_is_left(experiment, alone)[1])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies(rank: int, experiment: Experiment, alone: Path, tmp_path: Path) -> None:
    processes = together(experiment, tmp_path, DROPOUT="0", DIE_AT=f"{rank} 25")
    for process in processes:
        process.join(timeout=120)
    assert processes[rank].exitcode == -9
    assert processes[1 - rank].exitcode == 1
    message = (tmp_path / f"error-{1 - rank}").read_text()
    assert message.startswith("TrainingError: a process of this training ended")
    assert "--resume goes on from there" in message
    for process in together(experiment, tmp_path, True, DROPOUT="0"):
        process.join(timeout=120)
        assert process.exitcode == 0
    assert_same_curve(tmp_path, alone)
