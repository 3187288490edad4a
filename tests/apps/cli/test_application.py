"""The command line as a whole: help, completion, missing extras, backends and demo."""

from __future__ import annotations

import inspect
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import permutohedral as ph
from permutohedral.apps.cli.application import application


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


def test_help_lists_commands_in_eighty_columns() -> None:
    result = CliRunner().invoke(application, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    for command in ("image", "map", "cloud", "array", "playground", "demo", "backends"):
        (line,) = re.findall(rf"^  {command} .*$", result.stdout, flags=re.MULTILINE)
        # a summary that is too long would be cut off
        assert not line.endswith("...")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Exit codes: 0 done" in result.stdout
    for group in ("image", "map", "cloud", "array"):
        result = CliRunner().invoke(application, [group, "--help"], env={"COLUMNS": "80"})
        assert "..." not in result.stdout.partition("Commands:")[2]


def test_guides_name_options_of_commands() -> None:
    group = typer.main.get_command(application)
    # the last of python -m permutohedral.compat
    known = {"--version", "--install-completion", "--show-completion", "--only"}
    for name, *inner in all_commands():
        command = group.commands[name]  # type: ignore[attr-defined]
        command = command.commands[inner[0]] if inner else command
        known |= {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    for path in sorted((Path(__file__).parents[3] / "docs" / "guide").glob("*.md")):
        assert set(re.findall(r"`(--[a-z-]+)", path.read_text())) <= known, path


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_every_command_has_an_example_and_names_its_extras(command: list[str]) -> None:
    result = CliRunner().invoke(application, [*command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert f"Example: permutohedral {' '.join(command)}" in text
    # one extra, which exists
    (extra,) = re.findall(r"Needs the extra (\w+)\.", text)
    assert extra in (metadata("permutohedral").get_all("Provides-Extra") or ())
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "function"),
    [
        *[(["image", name], f"{name}_image") for name in ("filter", "denoise", "segment", "colorize")],
        *[(["map", name], f"{name}_map") for name in ("upsample", "solve", "fill")],
        *[(["cloud", name], f"{name}_cloud") for name in ("smooth", "segment")],
        (["array", "filter"], "filter_array"),
    ],
)
def test_defaults_are_those_of_the_function(command: list[str], function: str) -> None:
    group, name = command
    found = typer.main.get_command(application).commands[group].commands[name]  # type: ignore[attr-defined]
    parameters = inspect.signature(getattr(ph.apps, function)).parameters
    shared = [each for each in found.params if each.name in parameters and each.name not in ("trimap", "labels")]
    assert shared
    for option in shared:
        expected = parameters[option.name].default
        assert option.required or str(option.default) == str(expected), option.name


@pytest.mark.parametrize("command", [["image", "filter"], ["image", "denoise"]])
def test_names_the_missing_output(command: list[str]) -> None:
    result = CliRunner().invoke(application, [*command, "photo.jpg"])
    assert result.exit_code == 2
    assert "OUTPUT is missing after photo.jpg" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("filter", "Did you mean 'image filter' or 'array filter'?"), ("smooth", "Did you mean 'cloud smooth'?")],
)
def test_names_the_group_of_a_command(typed: str, meant: str) -> None:
    result = CliRunner().invoke(application, [typed, "photo.jpg", "out.png"])
    assert result.exit_code == 2
    assert meant in result.stderr


@pytest.mark.parametrize(
    ("function", "arguments", "advice"),
    [
        ("filter_image", "image filter a.png b.png", ""),
        ("segment_image", "image segment a.png l.png b.png", "; the same command with --resume continues"),
        ("filter_array", "array filter a.zarr b.zarr", "; the same command with --resume continues"),
        ("smooth_cloud", "cloud smooth a.laz b.laz", "; the same command with --resume continues"),
    ],
)
def test_ctrl_c_names_resume(function: str, arguments: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ph.apps, function, interrupt, raising=False)
    result = CliRunner().invoke(application, arguments.split())
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", f"interrupted{advice}\n")


def test_backends_agree_with_the_package() -> None:
    report = json.loads(CliRunner().invoke(application, ["backends", "--json"]).stdout)
    assert report["version"] == ph.__version__
    chosen = [backend["name"] for backend in report["devices"]["cpu"] if backend["chosen"]]
    assert chosen == [ph.backends.explain().name]
    assert all(backend["reason"] is None for backend in report["devices"]["cpu"] if backend["chosen"])
    text = CliRunner().invoke(application, ["backends"]).stdout
    for backend in report["devices"]["cpu"]:
        assert f"  {backend['name']}" in text


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in another process where `module` cannot be imported."""
    code = f"import sys; sys.modules[{module!r}] = None; from permutohedral.__main__ import main; main()"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("typer", "images", ["--version"]),
        ("typer", "clouds", ["cloud", "segment", "in.laz", "out.laz"]),
        ("safetensors", "images", ["image", "denoise", "in.png", "out.png"]),
        ("PIL", "images", ["image", "filter", "in.png", "out.png"]),
        ("matplotlib", "images", ["demo"]),
    ],
)
def test_a_missing_extra_is_named(module: str, extra: str, arguments: list[str]) -> None:
    result = run_without(module, *arguments)
    assert result.returncode == 1
    assert f"permutohedral[{extra}" in result.stderr
    assert "Traceback" not in result.stderr


def test_demo_draws_its_figure(tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["demo", "--output", str(tmp_path / "new" / "folder"), "--steps", "1"])
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["demo.png"]
    assert "Trained a lattice filter" in result.stdout
    assert "shipped network" in result.stdout


def test_demo_rejects_a_file_as_folder(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    result = CliRunner().invoke(application, ["demo", "--output", str(occupied)])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "cannot create the folder" in result.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_reused() -> None:
    """Without it, four tensors of 28 MB cause page faults in each of ten rounds, about 270,000 in all."""
    code = """
import resource, torch
from permutohedral.apps.cli.shared import reuse_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def allocate():
    return [torch.ones(7_000_000) for _ in range(4)]

reuse_freed_memory()
allocate()
before = faults()
for _ in range(10):
    allocate()
assert faults() - before < 70_000, faults() - before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
