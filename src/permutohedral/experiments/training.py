"""Training through pytorch-lightning: settings, optimizers, checkpoints, resuming, devices. Shared by experiments."""

from __future__ import annotations

import logging
import math
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

from permutohedral.errors import InputError, PermutohedralError, TrainingError
from permutohedral.experiments.batches import (
    check_divides,
    count_local,
    count_nodes,
    is_first_process,
    launched_by_torchrun,
)
from permutohedral.experiments.checkpoints import WholeCheckpoints, read_checkpoint

__all__ = ["RunOptions", "Task", "TrainingSettings", "fit", "is_first_process", "steps_done", "track"]

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Attributes:
        steps: updates of the weights.
        batch_size: items per step, of all devices together.
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
        devices: how many of this machine to train on, with DDP if more than one; `torchrun` overrides it.
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
        if launched_by_torchrun() and self.devices not in (1, count_local()):
            raise InputError(
                f"torchrun started {count_local()} processes here; leave --devices out, or make it so many"
            )
        if self.accelerator == "gpu" and not torch.cuda.is_available():
            raise InputError("there is no GPU that torch can use; leave --accelerator out to run on the processor")

    @property
    def local_processes(self) -> int:
        """Processes that train on this machine, one for each device."""
        return max(self.devices, count_local())

    @property
    def processes(self) -> int:
        """Processes that train together, on all machines."""
        return self.local_processes * count_nodes()

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
        self._random_state: Tensor | None = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state of the random numbers, for models that draw some."""
        checkpoint["random_state"] = self._generator().get_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember the state of the random numbers; others draw some before the next step."""
        self._random_state = checkpoint.get("random_state")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Go on with the random numbers of the interrupted training."""
        if self._random_state is not None:
            self._generator().set_state(self._random_state)
            self._random_state = None

    def _generator(self) -> torch.Generator:
        if self.device.type == "cuda":
            return torch.cuda.default_generators[self.device.index or 0]
        return torch.default_generator

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply the model."""
        output: Tensor = self.model(*inputs)
        return output

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm. Lightning refuses to for optimizers that can unscale gradients, even if none are scaled."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

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
            # one kernel for all weights; with a gradient scaler it would unscale after the clipping
            fused = self.device.type == "cuda" and settings.precision != "16-mixed"
            optimizer = torch.optim.AdamW(
                parameters, settings.learning_rate, weight_decay=settings.weight_decay, fused=fused
            )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, settings.factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(
    task: Task, loader: DataLoader[Any], options: RunOptions, checkpoints: Path, callbacks: Sequence[Callback] = ()
) -> bool:
    """Train `task`, keeping its last state in `checkpoints / last.ckpt`.

    Args:
        task: what to train.
        loader: gives one batch for each step of the whole training, beginning with `steps_done`; see `StepBatches`.
        options: where and on what.
        checkpoints: folder of this very training.
        callbacks: further ones of lightning.

    Returns:
        `is_first_process()`.

    Raises:
        StorageError: a checkpoint cannot be written or read.
        TrainingError: another process of this training has ended.
    """
    check_divides(options.processes, task.settings.batch_size)
    last = checkpoints / "last.ckpt"
    if not options.resume and is_first_process():
        last.unlink(missing_ok=True)
    with _quiet():
        trainer = lightning.Trainer(
            accelerator=options.accelerator,
            devices=options.local_processes,
            num_nodes=options.processes // options.local_processes,
            strategy="ddp" if options.processes > 1 else "auto",
            max_steps=task.settings.steps,
            precision=task.settings.precision,
            gradient_clip_val=task.settings.gradient_clip,
            callbacks=[*_callbacks(task, options, checkpoints), *callbacks],
            plugins=[WholeCheckpoints()],
            # StepBatches gives each process its part
            use_distributed_sampler=False,
            logger=False,
            enable_progress_bar=options.progress,
            enable_model_summary=False,
        )
        resumed = options.resume and last.is_file()
        # handing each backward pass to a thread of its own costs a GPU that has small kernels a third of the time
        several = options.devices > 1
        with _explaining_lost_processes(options, checkpoints), torch.autograd.set_multithreading_enabled(several):
            trainer.fit(task, loader, ckpt_path=last if resumed else None)
    return is_first_process()


def _callbacks(task: Task, options: RunOptions, checkpoints: Path) -> list[Callback]:
    every = max(1, task.settings.steps // 20)
    saving = ModelCheckpoint(checkpoints, filename="last", every_n_train_steps=every, enable_version_counter=False)
    return [saving, RichProgressBar(refresh_rate=5, leave=False)] if options.progress else [saving]


@contextmanager
def _explaining_lost_processes(options: RunOptions, checkpoints: Path) -> Iterator[None]:
    """Where several processes train together, each waits for the others in every step, and fails when one is gone."""
    try:
        yield
    except PermutohedralError:
        raise
    except RuntimeError as error:
        if options.processes == 1:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TrainingError(
            f"a process of this training ended, or could not be reached: {reason}. The last checkpoint is in "
            f"{checkpoints}; the same command with --resume goes on from there"
        ) from error


def track(items: Sequence[Item], what: str, options: RunOptions) -> Iterable[Item]:
    """The items, with a bar on stderr that shows how many are done."""
    if not options.progress:
        return items
    return rich.progress.track(items, what, console=rich.console.Console(stderr=True), transient=True)


def steps_done(options: RunOptions, checkpoints: Path) -> int:
    """How many steps a resumed training has behind it."""
    last = checkpoints / "last.ckpt"
    if not (options.resume and last.is_file()):
        return 0
    return int(read_checkpoint(last)["global_step"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep lightning's advice (more workers, a logger, which hardware is there) out of the output."""
    logs = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
