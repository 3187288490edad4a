"""The parts of the compiled core that Python does not reach alone: built here, with the compiler found, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
NATIVE = FOLDER.parents[1] / "native"

# what the tests are linked with; in CMakeLists.txt, `core_sources`
SOURCES = ["index/cell_grid.cpp", "index/digit_reduction.cpp", "index/key_packing.cpp", "runtime/memory.cpp"]
SOURCES += ["runtime/threads.cpp"]


def find_compiler() -> str | None:
    """The C++ compiler that a build would take."""
    candidates = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next((path for name in candidates if name and (path := shutil.which(name.split()[0]))), None)


def build_program(folder: Path) -> Path:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler found: set CXX, or install one")
    if not NATIVE.is_dir():
        pytest.skip("the sources of the core are not here")
    built = folder / "core_tests"
    sources = [*sorted(FOLDER.glob("*.cpp")), *(NATIVE / source for source in SOURCES)]
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", "-pthread"]
    command = [compiler, *options, *map(str, sources), "-o", str(built)]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    return built


def test_core(tmp_path: Path) -> None:
    """One test, since each worker would compile the program."""
    program = build_program(tmp_path)
    for path in sorted(FOLDER.glob("test_*.cpp")):
        name = path.stem.removeprefix("test_")
        run = subprocess.run([str(program), name], capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 0, f"{name}: {run.stderr}"
