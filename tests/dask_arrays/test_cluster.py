"""Worker processes: results do not depend on them, nor on one that is killed; losing all of them raises."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
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
from dask.delayed import delayed
from dask.system import CPU_COUNT
from distributed import Client, wait

import permutohedral.dask as phd
from permutohedral.apps import filter_array
from permutohedral.apps.jobs.tasks import TaskPool
from permutohedral.errors import BackendUnavailable, InputError

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with phd.start_workers(workers=1, memory="1GiB") as started:
        yield started


def test_dashboard_is_local(client: Any) -> None:
    assert client.cluster.scheduler.http_server._sockets
    for listener in client.cluster.scheduler.http_server._sockets.values():
        assert listener.getsockname()[0] == "127.0.0.1"


def test_workers_print_nothing(client: Any) -> None:
    """Dask warns when a worker uses most of its memory, as planned, and loses the scheduler at the end."""
    [level] = client.run(lambda: logging.getLogger("distributed").level).values()
    assert level == logging.CRITICAL


def test_ctrl_c_does_not_end_workers(client: Any) -> None:
    """The terminal sends it to all processes, and the command ends its workers in order."""
    [worker] = client.run(os.getpid).values()
    os.kill(worker, signal.SIGINT)
    assert client.submit(os.getpid, pure=False).result(timeout=60) == worker


# prints the level of Dask's messages, and presses Ctrl-C, when the first worker is about to start
INTERRUPTED_START = """
import logging, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from distributed.process import AsyncProcess
start = AsyncProcess.start

def interrupt(self):
    print(logging.getLogger("distributed").handlers[0].level)
    os.killpg(0, signal.SIGINT)
    return start(self)

AsyncProcess.start = interrupt
from permutohedral.__main__ import main
main()
"""


def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "in.zarr"), shape=(8, 20, 20), dtype="float32")[...] = 1
    command = ["array", "filter", "in.zarr", "out.zarr", "--axes", "ZYX", "--sigma-space", "1", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START, *command],
        capture_output=True, text=True, cwd=tmp_path, start_new_session=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "interrupted; the same command with --resume continues\n")
    assert int(done.stdout) == logging.ERROR
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.zarr"]


# presses Ctrl-C while zarr reads the first tile
INTERRUPTED_READ = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from permutohedral.apps.io.arrays import ArraySource
read = ArraySource.read

def interrupt(self, region):
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    return read(self, region)

ArraySource.read = interrupt
from permutohedral.__main__ import main
main()
"""


def test_ctrl_c_while_zarr_reads(tmp_path: Path) -> None:
    """The event loop of zarr would print the chunks that were not read."""
    array = zarr.create_array(str(tmp_path / "in.zarr"), shape=(12, 48, 48), chunks=(1, 4, 4), dtype="float32")
    array[...] = 1
    command = ["array", "filter", "in.zarr", "out.zarr", "--axes", "ZYX", "--sigma-space", "1"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_READ, *command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; the same command with --resume continues\n")


UNGUARDED_SCRIPTS = {
    "dask": """
import permutohedral.dask as phd
with phd.start_workers(workers=1, memory="1GiB"):
    pass
""",
    "files": """
from permutohedral.apps import filter_array
filter_array("in.zarr", "out.zarr", sigma_space=1, sigma_color=0.1, axes="ZYX", workers=1)
""",
}


@pytest.mark.parametrize("name", UNGUARDED_SCRIPTS)
def test_scripts_without_a_guard(name: str, tmp_path: Path) -> None:
    """Workers import the script, which would start workers again, or find that its output is locked."""
    zarr.create_array(str(tmp_path / "in.zarr"), shape=(8, 20, 20), dtype="float32")[...] = 1
    (tmp_path / "script.py").write_text(UNGUARDED_SCRIPTS[name])
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert done.returncode == 1
    assert len(errors) == 2, done.stderr
    guard = """under 'if __name__ == "__main__":'"""
    assert "InputError: workers import the main script, " in errors[0]
    assert "InputError: workers did not start: " in errors[1]
    assert all(guard in error for error in errors)
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".py", ".zarr")] == []


@pytest.mark.parametrize("memory", ["100MiB", "350MiB", 400 << 20, None])
def test_rejects_memory_with_which_workers_would_pause(
    memory: str | int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask pauses a worker above 80 % of its limit, and the package alone takes more than 300 MiB."""
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", CPU_COUNT * (500 << 20))
    given = "an equal share of 500 MiB" if memory is None else memory
    message = f"memory is {given}, but a worker needs 512 MiB; pass 1GiB or so"
    with pytest.raises(InputError, match=message), phd.start_workers(1, memory):
        pass


def filters() -> tuple[da.Array, da.Array]:
    """Filter seeded points, and an image."""
    draw = np.random.default_rng(0)
    features, values = (4 * draw.random((600, 2))).astype(np.float32), draw.random((600, 1)).astype(np.float32)
    smoothed = phd.gaussian_filter(da.from_array(values, chunks=(60, 1)), da.from_array(features, chunks=(60, 2)))
    image = da.from_array(draw.random((60, 60)).astype(np.float32), chunks=20)
    return smoothed, phd.bilateral_filter(image, sigma_space=1.0, sigma_color=0.3)


def surroundings() -> tuple[dict[str, str], int]:
    """Return the environment of a worker, and the megabytes that the core keeps."""
    from permutohedral import _native

    return dict(os.environ), _native.kept_memory() >> 20


def test_same_bits_without_workers_and_after_a_kill(client: Any) -> None:
    with dask.config.set(scheduler="synchronous"):
        expected = [np.asarray(array) for array in filters()]
    smoothed, filtered = filters()
    kept = client.persist(smoothed)
    wait(kept)
    [worker] = client.run(os.getpid).values()
    os.kill(worker, signal.SIGKILL)
    np.testing.assert_array_equal(np.asarray(kept), expected[0])
    np.testing.assert_array_equal(np.asarray(filtered), expected[1])
    # of the restarted worker
    [(environment, megabytes)] = client.run(surroundings).values()
    assert environment["OMP_NUM_THREADS"] == environment["MALLOC_ARENA_MAX"] == "1"
    # set by Dask
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert megabytes <= 416


@pytest.mark.parametrize("workers", [2, 4])
def test_same_bits_on_several_workers(workers: int) -> None:
    """Threads start faster than processes."""
    with dask.config.set(scheduler="synchronous"):
        expected = [np.asarray(array) for array in filters()]
    cluster = {"processes": False, "n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with Client(**cluster, set_as_default=True):
        for found, wanted in zip(filters(), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)


def test_filters_files_on_a_cluster(client: Any, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "in.zarr"), shape=(8, 20, 20), dtype="float32")[...] = 1
    address = client.scheduler.address
    filter_array(tmp_path / "in.zarr", tmp_path / "out.zarr", sigma_space=1, sigma_color=0.1, scheduler=address)
    assert np.allclose(np.asarray(zarr.open_array(str(tmp_path / "out.zarr"))[...]), 1)


def test_losing_all_workers_raises(client: Any) -> None:
    """The limit is 240 seconds, here one."""
    assert client.cluster.scheduler.no_workers_timeout == 240
    client.cluster.scheduler.no_workers_timeout = 1.0
    client.cluster.scale(0)
    # workers leave in the background, and could compute something before
    deadline = time.monotonic() + 60
    while client.cluster.scheduler.workers and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(BackendUnavailable, match="all workers were lost"):
        list(TaskPool(client).run([delayed(abs)(1), delayed(abs)(2)]))


def test_settings_of_dask_are_restored() -> None:
    before = dask.config.get("distributed")
    with phd.start_workers(workers=1, memory="1GiB"):
        assert dask.config.get("distributed.deploy.lost-worker-timeout") == "120s"
    assert dask.config.get("distributed") == before
