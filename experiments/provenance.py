"""The machine and the commit that made a result."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
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


def add_up_time(runs: Iterable[tuple[float, str]]) -> str:
    """Return the time that runs took on each machine.

    Args:
        runs: seconds and machine of each.

    >>> add_up_time([(70.0, "AMD EPYC, 2 cores"), (50.0, "AMD EPYC, 2 cores"), (9.4, "NVIDIA H200")])
    '2 min (AMD EPYC, 2 cores) and 9 s (NVIDIA H200)'
    """
    total: dict[str, float] = {}
    for seconds, machine in runs:
        total[machine] = total.get(machine, 0.0) + seconds
    return " and ".join(f"{_format_time(seconds)} ({machine})" for machine, seconds in total.items())


def _format_time(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def stored_time(table: Path) -> str:
    """Return the time and the machines of all results in `NAME.csv`, nothing if there is none.

    A result has a line for each metric, with the seconds of the whole row.
    """
    if not table.is_file():
        return ""
    with table.open(newline="") as lines:
        runs = {
            (line["row"], line["split"], line["seed"]): (float(line["seconds"]), line["machine"])
            for line in csv.DictReader(lines)
        }
    return add_up_time(runs.values())
