"""The encoding in the compiled core, on each instruction set and number of threads, against the reference."""

from __future__ import annotations

import pytest
import torch
from support import assert_close

import permutohedral as ph
from permutohedral.ops import reference
from permutohedral.ops.backend import Backend


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 6, 16])
def test_encoding(
    native: Backend, dimension: int, channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more points than a task takes; the bits do not depend on the number of threads."""
    table_size = 60 if dimension == 2 else 64
    layer = ph.nn.PermutohedralEncoding(dimension, 3, channels, table_size, sigmas=[1.0, 0.5, 0.2], dtype=dtype)
    positions, directions = torch.rand(2, 301, dimension, dtype=dtype)
    table, gradient = torch.randn_like(layer.table), torch.randn(301, 3 * channels, dtype=dtype)
    plan = layer.transforms, layer.strides
    for along in (None, directions):
        results = []
        for threads in (1, 3):
            monkeypatch.setattr("permutohedral.ops.native.bridge.threads", lambda work, threads=threads: threads)
            features = native.encode(positions, along, table, *plan)
            results.append((features, *native.encode_backward(positions, along, table, gradient, *plan, True, True)))
        expected = (
            reference.encode(positions, along, table, *plan),
            *reference.encode_backward(positions, along, table, gradient, *plan, True, True),
        )
        for one, other, truth in zip(*results, expected, strict=True):
            assert torch.equal(one, other)
            assert_close(one, truth)
