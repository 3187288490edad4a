"""Everything the README says to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from permutohedral.cli import application

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.split()[0] == program]


def test_snippets_run_one_after_another() -> None:
    snippets = blocks("python")
    assert len(snippets) >= 2
    namespace: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), namespace)
    assert namespace["smooth"].shape == namespace["image"].shape
    assert namespace["result"].shape == (200, 4)
    assert all(parameter.grad is not None for parameter in namespace["layer"].parameters())


@pytest.mark.parametrize("command", commands("permutohedral"))
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photo.png", "depth.png"):
        Image.fromarray(np.zeros((8, 9, 3), dtype=np.uint8)).save(name)
    result = CliRunner().invoke(application, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    wanted = [line.split()[1] for line in commands("make")]
    assert {"demo", "test"} <= set(wanted)
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_lead_to_files() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).is_file(), link


def test_extras_exist() -> None:
    metadata = (ROOT / "pyproject.toml").read_text()
    extras = [extra for line in commands("pip") for extra in re.findall(r"\[(.*)\]", line)[0].split(",")]
    assert extras
    for extra in extras:
        assert re.search(rf"^{extra} = \[", metadata, flags=re.MULTILINE), extra
