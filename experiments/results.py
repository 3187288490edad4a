"""Results of rows as CSV and YAML, the weights next to them, and configurations: reading and writing."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import torch
from torch import Tensor, nn

import permutohedral as ph
from experiments.provenance import describe_machine, find_commit, find_processor, short_commit
from permutohedral.apps.io.atomic import replacing, write_bytes
from permutohedral.errors import InputError, StorageError
from permutohedral.version import __version__

__all__ = [
    "FORBID_EXTRA",
    "Result",
    "parse_config",
    "read_table",
    "replacing",
    "write_bytes",
    "write_table",
]

Config = TypeVar("Config")

# of the dataclasses of configurations
FORBID_EXTRA = pydantic.ConfigDict(extra="forbid")

_PACKAGES = ("numpy", "torch", "triton")

_COLUMNS = ("row", "seed", "split", "metric", "value", "seconds", "commit", "machine", "settings")
# parts of a configuration that change no figure
_PRESENTATION = ("title", "paper")


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

    @property
    def split(self) -> str:
        """Return "test", or the split on which a row with a setting `split` was evaluated."""
        return str(self.config.get("split", "test"))

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what no other result of the experiment shares: row, split and seed."""
        return self.name, self.split, self.seed


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


def hash_settings(config: Mapping[str, Any]) -> str:
    """Return eight digits that stand for the settings of a row, whatever its title.

    >>> hash_settings({"scale": 1.0}) == hash_settings({"scale": 1.0, "title": "PCNN"}) != hash_settings({"scale": 2.0})
    True
    """
    content = {name: value for name, value in config.items() if name not in _PRESENTATION}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def write_table(path: Path, results: Sequence[Result]) -> None:
    """Write results as CSV, a line for each metric, and the settings of their rows as YAML next to it.

    Args:
        path: of the CSV file; the YAML file has its name.
        results: whose metrics are numbers, possibly nested.
    """
    import yaml

    buffer, settings = io.StringIO(), {}
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for result in results:
        config = {name: value for name, value in json.loads(json.dumps(result.config)).items() if name != "seed"}
        digest = hash_settings(config)
        settings[digest] = config
        seconds = round(sum(result.seconds.values()), 1)
        commit, machine = short_commit(result.environment["commit"]), describe_machine(result.environment)
        for metric, value in _flatten(result.metrics):
            place = [result.name, result.seed, result.split, metric]
            writer.writerow([*place, _round(value), seconds, commit, machine, digest])
    text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)
    # the settings come first, so that a killed process leaves no result without its settings
    write_bytes(path.with_suffix(".yaml"), text.encode())
    write_bytes(path, buffer.getvalue().encode())


def read_table(path: Path) -> list[Result]:
    """Read what `write_table` wrote.

    Raises:
        InputError: a file cannot be read, or holds something else.
    """
    import yaml

    found: dict[tuple[str, str, int], Result] = {}
    try:
        settings = yaml.safe_load(path.with_suffix(".yaml").read_text())
        for line in csv.DictReader(path.read_text().splitlines()):
            seed, digest = int(line["seed"]), line["settings"]
            environment = {"commit": line["commit"], "machine": line["machine"]}
            config, seconds = settings[digest] | {"seed": seed}, {"total": float(line["seconds"])}
            result = Result(path.stem, line["row"], config, {}, seed, seconds, environment)
            place: Any = found.setdefault(result.key, result).metrics
            *outer, last = line["metric"].split("/")
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = _parse_number(line["value"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not a table of results with its YAML: {error!r}; run the rows again") from error
    return list(found.values())


def _flatten(metrics: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{outer}{name}/")
        else:
            yield f"{outer}{name}", value


def _round(value: float) -> float:
    """Round to seven significant digits; integers stay."""
    return int(value) if isinstance(value, int) else float(f"{value:.7g}")


def _parse_number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


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
