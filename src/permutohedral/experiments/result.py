"""What an experiment leaves behind: figures, and all that is needed to obtain them again."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError, StorageError
from permutohedral.ops.dispatch import choose_backend
from permutohedral.reporting.atomic import replacing, write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor
from permutohedral.version import __version__

_PACKAGES = ("numpy", "pytorch-lightning", "torch", "triton")


@dataclass(frozen=True)
class Result:
    """One row of a table.

    Attributes:
        experiment: such as "denoising".
        name: of the row.
        config: all settings, as plain data.
        metrics: what was measured; numbers, lists of them, or such by name.
        seed: of everything random.
        seconds: time it took, by stage.
        environment: commit, hardware and versions.
    """

    experiment: str
    name: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    seed: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


def make_result(
    experiment: str, config: Any, metrics: Mapping[str, Any], seconds: Mapping[str, float], device: torch.device
) -> Result:
    """The result of a row, a dataclass with name and seed, that was evaluated on `device` just now."""
    return Result(experiment, config.name, asdict(config), metrics, config.seed, seconds, describe_environment(device))


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Commit, hardware, versions and time, as plain data."""
    versions = {"permutohedral": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    hardware: dict[str, Any] = {"processor": find_processor(), "cores": os.cpu_count(), "device": str(device)}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        hardware["gpus"] = torch.cuda.device_count()
    return {
        "commit": find_commit(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "backend": choose_backend(device.type).name,
        "versions": versions,
    }


def by_row(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each row, one for each seed, in the order of the rows and seeds."""
    names = dict.fromkeys(result.name for result in results)
    return {
        name: sorted((result for result in results if result.name == name), key=lambda result: result.seed)
        for name in names
    }


def headline_of_accuracy(result: Result) -> str:
    """The accuracies of a result, one for each column."""
    return " ".join(f"{share:.4f}" for share in result.metrics["accuracy"].values())


def average_seeds(results: Sequence[Result]) -> list[Result]:
    """A result for each row: the first seed's, with the mean over the seeds of everything measured."""
    return [
        replace(runs[0], metrics=_mean([run.metrics for run in runs])) if len(runs) > 1 else runs[0]
        for runs in by_row(results).values()
    ]


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {name: _mean([value[name] for value in values]) for name in values[0]}
    return values[0] if all(value == values[0] for value in values) else sum(values) / len(values)


def write_result(result: Result, path: Path) -> None:
    """Write JSON: whole, or not at all."""
    write_text(path, json.dumps(asdict(result), indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file: whole, or not at all. Makes its folder if there is none.

    Raises:
        StorageError: it cannot be written.
    """
    with replacing(path) as partial:
        partial.write_text(text)


def weights_path(config: Any, folder: Path) -> Path:
    """Where the weights of a row with its seed go in the output folder, where rows have several seeds."""
    return folder / "weights" / f"{config.name}-{config.seed}.safetensors"


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a model as safetensors: whole, or not at all.

    Raises:
        StorageError: the file cannot be written.
    """
    from safetensors.torch import save

    # what safetensors writes itself, only its owner may read
    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """What `write_weights` wrote.

    Raises:
        StorageError: there is no such file, or it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read the weights {path}: {error}; train the row again") from error
    return tensors


def read_result(path: Path) -> Result:
    """Read what `write_result` wrote.

    Raises:
        InputError: the file cannot be read or is no result.
    """
    try:
        content = json.loads(path.read_text())
        return Result(**{entry.name: content[entry.name] for entry in fields(Result)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a result that this version can read: {error!r}") from error
