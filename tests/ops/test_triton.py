"""The kernels in Triton's interpreter, which must be chosen before they are imported: in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from permutohedral.ops import dispatch


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_in_the_interpreter() -> None:
    script = Path(__file__).with_name("interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(script)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PERMUTOHEDRAL_TEST_DEVICE": "cpu"}
    root = Path(__file__).parents[2]
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


def test_interpreted_kernels_are_never_chosen_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dispatch.choose_backend("cpu").name != "triton"


def test_without_a_gpu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    triton = next(backend for backend in dispatch._BACKENDS if backend.name == "triton")
    assert "not on device 'cpu'" in str(triton.why_not_on("cpu"))
    assert triton.why_not_on("cuda") is None
