"""Chunked points equal all points in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.errors import InputError, MemoryLimitError

pytest.importorskip("dask.array", reason="Dask is not installed")

import dask
import dask.array as da

import permutohedral.dask as phd
from permutohedral.dask import workers

DRAW = np.random.default_rng(0)
FEATURES = (4 * DRAW.random((900, 3))).astype(np.float32)
VALUES = DRAW.random((900, 2)).astype(np.float32)


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def chunked(array: np.ndarray, chunk: int) -> Any:
    return da.from_array(array, chunks=(chunk, 1))


@pytest.mark.parametrize("chunk", [900, 450, 130, 30])
def test_any_chunks_equal_the_call_in_memory(chunk: int) -> None:
    found = phd.gaussian_filter(chunked(VALUES, 200), chunked(FEATURES, chunk)).compute()
    expected = ph.gaussian_filter(torch.from_numpy(VALUES), torch.from_numpy(FEATURES)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_errors_name_chunk_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = FEATURES.copy()
    wrong[207, 1] = np.nan
    with pytest.raises(InputError, match="features are not finite in row 7 of chunk 2"):
        phd.gaussian_filter(chunked(VALUES, 100), chunked(wrong, 100)).compute()
    with pytest.raises(InputError, match="values have 900 points, but features have 899"):
        phd.gaussian_filter(chunked(VALUES, 100), chunked(FEATURES[:899], 100))
    with pytest.raises(InputError, match="Dask array"):
        phd.gaussian_filter(chunked(VALUES, 100), cast(Any, FEATURES))
    with pytest.raises(InputError, match="values are float64, but features are float32"):
        phd.gaussian_filter(chunked(VALUES.astype(np.float64), 100), chunked(FEATURES, 100))
    monkeypatch.setattr(workers, "_worker_limit", lambda: 10_000)
    with pytest.raises(MemoryLimitError, match="use larger bandwidths"):
        phd.gaussian_filter(chunked(VALUES, 100), chunked(FEATURES, 100))
    monkeypatch.setattr(workers, "worker_memory", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="rechunk to at most"):
        phd.gaussian_filter(chunked(VALUES, 100), chunked(FEATURES, 100))
