"""Configurations: one YAML file per published row, read into frozen dataclasses. An unknown name is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from permutohedral.errors import InputError

Config = TypeVar("Config")


def read_config(kind: type[Config], path: Path) -> Config:
    """Read a YAML file as the dataclass `kind`.

    Raises:
        InputError: the file cannot be read, or does not fit the dataclass; the message names the place.
    """
    content = _read_yaml(path)
    try:
        return parse_config(kind, content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds names and values, nested or not."""
    content: dict[str, Any] = _read_yaml(path)
    return content


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot read the configuration {path}: {error}") from error


def shipped_configs(experiment: str) -> dict[str, Path]:
    """The configurations inside the package, by name."""
    folder = Path(__file__).resolve().parents[1] / "configs" / experiment
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def parse_config(kind: type[Config], content: object, place: str = "") -> Config:
    """Turn nested mappings into the dataclass `kind`, checking names and types."""
    if not isinstance(content, Mapping):
        raise InputError(f"{place or 'a configuration'} must be a mapping of names to values, got {content!r}")
    known = {field.name: field for field in fields(cast(Any, kind))}
    unknown = [name for name in content if name not in known]
    if unknown:
        raise InputError(f"unknown name {place}{unknown[0]!s}; known are {', '.join(known)}")
    missing = [
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in content
    ]
    if missing:
        raise InputError(f"{place}{missing[0]} is missing")
    hints = get_type_hints(kind)
    return kind(**{name: _parse_value(hints[name], value, f"{place}{name}") for name, value in content.items()})


def _parse_value(hint: Any, value: object, place: str) -> Any:
    if is_dataclass(hint):
        return parse_config(cast("type[Any]", hint), value, f"{place}.")
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        [inner] = [argument for argument in get_args(hint) if argument is not type(None)]
        return _parse_value(inner, value, place)
    if origin is Literal:
        if value not in get_args(hint):
            raise InputError(f"{place} must be one of {', '.join(map(repr, get_args(hint)))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{place} must be a list, got {value!r}")
        return tuple(_parse_value(get_args(hint)[0], item, place) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise InputError(f"{place} must be a mapping, got {value!r}")
        return value
    # a whole number is a fine float; True is no number
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{place} must be of type {hint.__name__}, got {value!r}")
    return hint(value)
