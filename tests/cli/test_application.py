"""The command line as a whole: help, completion, missing extras, and what runs here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.cli.application import application


def test_version() -> None:
    result = CliRunner().invoke(application, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"permutohedral {ph.__version__}\n")


def all_commands() -> list[list[str]]:
    """Every command and every command of a group, as it is typed."""
    group = typer.main.get_command(application)
    found = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found += [[name, inner] for inner in command.commands] if hasattr(command, "commands") else [[name]]
    return found


def test_help_tells_what_there_is_in_eighty_columns() -> None:
    result = CliRunner().invoke(application, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    for command in (
        "filter",
        "denoise",
        "segment",
        "upsample",
        "solve",
        "colorize",
        "smooth-points",
        "segment-points",
        "train-points",
        "demo",
        "figure",
        "reproduce",
        "benchmark",
        "backends",
    ):
        (line,) = re.findall(rf"^  {command} .*$", result.stdout, flags=re.MULTILINE)
        # a summary that is too long would be cut off
        assert not line.endswith("...")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Exit codes: 0 done" in result.stdout
    for group in ("figure", "reproduce"):
        result = CliRunner().invoke(application, [group, "--help"], env={"COLUMNS": "80"})
        assert "..." not in result.stdout.partition("Commands:")[2]


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(application, [*command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert f"Example: permutohedral {' '.join(command)}" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_shell_completes_commands() -> None:
    environment = {"_PERMUTOHEDRAL_COMPLETE": "complete_bash", "COMP_WORDS": "permutohedral fi", "COMP_CWORD": "1"}
    result = CliRunner().invoke(application, [], prog_name="permutohedral", env=environment)
    assert result.stdout.split() == ["filter", "figure"]


def test_backends_agree_with_the_package() -> None:
    report = json.loads(CliRunner().invoke(application, ["backends", "--json"]).stdout)
    assert report["version"] == ph.__version__
    chosen = [backend["name"] for backend in report["devices"]["cpu"] if backend["chosen"]]
    assert chosen == [ph.explain_backend().partition(":")[0]]
    assert all(backend["reason"] is None for backend in report["devices"]["cpu"] if backend["chosen"])
    text = CliRunner().invoke(application, ["backends"]).stdout
    for backend in report["devices"]["cpu"]:
        assert f"  {backend['name']}" in text


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own where `module` cannot be imported."""
    code = f"import sys; sys.modules[{module!r}] = None; from permutohedral.__main__ import main; main()"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("typer", "cli", ["--version"]),
        ("PIL", "images", ["filter", "in.png", "out.png"]),
        ("matplotlib", "images", ["demo"]),
    ],
)
def test_a_missing_extra_is_named(module: str, extra: str, arguments: list[str]) -> None:
    result = run_without(module, *arguments)
    assert result.returncode == 1
    assert f"permutohedral[{extra}" in result.stderr
    assert "Traceback" not in result.stderr
