"""Real workers: results do not depend on their number, or on one that is killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

import dask.array as da
import zarr
from distributed import wait

import permutohedral.dask as phd


def digest(client: Any, kill: bool) -> bytes:
    """The bytes of a filter of seeded points and of a picture."""
    draw = np.random.default_rng(0)
    features, values = (4 * draw.random((600, 2))).astype(np.float32), draw.random((600, 1)).astype(np.float32)
    smoothed = phd.gaussian_filter(da.from_array(values, chunks=(60, 1)), da.from_array(features, chunks=(60, 2)))
    picture = da.from_array(draw.random((60, 60)).astype(np.float32), chunks=20)
    kept = client.persist(smoothed)
    if kill:
        wait(kept)
        [worker] = client.run(os.getpid).values()
        os.kill(worker, signal.SIGKILL)
    filtered = phd.bilateral_filter(picture, 1.0, 0.3)
    return np.asarray(kept).tobytes() + np.asarray(filtered).tobytes()


def test_the_same_bits_after_a_worker_was_killed(tmp_path: Any) -> None:
    with phd.start_workers(workers=1, memory="1GiB") as client:
        undisturbed = digest(client, kill=False)
        assert digest(client, kill=True) == undisturbed
        volume = da.ones((8, 20, 20), chunks=10)
        phd.bilateral_filter(volume, 1.0, 0.1, axes="ZYX").to_zarr(str(tmp_path / "out.zarr"))
        assert np.allclose(zarr.open_array(str(tmp_path / "out.zarr"))[:], 1)
        assert client.run(lambda: os.environ["OMP_NUM_THREADS"]).popitem()[1] == "1"
