"""Training loop of all experiments: settings, schedule, checkpoints, CUDA graphs."""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import random
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from experiments.results import FORBID_EXTRA, write_bytes
from permutohedral.errors import InputError, StorageError

Item = TypeVar("Item")
Batch = tuple[Any, ...]

# uncaptured steps before the capture of a CUDA graph, in which kernels are compiled
_WARMUP_STEPS = 3


@checked_dataclass(frozen=True, config=FORBID_EXTRA)
class TrainingSettings:
    """How a network is trained.

    Attributes:
        steps: updates of the weights.
        batch_size: items per step.
        optimizer: "sgd" with momentum, or "adam" with decoupled weight decay.
        learning_rate: at the start.
        momentum: of "sgd".
        weight_decay: of both optimizers.
        schedule: "constant", "cosine" (to zero) or "inverse" (Caffe's for LeNet, (1 + 1e-4 step)^-0.75).
        warmup: steps over which the learning rate grows from zero.
        gradient_clip: largest norm of the gradient. Default: unlimited.
        precision: "32-true", or "bf16-mixed" for autocast to bfloat16.
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
    precision: Literal["32-true", "bf16-mixed"] = "32-true"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at `step`.

        >>> TrainingSettings(steps=100, batch_size=1, schedule="cosine").factor(50)
        0.5
        """
        growth = min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            return growth * round(0.5 * (1 + math.cos(math.pi * min(step / self.steps, 1.0))), 12)
        return growth * (1 + 1e-4 * step) ** -0.75 if self.schedule == "inverse" else growth


@dataclass(frozen=True)
class RunOptions:
    """Where an experiment runs. Nothing here changes its figures.

    Attributes:
        output: folder of results, weights and checkpoints.
        data: folder of the data sets. Default: `PERMUTOHEDRAL_DATA`, or download.
        device_name: "auto", "cpu" or "cuda".
        resume: continue from checkpoints and keep finished rows.
        progress: report progress on stderr: a bar in a terminal, else a line for every 10 %.
    """

    output: Path
    data: Path | None = None
    device_name: str = "auto"
    resume: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        if self.device_name not in ("auto", "cpu", "cuda"):
            raise InputError(f"device must be auto, cpu or cuda, got {self.device_name!r}")

    @property
    def device(self) -> torch.device:
        """Return the device that trains and evaluates."""
        if self.device_name == "cuda" and not torch.cuda.is_available():
            raise InputError("device is 'cuda', but torch finds no GPU; pass --device cpu")
        use_gpu = self.device_name != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if use_gpu else "cpu")

    def track(self, items: Sequence[Item], description: str) -> Iterable[Item]:
        """Iterate over `items` and report progress."""
        if not self.progress:
            return items
        if not sys.stderr.isatty():
            return _log_tenths(items, description)
        from rich.console import Console
        from rich.progress import track

        return track(items, description, console=Console(file=sys.stderr), transient=True)


def _log_tenths(items: Sequence[Item], description: str) -> Iterator[Item]:
    started = time.perf_counter()
    for number, item in enumerate(items):
        yield item
        tenth = 10 * (number + 1) // len(items)
        if tenth > 10 * number // len(items):
            spent = time.perf_counter() - started
            print(f"{description}: {10 * tenth} %, {spent:.0f} s", file=sys.stderr, flush=True)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def count_weights(model: nn.Module) -> int:
    """Return the number of trainable weights."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def fit(
    model: nn.Module,
    loss: Callable[..., Tensor],
    settings: TrainingSettings,
    options: RunOptions,
    checkpoints: Path,
    *,
    batch: Callable[[int], Batch] | None = None,
    groups: list[dict[str, Any]] | None = None,
    capture: bool = False,
) -> float:
    """Train `model` and leave its last state in `checkpoints / "last.ckpt"`.

    A resumed training takes the same steps as an uninterrupted one.

    Args:
        model: already on `options.device`.
        loss: maps a batch to a scalar.
        settings: how to train.
        options: device, and whether to resume.
        checkpoints: folder of this training, see `checkpoint_folder`.
        batch: maps a step to the arguments of `loss`, always the same ones. Default: the step itself.
        groups: parameter groups of the optimizer. Default: all trainable parameters.
        capture: replay the step as a CUDA graph; all batches must have one shape.

    Returns:
        Seconds of the training, with those before it was resumed.

    Raises:
        StorageError: a checkpoint cannot be written or read.
    """
    batch = (lambda step: (step,)) if batch is None else batch
    optimizer = _make_optimizer(model, settings, groups, options.device)
    generator = torch.cuda.default_generators[0] if options.device.type == "cuda" else torch.default_generator
    path, first, spent, started = checkpoints / "last.ckpt", 0, 0.0, time.perf_counter()
    # published figures were drawn after the one random number that a torch DataLoader draws
    torch.empty((), dtype=torch.int64).random_()
    if options.resume and path.is_file():
        state = read_checkpoint(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["random"])
        # older checkpoints do not have the time
        first, spent = state["step"], state.get("seconds", math.nan)
    else:
        path.unlink(missing_ok=True)
    model.train()
    backward: Callable[..., None] = _CapturedStep(model, loss, settings) if capture else _Step(model, loss, settings)
    save_every = max(1, settings.steps // 20)
    # a thread for the backward pass costs a GPU with small kernels a third of the time (H200, deep_small)
    with torch.autograd.set_multithreading_enabled(False):
        for step in options.track(range(first, settings.steps), "training"):
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * settings.factor(step)
            backward(*batch(step))
            if settings.gradient_clip:
                nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizer.step()
            if (step + 1) % save_every == 0 or step + 1 == settings.steps:
                seconds = spent + time.perf_counter() - started
                content = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                _write_checkpoint(content | {"random": generator.get_state(), "seconds": seconds}, path)
    return spent + time.perf_counter() - started


def _make_optimizer(
    model: nn.Module, settings: TrainingSettings, groups: list[dict[str, Any]] | None, device: torch.device
) -> torch.optim.Optimizer:
    if groups is None:
        groups = [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}]
    rate, decay = settings.learning_rate, settings.weight_decay
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, rate, settings.momentum, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(groups, rate, weight_decay=decay, fused=device.type == "cuda")
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


class _Step:
    """Compute the loss of a batch and the gradients of the weights."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], settings: TrainingSettings) -> None:
        self.model, self.loss, self.autocast = model, loss, settings.precision == "bf16-mixed"

    def __call__(self, *batch: Any) -> None:
        self.model.zero_grad()
        self.backward(*batch)

    def backward(self, *batch: Any) -> None:
        device = next(self.model.parameters()).device.type
        # a cached cast would be missing when a CUDA graph is replayed
        with torch.autocast(device, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            loss = self.loss(*batch)
        loss.backward()


class _CapturedStep(_Step):
    """Replay the step as a CUDA graph: one launch instead of hundreds."""

    graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *batch: Any) -> None:
        if self.graph is None:
            self.inputs = [tensor.clone() for tensor in batch]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARMUP_STEPS):
                    self.backward(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            self.model.zero_grad()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.backward(*self.inputs)
        for kept, tensor in zip(self.inputs, batch, strict=True):
            kept.copy_(tensor)
        self.graph.replay()


def checkpoint_folder(config: Any, options: RunOptions, suffix: str = "") -> Path:
    """Return the folder of the checkpoints of a configuration with any number of steps, so it can be extended."""
    content = asdict(config)
    content["training"] = {key: value for key, value in (content["training"] or {}).items() if key != "steps"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return options.output / "checkpoints" / f"{config.name}-{config.seed}{suffix}-{digest}"


def _write_checkpoint(content: dict[str, Any], path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, tensors and plain data only.

    Raises:
        StorageError: the file is damaged or is not a checkpoint.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        int(content["step"])
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    except (pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    return content


def _unreadable(path: Path, error: Exception) -> StorageError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return StorageError(f"the checkpoint {path} is damaged or not a checkpoint: {reason}; delete it to train again")


class StepBatches:
    """Choose the items of every step: a new order in every pass, the same for a resumed training.

    Args:
        items: number of items.
        batch_size: items per step.
        seed: of the orders.

    >>> batches = StepBatches(4, batch_size=2, seed=0)
    >>> sorted(batches(0) + batches(1))
    [0, 1, 2, 3]
    """

    def __init__(self, items: int, batch_size: int, seed: int) -> None:
        self.items, self.batch_size, self.seed = items, min(batch_size, items), seed

    def __call__(self, step: int) -> list[int]:
        epoch, place = divmod(step, self.items // self.batch_size)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.items, generator=generator)
        chosen: list[int] = order[place * self.batch_size : (place + 1) * self.batch_size].tolist()
        return chosen
