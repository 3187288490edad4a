"""The native backend gives the same bits on any number of threads, and works in forked and threaded programs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import dispatch
from permutohedral.ops.backend import Backend
from permutohedral.ops.constants import axis_offsets

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
pytestmark = pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")

THREADS = [2, 3, 7]


@pytest.fixture
def native() -> Backend:
    from permutohedral.ops.native import BACKEND as backend

    return backend


@pytest.fixture(autouse=True)
def threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run_all(native: Backend, features: Tensor, channels: int, dtype: torch.dtype) -> list[Tensor]:
    """Every primitive once, on inputs that are the same in every call."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    points, d = features.shape
    batch = (torch.arange(points) * 3 // points).to(torch.int32)
    keys, vertices, barycentric, table = native.index_points(features, batch)
    neighborhood = Neighborhood(d, 1)
    neighbors = native.find_neighbors(keys, table, keys, neighborhood.offsets())
    axes = native.find_neighbors(keys, table, keys, axis_offsets(d))
    splatted = native.splat(random(points, channels), vertices, barycentric, len(keys))
    weight = random(neighborhood.filter_size, channels, 5)
    convolved = native.convolve(splatted, weight, neighbors, 1)
    grouped = native.convolve(splatted, random(neighborhood.filter_size, 1, channels), neighbors, channels)
    return [
        *(keys, vertices, barycentric, table, neighbors, axes, splatted, convolved, grouped),
        *native.index_keys(keys.repeat(2, 1)),
        native.transpose_neighbors(neighbors, neighborhood.opposite(), len(keys)),
        native.slice(convolved, vertices, barycentric),
        native.blur(splatted, axes, False),
        native.filter_gaussian(random(points, channels), vertices, barycentric, axes, vertices, barycentric),
        native.barycentric_gradient(random(points, channels), splatted, vertices),
        native.convolve_weight_gradient(splatted, convolved, neighbors, 1),
        native.convolve_weight_gradient(splatted, grouped, neighbors, channels),
        native.embed_gradient(features, random(points, d + 1)),
    ]


# many channels are shared among the threads where the points are in no order, few never
@pytest.mark.parametrize(("channels", "order"), [(1, "scan"), (1, "random"), (32, "scan"), (19, "random")])
def test_same_bits_on_any_number_of_threads(native: Backend, dtype: torch.dtype, channels: int, order: str) -> None:
    points = 70_001
    if order == "scan":
        row = torch.arange(points)
        features = torch.stack([row % 300, row // 300, (row * 7919) % 11], dim=1).to(dtype) / 3
    else:
        features = torch.randn(points, 3, generator=torch.Generator().manual_seed(1), dtype=dtype) * 5
    torch.set_num_threads(1)
    expected = run_all(native, features, channels, dtype)
    for threads in THREADS:
        torch.set_num_threads(threads)
        for number, (actual, alone) in enumerate(
            zip(run_all(native, features, channels, dtype), expected, strict=True)
        ):
            assert torch.equal(actual, alone), f"result {number} differs on {threads} threads"


def _index_in_child(features: Tensor, queue: multiprocessing.Queue[tuple[int, float]]) -> None:
    from permutohedral.ops.native import BACKEND as native

    # torch's own threads hang in a forked child, so nothing here may start them: sums by NumPy
    torch.set_num_threads(2)
    keys, vertices, barycentric, _ = native.index_points(features, None)
    splatted = native.splat(features, vertices, barycentric, len(keys))
    queue.put((len(keys), float(splatted.numpy().sum())))


def test_forked_children_of_a_threaded_parent(native: Backend) -> None:
    """As the workers of a data loader: a fork must neither hang nor need the threads of its parent."""
    torch.set_num_threads(2)
    features = torch.randn(60_000, 3, dtype=torch.float64) * 4
    keys, vertices, barycentric, _ = native.index_points(features, None)
    expected = float(native.splat(features, vertices, barycentric, len(keys)).numpy().sum())
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        queue: multiprocessing.Queue[tuple[int, float]] = context.Queue()
        children = [context.Process(target=_index_in_child, args=(features, queue), daemon=True) for _ in range(2)]
        for child in children:
            child.start()
        try:
            assert [queue.get(timeout=60) for _ in children] == [(len(keys), expected)] * 2
        finally:
            for child in children:
                child.join(timeout=10)
                child.kill()
    # and the parent goes on
    assert torch.equal(native.index_points(features, None)[0], keys)


def test_calls_from_several_python_threads(native: Backend) -> None:
    torch.set_num_threads(2)
    inputs = [torch.randn(40_000, 3, generator=torch.Generator().manual_seed(i)) * 4 for i in range(8)]
    expected = [native.index_points(features, None)[:3] for features in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = pool.map(lambda features: native.index_points(features, None)[:3], inputs)
            for actual, alone in zip(found, expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(actual, alone, strict=True))


def test_the_interpreter_runs_on_meanwhile(native: Backend) -> None:
    """The core releases the interpreter's lock: another thread makes progress during one long call."""
    features = torch.randn(1_500_000, 5) * 4
    ticks: list[int] = []
    stop, begun = threading.Event(), threading.Event()

    def tick() -> None:
        begun.set()
        while not stop.wait(0.001):
            ticks.append(len(ticks))

    ticker = threading.Thread(target=tick)
    ticker.start()
    begun.wait()
    most = 0
    # on a busy machine the other thread may not run during one call; with the lock held it never ticks twice
    for _ in range(10):
        before = len(ticks)
        native.index_points(features, None)
        most = max(most, len(ticks) - before)
        if most > 5:
            break
    stop.set()
    ticker.join()
    assert most > 5


_STARTED_THREADS = """
import os, torch
from permutohedral.ops.native import BACKEND as native
torch.set_num_threads(4)
features = torch.zeros(100_000, 3)
before = len(os.listdir("/proc/self/task"))
native.index_points(features, None)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads in /proc")
@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("3", 3), ("8", 4)])
def test_environment_variable_limits_the_threads(limit: str, threads: int) -> None:
    """Worker processes share the cores by it, also those of `torch.multiprocessing.spawn`, which sets no other."""
    environment = {**os.environ, "PERMUTOHEDRAL_NUM_THREADS": limit}
    command = [sys.executable, "-c", _STARTED_THREADS]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == threads - 1


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)
def test_control_groups_limit_the_threads(
    files: dict[str, str], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from permutohedral.ops.native.bridge import thread_limit

    monkeypatch.delenv("PERMUTOHEDRAL_NUM_THREADS", raising=False)
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert thread_limit(str(tmp_path)) == limit
    monkeypatch.setenv("PERMUTOHEDRAL_NUM_THREADS", "5")
    assert thread_limit(str(tmp_path)) == 5
    monkeypatch.setenv("PERMUTOHEDRAL_NUM_THREADS", "all")
    with pytest.raises(InputError, match="positive number of threads"):
        thread_limit(str(tmp_path))
