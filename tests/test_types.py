"""The package in a user's project that is checked strictly; mypy checks the same project with everything else."""

from __future__ import annotations

import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import permutohedral

PROJECT = Path(__file__).parent / "user_project"


def test_pyright_is_content_with_a_strict_project(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    settings = tmp_path / "pyrightconfig.json"
    # the sources stand in for an installed package
    paths = [str(Path(permutohedral.__file__).parents[1])]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"extraPaths": paths}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [entry["message"] for entry in report["generalDiagnostics"]] == []


def test_the_project_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROJECT / "network.py"), run_name="__main__")
    assert "63 taps are missing" in capsys.readouterr().out
