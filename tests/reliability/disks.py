"""Disks that are small or cannot be written: real ones where this user may mount, else limits of the process."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own at `folder`, of `size` such as "300k"; skips the test where this user cannot mount."""
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
    """As on a full disk: writes beyond `size` bytes are short, then fail."""
    before, writing = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    # Python would keep half of the bytecode of what is imported meanwhile
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writing


def remount(folder: Path, options: str) -> None:
    """Change a disk: "size=10m", "ro" or "rw"."""
    _run("mount", "-o", f"remount,{options}", str(folder)).check_returncode()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
