"""The machine and the commit that made a result."""

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

_PACKAGE = Path(__file__).resolve().parents[1] / "src" / "permutohedral"


def find_commit(package: Path = _PACKAGE) -> str:
    """Return the commit of a checkout, with "+" if its sources differ from it.

    `PERMUTOHEDRAL_COMMIT` overrides it. Without a checkout it is "v" and the version of the package.

    Args:
        package: folder of the package in the checkout.
    """
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    try:
        # fails if the repository around the folder does not track it
        _git(package, "ls-files", "--error-unmatch", "version.py")
        commit = _git(package, "rev-parse", "HEAD")
        changes = _git(package, "status", "--porcelain", "--", ".", ":(top)native", ":(top)experiments")
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
    return commit + "+" * bool(changes)


def _git(folder: Path, *arguments: str) -> str:
    # GIT_DIR names another repository in a hook of git
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def short_commit(commit: str) -> str:
    """Shorten a commit for a table and keep its "+".

    >>> short_commit("0123456789abcdef0123456789abcdef01234567+")
    '012345678+'
    """
    return f"{commit.rstrip('+')[:9]}{'+' * commit.endswith('+')}"


def find_processor() -> str:
    """Return the model of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def name_machine(hardware: Mapping[str, Any]) -> str:
    """Return the GPU of a machine, or else its processor and cores.

    >>> name_machine({"processor": "AMD EPYC", "cores": 2})
    'AMD EPYC, 2 cores'
    """
    return str(hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores")


def describe_machine(environment: Mapping[str, Any]) -> str:
    """Return the machine of a result, with the threads that a processor used.

    >>> describe_machine({"hardware": {"processor": "AMD EPYC", "cores": 2}, "threads": 1})
    'AMD EPYC, 2 cores, 1 thread(s)'
    """
    if "machine" in environment:
        return str(environment["machine"])
    name = name_machine(environment["hardware"])
    return name if "gpu" in environment["hardware"] else f"{name}, {environment['threads']} thread(s)"
