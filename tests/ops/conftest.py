"""What the tests of the operators run under: the instruction sets of the compiled core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from permutohedral.ops import dispatch
from permutohedral.ops.backend import Backend

_NATIVE = next(backend for backend in dispatch._BACKENDS if backend.name == "native")
_BLOCKER = _NATIVE.blocker("cpu")


def instruction_sets() -> list[str]:
    if _BLOCKER is not None:
        return []
    from permutohedral import _native

    return _native.instruction_sets()


@pytest.fixture(params=instruction_sets() or ["none"])
def native(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The backend, on each instruction set that this processor has."""
    if _BLOCKER is not None:
        pytest.skip(f"the native backend does not run here: {_BLOCKER}")
    from permutohedral import _native
    from permutohedral.ops.native import BACKEND as backend

    before = _native.instruction_set()
    _native.use_instruction_set(request.param)
    yield backend
    _native.use_instruction_set(before)
