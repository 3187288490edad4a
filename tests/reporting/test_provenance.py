"""Which commit and machine a result names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import permutohedral as ph
from permutohedral.benchmarks import environment
from permutohedral.experiments.result import describe_environment
from permutohedral.reporting.provenance import COMMIT_VARIABLE, find_commit, name_machine, short_commit

PACKAGE = Path(ph.__file__).parent


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_repository(folder: Path) -> str:
    """A repository with one commit of all files in the folder; that commit."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "note.txt").write_text("a note")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a note")
    return git(folder, "rev-parse", "HEAD")


def copy_package(folder: Path) -> Path:
    """The Python files of the package in another place."""
    return Path(
        shutil.copytree(PACKAGE, folder / "permutohedral", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    )


def commit_in_process(package: Path, working: Path) -> str:
    """What a process that imports the package from there says, started in `working`."""
    # a development installation finds the package before the path is looked at
    code = (
        "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'Redirecting' not in type(each).__name__]; "
        "from permutohedral.reporting.provenance import find_commit; print(find_commit())"
    )
    environment = {name: value for name, value in os.environ.items() if name != COMMIT_VARIABLE}
    # files of bytecode beside the sources would be changes
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join([str(package.parent), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=working, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)


def test_the_repository_of_the_working_directory_does_not_matter(tmp_path: Path) -> None:
    foreign = make_repository(tmp_path / "foreign")
    own = make_repository(tmp_path / "sources")
    package = copy_package(tmp_path / "sources" / "src")
    git(tmp_path / "sources", "add", "-A")
    git(tmp_path / "sources", "commit", "-q", "-m", "the package")
    commit = git(tmp_path / "sources", "rev-parse", "HEAD")
    assert commit_in_process(package, tmp_path / "foreign") == commit
    assert commit not in (foreign, own)


def test_sources_that_differ_from_the_commit_are_marked(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "src")
    commit = make_repository(tmp_path)
    assert find_commit(package) == commit
    # results that are written into the checkout are no sources
    (tmp_path / "note.txt").write_text("another note")
    assert find_commit(package) == commit
    (package / "version.py").write_text("changed")
    assert find_commit(package) == f"{commit}+"


def test_a_new_file_among_the_sources_is_a_difference(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "src")
    commit = make_repository(tmp_path)
    (package / "new.py").touch()
    assert find_commit(package) == f"{commit}+"


def test_an_installed_package_tells_its_version(tmp_path: Path) -> None:
    package = copy_package(tmp_path / "installed")
    assert find_commit(package) == f"v{ph.__version__}"
    # as in a virtual environment inside of somebody's repository
    (tmp_path / ".gitignore").write_text("installed")
    make_repository(tmp_path)
    assert find_commit(package) == f"v{ph.__version__}"
    assert commit_in_process(package, tmp_path) == f"v{ph.__version__}"


def test_the_variable_names_the_commit_of_results_and_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "named")
    assert describe_environment(torch.device("cpu"))["commit"] == "named"
    assert environment.describe(torch.device("cpu"))["commit"] == "named"


def test_results_and_the_benchmark_agree() -> None:
    result, benchmark = describe_environment(torch.device("cpu")), environment.describe(torch.device("cpu"))
    assert result["commit"] == benchmark["commit"] == find_commit()
    assert result["hardware"]["processor"] == benchmark["processor"]


def test_what_tables_show() -> None:
    assert short_commit("0123456789abcdef") == "`012345678`"
    assert short_commit(None) == ""
    assert short_commit("v1.2.0") == "`v1.2.0`"
    assert name_machine({"gpu": "H200", "processor": "p", "cores": 2}) == "H200"
    assert name_machine({"gpu": None, "processor": "p", "cores": 2}) == "p, 2 cores"
