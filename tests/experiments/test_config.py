"""Configurations from YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from permutohedral.errors import InputError
from permutohedral.experiments.config import parse_config, read_config, shipped_configs


@dataclass(frozen=True)
class Inner:
    steps: int
    rate: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    sizes: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    flag: bool = False


def test_nested_mappings_become_dataclasses() -> None:
    content = {"name": "x", "kind": "b", "inner": {"steps": 3, "rate": 1}, "sizes": [1, 2], "options": {"z": None}}
    assert parse_config(Outer, content) == Outer("x", "b", Inner(3, 1.0), (1, 2), {"z": None})
    assert parse_config(Outer, {"name": "x", "inner": None}) == Outer("x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "name is missing"),
        ({"name": "x", "nmae": 1}, "unknown name nmae; known are name, kind"),
        ({"name": 1}, "name must be of type str"),
        ({"name": "x", "kind": "c"}, "kind must be one of 'a', 'b'"),
        ({"name": "x", "inner": {"steps": 1.5}}, "inner.steps must be of type int"),
        ({"name": "x", "inner": {"steps": True}}, "inner.steps must be of type int"),
        ({"name": "x", "inner": {}}, "inner.steps is missing"),
        ({"name": "x", "sizes": 3}, "sizes must be a list"),
        ({"name": "x", "flag": 1}, "flag must be of type bool"),
        (["name"], "must be a mapping"),
    ],
)
def test_what_does_not_fit_is_named(content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_config(Outer, content)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the configuration .*absent\.yaml"):
        read_config(Outer, tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [")
    with pytest.raises(InputError, match=r"cannot read the configuration .*broken\.yaml"):
        read_config(Outer, broken)
    broken.write_text("name: 3")
    with pytest.raises(InputError, match=r"broken\.yaml: name must be of type str"):
        read_config(Outer, broken)


def test_configurations_are_inside_the_package() -> None:
    assert "pcnn_trained" in shipped_configs("denoising")
