"""Small and read-only disks: real ones if this user may mount, and limits of the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of `size` such as "300k" at `folder`; skip the test if this user cannot mount."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    if mounted.returncode != 0:
        pytest.skip(f"this user cannot mount a disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writes beyond `size` bytes be short, then fail, as on a full disk."""
    resource: Any = pytest.importorskip("resource", reason="limits of processes are POSIX's")
    before, writing = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    # bytecode of modules that are imported in the block would be cut
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writing


def remount(folder: Path, options: str) -> None:
    """Change the options of a disk, such as "size=10m", "ro" or "rw"."""
    _run("mount", "-o", f"remount,{options}", str(folder)).check_returncode()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
