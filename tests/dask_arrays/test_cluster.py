"""Real workers: results do not depend on them, or on one that is killed; that all are lost is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed")
pytest.importorskip("zarr", reason="zarr is not installed")

import dask
import dask.array as da
import zarr
from distributed import Client, LocalCluster, wait
from typer.testing import CliRunner

import permutohedral.dask as phd
from permutohedral.arrays.workers import Workers
from permutohedral.cli.application import application
from permutohedral.errors import BackendUnavailable


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with phd.start_workers(workers=1, memory="1GiB") as started:
        yield started


def test_the_dashboard_is_for_this_machine_alone(client: Any) -> None:
    assert client.cluster.scheduler.http_server._sockets
    for listener in client.cluster.scheduler.http_server._sockets.values():
        assert listener.getsockname()[0] == "127.0.0.1"


def filters() -> tuple[da.Array, da.Array]:
    """A filter of seeded points, and of a picture."""
    draw = np.random.default_rng(0)
    features, values = (4 * draw.random((600, 2))).astype(np.float32), draw.random((600, 1)).astype(np.float32)
    smoothed = phd.gaussian_filter(da.from_array(values, chunks=(60, 1)), da.from_array(features, chunks=(60, 2)))
    picture = da.from_array(draw.random((60, 60)).astype(np.float32), chunks=20)
    return smoothed, phd.bilateral_filter(picture, 1.0, 0.3)


def surroundings() -> tuple[dict[str, str], int]:
    """Of a worker: its environment, and the megabytes that the core may keep."""
    from permutohedral import _native

    return dict(os.environ), _native.kept_memory() >> 20


def test_the_same_bits_without_workers_and_after_one_was_killed(client: Any) -> None:
    with dask.config.set(scheduler="synchronous"):
        expected = [np.asarray(array) for array in filters()]
    smoothed, filtered = filters()
    kept = client.persist(smoothed)
    wait(kept)
    [worker] = client.run(os.getpid).values()
    os.kill(worker, signal.SIGKILL)
    np.testing.assert_array_equal(np.asarray(kept), expected[0])
    np.testing.assert_array_equal(np.asarray(filtered), expected[1])
    [(environment, megabytes)] = client.run(surroundings).values()
    assert environment["OMP_NUM_THREADS"] == environment["MALLOC_ARENA_MAX"] == "1"
    # what Dask sets by itself
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert megabytes <= 416


def test_the_settings_of_the_user_stay(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the workers are not for the cluster that the user starts next."""
    assert "MALLOC_ARENA_MAX" not in dask.config.get("distributed.nanny.pre-spawn-environ")
    assert dask.config.get("distributed.scheduler.no-workers-timeout") is None
    assert dask.config.get("distributed.deploy.lost-worker-timeout") == "15s"
    assert client.cluster.scheduler.no_workers_timeout <= 300
    given: list[Any] = []

    def lose(*_: object) -> None:
        given.append(dask.config.get("distributed.deploy.lost-worker-timeout"))

    monkeypatch.setattr(LocalCluster, "_update_worker_status", lose)
    client.cluster._update_worker_status("remove", "a worker")
    assert min(given) >= 60


@pytest.mark.parametrize("workers", [2, 4])
def test_the_same_bits_on_several_workers(workers: int) -> None:
    """In threads, so that they start at once; who does what differs as much."""
    with dask.config.set(scheduler="synchronous"):
        expected = [np.asarray(array) for array in filters()]
    cluster = {"processes": False, "n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with Client(**cluster, set_as_default=True):
        for found, wanted in zip(filters(), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)


def test_the_command_on_a_cluster(client: Any, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "in.zarr"), shape=(8, 20, 20), dtype="float32")[...] = 1
    files = str(tmp_path / "in.zarr"), str(tmp_path / "out.zarr")
    options = ["--sigma-space", "1", "--scheduler", client.scheduler.address]
    result = CliRunner().invoke(application, ["filter", *files, *options])
    assert result.exit_code == 0, result.output
    assert np.allclose(np.asarray(zarr.open_array(files[1])[...]), 1)


def test_that_all_workers_are_lost_is_an_error(client: Any) -> None:
    """After four minutes, as the start of workers says; here after one second."""
    client.cluster.scheduler.no_workers_timeout = 1.0
    client.cluster.scale(0)
    with Workers(scheduler=client.scheduler.address) as running, pytest.raises(BackendUnavailable, match="--resume"):
        running.run(abs, [1, 2], "counting")
