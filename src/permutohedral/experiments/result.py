"""What an experiment leaves behind: figures, and all that is needed to obtain them again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError, StorageError
from permutohedral.files import replacing
from permutohedral.ops.dispatch import choose_backend
from permutohedral.version import __version__

_PACKAGES = ("numpy", "pytorch-lightning", "torch", "torchmetrics", "triton")


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


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Commit, hardware, versions and time, as plain data."""
    versions = {"permutohedral": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    hardware: dict[str, Any] = {"processor": _processor(), "cores": os.cpu_count(), "device": str(device)}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        hardware["gpus"] = torch.cuda.device_count()
    return {
        "commit": _commit(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "backend": choose_backend(device.type).name,
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _commit() -> str | None:
    """The commit of the checkout this package lies in, with "+" if files differ from it; None without a checkout."""
    folder = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
        changes = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")


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


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a model as safetensors: whole, or not at all.

    Raises:
        StorageError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path) as partial:
        try:
            save_file(tensors, partial)
        except SafetensorError as error:
            raise OSError(str(error)) from error


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
