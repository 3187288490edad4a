"""How kernels are started."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from permutohedral.ops.triton import runtime
from permutohedral.ops.triton.runtime import Bound


def test_what_is_prepared_keeps_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows addresses alone, and their memory must not be given to another tensor before it is started."""
    calls: list[tuple[object, ...]] = []
    tensor = torch.zeros(4)
    bound, seen = Bound(None, BLOCK=8), weakref.ref(tensor)
    monkeypatch.setattr(Bound, "direct", True)
    monkeypatch.setattr(runtime, "_stream_of", lambda device: 7)
    # as if it had been compiled for such a tensor
    bound._starters[tensor.get_device(), tensor.dtype] = (lambda *given: calls.append(given), ("before",), (8,))
    address, again = tensor.data_ptr(), bound.prepare((3, 1, 1), (tensor,), (5,))
    del tensor
    gc.collect()
    assert seen() is not None
    again()
    again()
    assert len(calls) == 2
    assert calls[0] == (3, 1, 1, 7, "before", address, 5, 8)
    del again
    gc.collect()
    assert seen() is None
