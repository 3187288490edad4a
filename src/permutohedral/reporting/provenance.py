"""Which machine and which state of the sources made a result."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from permutohedral.version import __version__

# names the commit where the sources were copied without their history
COMMIT_VARIABLE = "PERMUTOHEDRAL_COMMIT"

_PACKAGE = Path(__file__).resolve().parents[1]


def find_commit(package: Path = _PACKAGE) -> str:
    """The commit of the sources that run, with "+" if they differ from it.

    `PERMUTOHEDRAL_COMMIT` overrides it. Without a checkout, where the package is installed, it is "v" and the
    version. The working directory does not matter, nor does a repository that only happens to contain the installation.

    Args:
        package: folder of the package.
    """
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    try:
        # fails where the repository around the package does not track it
        _git(package, "ls-files", "--error-unmatch", "version.py")
        commit = _git(package, "rev-parse", "HEAD")
        changes = _git(package, "status", "--porcelain", "--", ".", ":(top)native")
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
    return commit + "+" * bool(changes)


def _git(folder: Path, *arguments: str) -> str:
    # GIT_DIR and its kin name another repository, as in a hook of git
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def short_commit(commit: str | None) -> str:
    """A commit for a table: shortened, its "+" kept; empty for None.

    >>> short_commit("0123456789abcdef0123456789abcdef01234567+")
    '`012345678+`'
    """
    return "" if commit is None else f"`{commit[:9]}{'+' * commit.endswith('+')}`"


def find_processor() -> str:
    """The model of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def name_machine(hardware: Mapping[str, Any]) -> str:
    """The machine in words: its GPU, else its processor and cores.

    >>> name_machine({"processor": "AMD EPYC", "cores": 2})
    'AMD EPYC, 2 cores'
    """
    return str(hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores")
