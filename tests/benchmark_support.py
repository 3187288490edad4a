"""What the tests of the benchmarks share: a small problem, and a backend that is wrong."""

from __future__ import annotations

import sys
import types

import pytest
from torch import Tensor

from permutohedral.benchmarks import inputs
from permutohedral.benchmarks.inputs import FilterProblem
from permutohedral.ops import dispatch, reference


def small_problem() -> FilterProblem:
    """The bilateral filter of an image of 40 x 50 pixels."""
    return inputs.bilateral_problem(inputs.synthetic_image(40, 50), (4.0, 0.1), "test image")


def prefer_broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a backend, preferred to all others, whose slice is off by one percent."""
    module = types.ModuleType("broken_primitives")
    for name in dir(reference):
        if not name.startswith("_"):
            setattr(module, name, getattr(reference, name))

    def slice_wrongly(*arguments: Tensor) -> Tensor:
        return 1.01 * reference.slice(*arguments)

    module.slice = slice_wrongly  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_primitives", module)
    broken = dispatch.Backend("broken", "broken_primitives", lambda: None, lambda device_type: None)
    monkeypatch.setattr(dispatch, "_BACKENDS", [broken, *dispatch.all_backends()])
