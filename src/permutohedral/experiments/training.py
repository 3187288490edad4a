"""Training through pytorch-lightning: settings, optimizers, checkpoints, resuming, devices. Shared by experiments."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytorch_lightning as lightning
import rich.console
import rich.progress
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from torch import Tensor, nn
from torch.utils.data import DataLoader

from permutohedral.errors import InputError

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Attributes:
        steps: updates of the weights.
        batch_size: items per step and device.
        optimizer: "sgd" (with momentum) or "adam" (decoupled weight decay).
        learning_rate: at the start.
        momentum: of sgd.
        weight_decay: pulls the weights to zero.
        schedule: "constant"; "cosine", down to zero; "inverse", (1 + 1e-4 step)^-0.75, Caffe's for LeNet.
        warmup: steps over which the learning rate grows from zero.
        gradient_clip: largest norm of the gradient; default: any.
        precision: of lightning, such as "32-true" or "bf16-mixed".
    """

    steps: int
    batch_size: int
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["constant", "cosine", "inverse"] = "constant"
    warmup: int = 0
    gradient_clip: float | None = None
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}")

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied with at `step`.

        >>> TrainingSettings(steps=100, batch_size=1, schedule="cosine").factor(50)
        0.5
        """
        growth = min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            return growth * round(0.5 * (1 + math.cos(math.pi * min(step / self.steps, 1.0))), 12)
        return growth * (1 + 1e-4 * step) ** -0.75 if self.schedule == "inverse" else growth


@dataclass(frozen=True)
class RunOptions:
    """Where and on what an experiment runs; nothing here changes what is computed.

    Attributes:
        output: folder for results and checkpoints.
        data: folder of the datasets; default: `PERMUTOHEDRAL_DATA`, else downloaded.
        accelerator: "auto", "cpu" or "gpu".
        devices: how many to train on, with DDP if more than one.
        resume: go on from the last checkpoint of a row, and keep rows that are done.
        progress: show bars.
    """

    output: Path
    data: Path | None = None
    accelerator: str = "auto"
    devices: int = 1
    resume: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        if self.accelerator not in ("auto", "cpu", "gpu"):
            raise InputError(f"accelerator must be auto, cpu or gpu, got {self.accelerator!r}")
        if self.devices < 1:
            raise InputError(f"devices must be at least 1, got {self.devices}")
        if self.accelerator == "gpu" and not torch.cuda.is_available():
            raise InputError("there is no GPU that torch can use; leave --accelerator out to run on the processor")

    @property
    def device(self) -> torch.device:
        """Where models are evaluated."""
        use_gpu = self.accelerator != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if use_gpu else "cpu")


class Task(lightning.LightningModule):
    """A model with its optimizer; experiments add `training_step`."""

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply the model."""
        output: Tensor = self.model(*inputs)
        return output

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What is trained, as the optimizer takes it."""
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def configure_optimizers(self) -> Any:
        """Optimizer and schedule as the settings say."""
        settings = self.settings
        parameters = self.parameter_groups()
        optimizer: torch.optim.Optimizer
        if settings.optimizer == "sgd":
            optimizer = torch.optim.SGD(
                parameters, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
            )
        else:
            optimizer = torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, settings.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(task: Task, loader: DataLoader[Any], options: RunOptions, checkpoints: Path) -> bool:
    """Train `task`, keeping its last state in `checkpoints / last.ckpt`.

    Returns:
        `is_first_process()`.
    """
    last = checkpoints / "last.ckpt"
    every = max(1, task.settings.steps // 20)
    callbacks: list[Callback] = [
        ModelCheckpoint(checkpoints, filename="last", every_n_train_steps=every, enable_version_counter=False)
    ]
    if options.progress:
        callbacks.append(RichProgressBar(refresh_rate=5, leave=False))
    if not options.resume:
        last.unlink(missing_ok=True)
    with _quiet():
        trainer = lightning.Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            strategy="ddp" if options.devices > 1 else "auto",
            max_steps=task.settings.steps,
            precision=task.settings.precision,
            gradient_clip_val=task.settings.gradient_clip,
            callbacks=callbacks,
            logger=False,
            enable_progress_bar=options.progress,
            enable_model_summary=False,
        )
        trainer.fit(task, loader, ckpt_path=last if last.is_file() else None)
    return is_first_process()


def track(items: Sequence[Item], what: str, options: RunOptions) -> Iterable[Item]:
    """The items, with a bar on stderr that shows how many are done."""
    if not options.progress:
        return items
    return rich.progress.track(items, what, console=rich.console.Console(stderr=True), transient=True)


def is_first_process() -> bool:
    """Whether this process evaluates and writes; those that a training on several devices starts only help."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK"))


def steps_done(options: RunOptions, checkpoints: Path) -> int:
    """How many steps a resumed training has behind it."""
    last = checkpoints / "last.ckpt"
    if not (options.resume and last.is_file()):
        return 0
    return int(torch.load(last, map_location="cpu", weights_only=False)["global_step"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep lightning's advice (more workers, a logger, which hardware is there) out of the output."""
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)
