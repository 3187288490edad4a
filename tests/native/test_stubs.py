"""The type stubs of the compiled core are those that nanobind generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STUBS = Path(__file__).resolve().parents[2] / "src/permutohedral/_native.pyi"


def test_stubs_are_generated(tmp_path: Path) -> None:
    """Generate them again with the commands below after a change of the bindings."""
    pytest.importorskip("permutohedral._native", reason="the compiled core is not installed")
    pytest.importorskip("nanobind", reason="nanobind generates the stubs")
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff formats the stubs")
    generated = tmp_path / "_native.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "permutohedral._native", "-o", str(generated)],
        check=True,
    )
    subprocess.run([ruff, "format", "-q", "--config", str(STUBS.parents[2] / "pyproject.toml"), generated], check=True)
    assert STUBS.read_text() == generated.read_text()
