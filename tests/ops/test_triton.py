"""How kernels are started, and all of them in Triton's interpreter: that must be chosen before, in another process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import assert_close

import permutohedral as ph
from permutohedral.ops import dispatch

ROOT = Path(__file__).parents[2]
INTERPRETED = os.environ | {"TRITON_INTERPRET": "1", "PERMUTOHEDRAL_TEST_DEVICE": "cpu"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, *command]
    return subprocess.run(arguments, env=INTERPRETED, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_in_the_interpreter() -> None:
    probe = run(str(Path(__file__).with_name("interpreted_loop.py")))
    if probe.returncode:
        versions = f"Triton {version('triton')} with NumPy {version('numpy')}"
        pytest.skip(f"{versions} cannot interpret a loop: {probe.stderr.strip().splitlines()[-1]}")
    scripts = [str(Path(__file__).with_name(f"interpreted_{name}.py")) for name in ("kernels", "recordings", "halves")]
    result = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *scripts)
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


class FakeKernel:
    """Stands for a kernel and for what it was compiled to; notes how it is called."""

    arg_names = ("pointer", "other", "size", "BLOCK")
    function, packed_metadata = 7, "metadata"

    def __init__(self, takes_addresses: bool = True) -> None:
        self.takes_addresses = takes_addresses
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., FakeKernel]:
        def call(*arguments: object, **meta: object) -> FakeKernel:
            self.calls.append(("handled", (grid, *arguments, *meta.values())))
            return self

        return call

    def run(self, *arguments: object) -> None:
        if not self.takes_addresses:
            raise TypeError("other arguments")
        self.calls.append(("direct", arguments))


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The launcher as on a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    launcher = importlib.import_module("permutohedral.ops.triton.launch")
    monkeypatch.setattr(launcher._Direct, "works", True)
    monkeypatch.setattr(launcher._Direct, "compiled", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)
    return launcher


def test_a_kernel_is_started_directly_from_the_second_time_on(direct: ModuleType) -> None:
    kernel, tensor = FakeKernel(), torch.zeros(64)
    for size in (3, 5):
        direct.launch(kernel, (4, 2), tensor, None, size, BLOCK=64, num_warps=1)
    assert kernel.calls == [
        ("handled", ((4, 2), tensor, None, 3, 64, 1)),
        ("direct", (4, 2, 1, 99, 7, "metadata", None, None, None, tensor.data_ptr(), None, 5, 64)),
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: (tensor.double(), None, 3, 64),
        lambda tensor: (tensor, tensor, 3, 64),
        lambda tensor: (tensor, None, 3, 128),
        # not aligned, and too large for 32 bits
        lambda tensor: (tensor[1:], None, 3, 64),
        lambda tensor: (tensor, None, 2**31, 64),
    ],
    ids=["dtype", "none", "constant", "alignment", "size"],
)
def test_what_was_compiled_for_something_else_is_not_started(
    direct: ModuleType, change: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None, int, int]]
) -> None:
    kernel, tensor = FakeKernel(), torch.zeros(64)
    direct.launch(kernel, (1,), tensor, None, 3, BLOCK=64)
    *arguments, block = change(tensor)
    direct.launch(kernel, (1,), *arguments, BLOCK=block)
    assert [how for how, _ in kernel.calls] == ["handled", "handled"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_recording_starts_kernels_with_other_addresses(direct: ModuleType, apart: bool) -> None:
    replay = importlib.import_module("permutohedral.ops.triton.replay")
    kernel, (first, second) = FakeKernel(), torch.zeros(2, 64).unbind()

    def run() -> tuple[torch.Tensor, ...]:
        between, numbers = torch.zeros(160), torch.zeros(8, dtype=torch.int64)
        direct.launch(kernel, (4, 2), first[4:], between, 3, BLOCK=64)
        direct.launch(kernel, (1,), between[8:], numbers, 5, BLOCK=64)
        return between[16:32].view(4, 4), numbers

    replay.record(("a key of this test", apart), run, first, apart=apart)
    recording = replay.find_recording(("a key of this test", apart))
    storages = recording.repeat(second)
    assert [storage.dtype for storage in storages] == ([torch.float32, torch.int64] if apart else [torch.int32])
    begin = storages[0].data_ptr()
    last = storages[1].data_ptr() if apart else begin + 1024
    shared = (99, 7, "metadata", None, None, None)
    assert kernel.calls[-2:] == [
        ("direct", (4, 2, 1, *shared, second.data_ptr() + 16, begin, 3, 64)),
        ("direct", (1, 1, 1, *shared, begin + 32, last, 5, 64)),
    ]
    tile, numbers = recording.results(storages)
    assert (tile.data_ptr(), tile.shape, tile.dtype) == (begin + 64, (4, 4), torch.float32)
    assert (numbers.data_ptr(), numbers.shape, numbers.dtype) == (last, (8,), torch.int64)
    # what is not aligned is started as documented
    recording.repeat(torch.zeros(65)[1:])
    assert [how for how, _ in kernel.calls[-2:]] == ["handled", "direct"]


def test_a_version_of_triton_that_takes_other_arguments_is_used_as_documented(direct: ModuleType) -> None:
    kernel, tensor = FakeKernel(takes_addresses=False), torch.zeros(64)
    for _ in range(3):
        direct.launch(kernel, (1,), tensor, None, 3, BLOCK=64)
    assert [how for how, _ in kernel.calls] == ["handled"] * 3


def test_recordings_of_such_a_version_are_repeated_as_documented(direct: ModuleType) -> None:
    replay = importlib.import_module("permutohedral.ops.triton.replay")
    kernel, tensor = FakeKernel(takes_addresses=False), torch.zeros(64)

    def run() -> tuple[torch.Tensor, ...]:
        direct.launch(kernel, (1,), tensor, None, 3, BLOCK=64)
        return ()

    replay.record("another key", run, tensor)
    for _ in range(2):
        replay.find_recording("another key").repeat(torch.ones(64))
    assert [how for how, _ in kernel.calls] == ["handled"] * 3
    assert not direct._Direct.works


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_tensor_runs_on_its_own_gpu() -> None:
    generator = torch.Generator().manual_seed(0)
    features, values = 5 * torch.rand(500, 3, generator=generator), torch.rand(500, 2, generator=generator)
    expected = ph.gaussian_filter(values.double(), features.double())
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            found = ph.gaussian_filter(values.double().to(device), features.double().to(device))
            assert found.device == torch.device(device)
            assert_close(found, expected)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of reports, soon impatient."""
    pytest.importorskip("triton", reason="Triton is not installed")
    module = importlib.import_module("permutohedral.ops.triton.report")
    monkeypatch.setattr(module, "_EAGER_LOOKS", 3)
    monkeypatch.setattr(module, "_LOOKS_PER_QUESTION", 5)
    return module


class FakeStream:
    def __init__(self, finished: bool) -> None:
        self.query = lambda: finished


def test_a_report_is_read_when_all_of_it_is_there(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(finished=False))
    reports = report.Reports(torch.device("cpu"))
    reports.rows[1][:2] = torch.tensor([7, 8])
    writer = threading.Timer(0.05, lambda: reports.rows[1][2].fill_(9))
    writer.start()
    assert reports.read(1, 3) == [7, 8, 9]
    writer.join()


def test_a_gpu_that_ends_without_a_report_is_an_error(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(finished=True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with pytest.raises(RuntimeError, match="without reporting"):
        report.Reports(torch.device("cpu")).read(0, 5)


def test_reports_are_used_again_unless_they_were_abandoned(report: ModuleType) -> None:
    device = torch.device("cpu")
    first = report.reports_on(device)
    first.rows[0].fill_(5)
    assert report.reports_on(device) is first
    # what was reported before is forgotten
    assert int(first.rows[0].max()) == report._PENDING
    report.abandon_reports()
    assert report.reports_on(device) is not first
