"""The training loop: schedules, optimizers, checkpoints."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest
import torch
from support import DEVICE
from torch import Tensor, nn

from experiments.training import RunOptions, StepBatches, TrainingSettings, checkpoint_folder, fit, read_checkpoint
from permutohedral.errors import InputError, StorageError


def options(folder: Path, resume: bool = False) -> RunOptions:
    return RunOptions(folder, device_name="cuda" if DEVICE.type == "cuda" else "cpu", resume=resume)


def train(
    folder: Path, settings: TrainingSettings, resume: bool = False, wait: float = 0.0, last: int = 10**9
) -> tuple[nn.Linear, float]:
    """Fit a line with dropout, which draws random numbers; return it and the seconds.

    The first step takes `wait` seconds more, and the training is killed after the step `last`.
    """
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(DEVICE)

    def loss(step: int) -> Tensor:
        time.sleep(wait * (step == 0))
        if step > last:
            raise KeyboardInterrupt
        inputs = torch.rand(8, 3, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        seen = nn.functional.dropout(inputs, 0.2)
        error: Tensor = (model(seen) - inputs.sum(dim=1, keepdim=True)).square().mean()
        return error

    seconds = fit(model, loss, settings, options(folder, resume), folder / "checkpoints")
    return model, seconds


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_learns_and_extends(optimizer: str, tmp_path: Path) -> None:
    """A longer training continues from the checkpoint of a shorter one with a constant schedule."""
    short = TrainingSettings(200, 8, optimizer, 0.05, weight_decay=0.0, gradient_clip=1.0)  # type: ignore[arg-type]
    longer = TrainingSettings(300, 8, optimizer, 0.05, weight_decay=0.0, gradient_clip=1.0)  # type: ignore[arg-type]
    model, _ = train(tmp_path / "one", longer)
    # dropout pulls the weights below 1
    assert 0.3 < float(model.weight.min()) <= float(model.weight.max()) < 1.2
    train(tmp_path / "two", short)
    resumed, _ = train(tmp_path / "two", longer, resume=True)
    assert torch.equal(resumed.weight, model.weight)


def test_seconds_of_a_resumed_training_include_those_before(tmp_path: Path) -> None:
    settings = TrainingSettings(20, 8)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, settings, wait=0.2, last=10)
    # the second one has no step left
    for _ in range(2):
        _, seconds = train(tmp_path, settings, resume=True)
        assert seconds > 0.2


def test_the_learning_rate_follows_the_schedule() -> None:
    cosine = TrainingSettings(100, 1, schedule="cosine", warmup=9)
    assert [cosine.factor(step) for step in (0, 100)] == [0.1, 0.0]
    assert TrainingSettings(100, 1, schedule="inverse").factor(10_000) == pytest.approx(2**-0.75)
    assert TrainingSettings(100, 1).factor(99) == 1


def test_every_pass_shows_all_items_in_another_order() -> None:
    batches = StepBatches(10, batch_size=5, seed=0)
    first, second = batches(0) + batches(1), batches(2) + batches(3)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert len(StepBatches(3, batch_size=5, seed=0)(7)) == 3


def test_checkpoints_belong_to_a_configuration_of_any_length(tmp_path: Path) -> None:
    from experiments.registry import load_experiment

    experiment = load_experiment("mnist")
    [whole] = experiment.choose_rows(["lenet_20"])
    [short, other] = experiment.choose_rows(["lenet_20", "pcnn_none_20"], smoke=True)
    folders = {checkpoint_folder(config, options(tmp_path)) for config in (whole, short, other)}
    assert len(folders) == 3


class Harmful:
    """An object that runs a command when a pickle is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("harmed",))


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "harmful", "missing"])
def test_rejects_damaged_checkpoints(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(tmp_path, TrainingSettings(2, 8))
    path = tmp_path / "checkpoints" / "last.ckpt"
    content = path.read_bytes()
    assert read_checkpoint(path)["step"] == 2
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "other": pickle.dumps({"step": [1]})}
    if damage == "missing":
        path.unlink()
    elif damage == "harmful":
        torch.save({"step": Harmful()}, path)
    else:
        path.write_bytes(damaged[damage])
    with pytest.raises(StorageError, match="delete it to train again"):
        read_checkpoint(path)
    assert not (tmp_path / "harmed").exists()


def test_rejects_devices_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        RunOptions(tmp_path, device_name="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU"):
            _ = RunOptions(tmp_path, device_name="cuda").device
