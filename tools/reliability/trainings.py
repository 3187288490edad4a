"""Trainings in processes of their own, to be killed and to go on: the experiments of the paper on small made data.

As a script, `python tools/reliability/trainings.py mnist FOLDER`, it is what `torchrun` starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Experiment = Literal["mnist", "denoising"]

STEPS = 40


def made_images(split: str, folder: Path | None = None, limit: int | None = None) -> list[Any]:
    """Pictures of a few flat regions, 40 x 44 pixels."""
    from permutohedral.data.bsds500 import GrayImage

    random = np.random.default_rng(("train", "val", "test").index(split))
    images = []
    for number in range(limit or 6):
        centers = random.random((6, 2)) * (40, 44)
        grid = np.stack(np.meshgrid(np.arange(40), np.arange(44), indexing="ij"), axis=-1)
        nearest = ((grid[:, :, None] - centers) ** 2).sum(axis=-1).argmin(axis=-1)
        images.append(GrayImage(f"{split}/{number}", torch.from_numpy(random.random(6)[nearest]).float()))
    return images


def made_digits(split: str, folder: Path | None = None) -> tuple[Tensor, Tensor]:
    """Images whose brightest row tells their class."""
    generator = torch.Generator().manual_seed(len(split))
    labels = torch.randint(10, (64,), generator=generator)
    images = torch.randint(60, (64, 28, 28), generator=generator, dtype=torch.uint8)
    images[torch.arange(64), 2 * labels + 3] = 255
    return images, labels


def train(
    experiment: Experiment, output: Path, resume: bool = False, environment: dict[str, str] | None = None
) -> None:
    """Train and evaluate one row, and write its result, as the command `reproduce` does.

    Args:
        experiment: which one.
        output: the folder for everything; `losses-<rank>` in it gets a line for every step.
        resume: see `RunOptions`.
        environment: variables, among them `KILL`, such as "before 3": die at the third replacement of a file.
    """
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    from permutohedral.experiments.denoising import run as denoising
    from permutohedral.experiments.experiment import load_experiment
    from permutohedral.experiments.mnist import run as mnist
    from permutohedral.experiments.rows import run_rows
    from permutohedral.experiments.training import RunOptions, TrainingSettings

    _die_at_replacement(os.environ.get("KILL", ""))
    options = RunOptions(output, accelerator="cpu", resume=resume, progress=False)
    settings = TrainingSettings(steps=STEPS, batch_size=4, optimizer="adam", learning_rate=2e-3, weight_decay=0.0)
    if experiment == "mnist":
        mnist._load_once = made_digits  # type: ignore[assignment]
        _record_losses(mnist.DigitsTask, output)
        small = {
            "channels": [3, 4],
            "hidden": 8,
            "neighborhood_size": 1,
            "dropout": float(os.environ.get("DROPOUT", "0.2")),
        }
        row = mnist.MnistConfig("row", "Row", "pcnn", settings, options=small, samples="random", share=0.2)
        list(run_rows(load_experiment("mnist"), [row], options, _quietly))
        return
    setattr(denoising, "load_images", made_images)  # noqa: B010
    _record_losses(denoising.QuadraticTask, output)
    images = denoising.DenoisingConfig("row", "Row", "combined", training=settings, train_images=6, test_images=2)
    list(run_rows(load_experiment("denoising"), [images], options, _quietly))


def _quietly(line: str) -> None:
    pass


def _record_losses(task: Any, output: Path) -> None:
    step = task.training_step

    def recorded(self: Any, batch: Any) -> Tensor:
        loss: Tensor = step(self, batch)
        output.mkdir(parents=True, exist_ok=True)
        with open(output / f"losses-{os.environ.get('RANK', '0')}", "a") as file:
            file.write(f"{self.global_step} {float(loss)!r}\n")
        if os.environ.get("DIE_AT") == f"{os.environ.get('RANK')} {self.global_step}":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    task.training_step = recorded


def _die_at_replacement(when: str) -> None:
    """Make the n-th call of `os.replace` the last thing this process does, or nearly does."""
    if not when:
        return
    side, number = when.split()
    replace, seen = os.replace, 0

    def dying(*arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == int(number) and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*arguments)
        if seen == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, "replace", dying)  # noqa: B010


def train_and_explain(experiment: Experiment, output: Path, *arguments: Any) -> None:
    """`train`, leaving the message of an error in `error-<rank>`."""
    try:
        train(experiment, output, *arguments)
    except Exception as error:
        (output / f"error-{os.environ.get('RANK', '0')}").write_text(f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error


def start(*arguments: Any, target: Callable[..., None] = train) -> BaseProcess:
    """`train` in a process that has loaded all it needs, and has no threads yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "pytorch_lightning", "permutohedral.experiments.denoising.report"])
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def prepare() -> None:
    """Wait until processes start at once."""
    start("", target=_quietly).join()


def together(experiment: Experiment, output: Path, resume: bool = False, **variables: str) -> list[BaseProcess]:
    """Two processes that train together, with the variables that `torchrun` sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"} | variables
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
    return [start(experiment, output, resume, common | rank, target=train_and_explain) for rank in ranks]


def finish(*arguments: Any) -> None:
    """Run `train` to its end."""
    process = start(*arguments)
    process.join(timeout=300)
    assert process.exitcode == 0, f"the training ended with {process.exitcode}"


def what_is_left(experiment: Experiment, output: Path) -> tuple[Any, dict[str, bytes]]:
    """The metrics of a finished row, and its weights to the bit."""
    from permutohedral.experiments.result import read_result, read_weights

    inner = output / "runs" / "row-0.json" if experiment == "mnist" else output / "row.json"
    weights = output / "weights" / "row-0.safetensors" if experiment == "mnist" else output / "row.safetensors"
    tensors = {name: tensor.numpy().tobytes() for name, tensor in read_weights(weights).items()}
    return read_result(inner).metrics, tensors


def losses(output: Path, rank: int = 0) -> list[float]:
    """The loss of every step, of one process; a step that was taken again counts once, and must be the same."""
    found: dict[int, float] = {}
    for line in (output / f"losses-{rank}").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), float(loss)) == float(loss), f"step {step} had another loss when taken again"
    return [found[step] for step in sorted(found)]


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), "--resume" in sys.argv)  # type: ignore[arg-type]
