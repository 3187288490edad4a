"""The lower bounds that the package declares are not below those of the audit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reliability.audit import FLOORS, as_numbers, find_old

PROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()


def declared(name: str) -> list[str]:
    return re.findall(rf'"{name}(?:\[[a-z,]*\])?>=([0-9.]+)', PROJECT)


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_bounds_are_declared(name: str) -> None:
    bounds = declared(name)
    # requests comes with pooch, which declares an older one
    assert bounds or name == "requests"
    assert all(as_numbers(bound) >= as_numbers(FLOORS[name][0]) for bound in bounds)


def test_every_dependency_has_a_bound() -> None:
    required = re.findall(r"^dependencies = \[.*\]$", PROJECT, flags=re.MULTILINE)
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
    names = re.findall(r'"([^"]+)"', "".join(required) + extras)
    assert len(names) > 20
    others = [name for name in names if not name.startswith("permutohedral[")]
    assert [name for name in others if ">=" not in name] == []


def test_what_is_installed_passes() -> None:
    assert find_old() == []
