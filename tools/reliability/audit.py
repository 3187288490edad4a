"""Known flaws of the libraries that are installed: `python tools/reliability/audit.py`, part of `make lint`.

Asks pip-audit where it is installed and the databases can be reached. Without them, the versions that are installed
are compared with the list below: the oldest ones without the flaws that concern what this package does with them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys

# name: oldest version to use, and the flaw it mends
FLOORS = {
    "torch": ("2.6", "CVE-2025-32434: weights_only=True could run code before it"),
    "pillow": (
        "10.3",
        "CVE-2023-50447, CVE-2024-28219: code and overflows through crafted pictures and color profiles",
    ),
    "numpy": ("1.24", "none known that concerns arrays read here"),
    "pyyaml": ("6.0", "CVE-2020-14343: only safe_load is used here in any case"),
    "safetensors": ("0.4", "none known"),
    "pooch": ("1.8", "none known"),
    "requests": ("2.32", "CVE-2024-35195: certificates not checked after one unchecked request"),
    "pytorch-lightning": ("2.4", "CVE-2024-8019, CVE-2024-8020 concern its servers, which are not used here"),
    "starlette": ("0.49.1", "CVE-2025-54121, CVE-2025-62727: requests that keep a server busy"),
}


def as_numbers(version: str) -> tuple[int, ...]:
    """The three leading numbers of a version.

    >>> as_numbers("2.13.0+cpu")
    (2, 13, 0)
    """
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    return tuple([*numbers, 0, 0, 0][:3])


def find_old() -> list[str]:
    """A line for every installed library that is older than its floor."""
    found = []
    for name, (floor, flaw) in FLOORS.items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if as_numbers(installed) < as_numbers(floor):
            found.append(f"{name} {installed} is older than {floor} ({flaw}); upgrade it")
    return found


def ask_pip_audit() -> int | None:
    """Its exit code, None if it cannot run here."""
    if importlib.util.find_spec("pip_audit") is None:
        return None
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner=off", "--timeout=5"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Found" in run.stdout + run.stderr and "vulnerabilit" in run.stdout + run.stderr:
        print(run.stdout, run.stderr, sep="\n")
        return run.returncode
    return 0 if run.returncode == 0 else None


def main() -> int:
    """Print what was found."""
    code = ask_pip_audit()
    if code is not None:
        print(f"pip-audit: {'no known flaws' if code == 0 else 'see above'}")
        return code
    old = find_old()
    print("\n".join(old) or f"no library is older than the list of {len(FLOORS)} (pip-audit cannot run here)")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
