"""The commit and the machine of a result."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

import permutohedral as ph
from experiments.provenance import COMMIT_VARIABLE, find_commit
from experiments.results import describe_environment


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package in a new repository."""
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    for folder in ("src/permutohedral", "native", "experiments"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "version.py").touch()
    git(tmp_path, "init", "-q")
    return tmp_path / "src" / "permutohedral"


def test_marks_sources_that_differ_from_the_commit(checkout: Path) -> None:
    assert find_commit(checkout) == f"v{ph.__version__}"
    git(checkout, "add", "-A", ":(top)")
    git(checkout, "commit", "-q", "-m", "the package")
    commit = git(checkout, "rev-parse", "HEAD")
    assert find_commit(checkout) == commit
    # results in the checkout are not sources
    (checkout.parents[1] / "note.txt").touch()
    assert find_commit(checkout) == commit
    (checkout.parents[1] / "experiments" / "new.py").touch()
    assert find_commit(checkout) == f"{commit}+"


def test_the_variable_names_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "named")
    assert describe_environment(torch.device("cpu"))["commit"] == "named"
