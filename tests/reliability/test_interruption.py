"""Ctrl-C, tested in another process: a signal between two lines of a test would end the whole test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from permutohedral.ops import dispatch

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
# pytest's exit code for a run that Ctrl-C ended: the signal met a line of Python, not a call of the core
_INTERRUPTED = 2


@pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")
def test_ctrl_c_ends_a_long_call_and_nothing_else() -> None:
    file = Path(__file__).with_name("interrupted_calls.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != _INTERRUPTED:
            break
    assert done.returncode == 0, done.stdout + done.stderr
