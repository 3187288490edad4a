"""Results of rows, the weights next to them, and configurations: reading and writing."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import torch
from torch import Tensor, nn

import permutohedral as ph
from experiments.provenance import find_commit, find_processor
from permutohedral.errors import InputError, StorageError
from permutohedral.files.atomic import replacing, write_bytes
from permutohedral.version import __version__

__all__ = ["FORBID_EXTRA", "Result", "parse_config", "read_result", "replacing", "write_bytes", "write_json"]

Config = TypeVar("Config")

# of the dataclasses of configurations
FORBID_EXTRA = pydantic.ConfigDict(extra="forbid")

_PACKAGES = ("numpy", "torch", "triton")


@dataclass(frozen=True)
class Result:
    """One row of a table with one seed.

    Attributes:
        experiment: such as "denoising".
        name: of the row.
        config: all settings, as plain data.
        metrics: numbers, possibly nested by name.
        seed: of everything random.
        seconds: time taken, by stage.
        environment: commit, hardware and versions.
    """

    experiment: str
    name: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    seed: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


def parse_config(kind: type[Config], content: object) -> Config:
    """Turn plain data into the dataclass `kind`, checking names and types.

    Raises:
        InputError: a name or a type does not fit.
    """
    try:
        # JSON has lists where the dataclass has tuples
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(content), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the configuration"
        cause = first.get("ctx", {}).get("error", first["msg"])
        message = cause.message if isinstance(cause, InputError) else f"{cause}, got {first['input']!r}"
        raise InputError(f"{place}: {message}") from error


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return commit, hardware, versions and time as plain data."""
    versions = {"permutohedral": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    hardware: dict[str, Any] = {"processor": find_processor(), "cores": os.cpu_count(), "device": str(device)}
    if device.type == "cuda":
        hardware |= {"gpu": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
    return {
        "commit": find_commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "backend": ph.backends.explain(torch.empty(0, device=device)).name,
        "versions": versions,
    }


def write_json(path: Path, content: object) -> None:
    """Write plain data or a `Result` atomically."""
    plain = asdict(content) if isinstance(content, Result) else content
    write_bytes(path, (json.dumps(plain, indent=2, sort_keys=True) + "\n").encode())


def read_result(path: Path) -> Result:
    """Read a result.

    Raises:
        InputError: the file cannot be read or is not a result.
    """
    try:
        content = json.loads(path.read_text())
        return Result(**{entry.name: content[entry.name] for entry in fields(Result)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a result of this version: {error!r}; run the row again") from error


def weights_path(config: Any, folder: Path, suffix: str = "") -> Path:
    """Return the path of the weights of a row in the output folder."""
    return folder / "weights" / f"{config.name}-{config.seed}{suffix}.safetensors"


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a model atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    from safetensors.torch import save

    # safetensors itself writes files that only their owner may read
    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read weights.

    Raises:
        StorageError: the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read the weights {path}: {error}; train the row again") from error
    return tensors
