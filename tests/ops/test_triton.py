"""When the Triton backend is chosen, and how it waits for what the GPU reports."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType

import pytest
import torch
from support import assert_close

import permutohedral as ph
from permutohedral.ops import dispatch


def test_interpreted_kernels_are_never_chosen_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dispatch.choose_backend("cpu").name != "triton"


def test_without_a_gpu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    triton = next(backend for backend in dispatch._BACKENDS if backend.name == "triton")
    assert "not on device 'cpu'" in str(triton.why_not_on("cpu"))
    assert triton.why_not_on("cuda") is None


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
    module = importlib.import_module("permutohedral.ops.triton.build.host_report")
    monkeypatch.setattr(module, "_EAGER_LOOKS", 3)
    monkeypatch.setattr(module, "_LOOKS_PER_QUESTION", 5)
    return module


class FakeStream:
    def __init__(self, finished: bool) -> None:
        self.query = lambda: finished


def test_waits_for_all_words_of_a_report(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(finished=False))
    with report.HostReport(torch.device("cpu")) as written:
        written.words[:3] = torch.tensor([7, 0, 0])
        writer = threading.Timer(0.05, lambda: written.words[3].fill_(9))
        writer.start()
        assert written.read() == (7, 0, 0, 9)
        writer.join()


def test_raises_if_the_gpu_ends_without_a_report(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(finished=True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with report.HostReport(torch.device("cpu")) as written, pytest.raises(RuntimeError, match="without reporting"):
        written.read()


def test_forgets_the_previous_report(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(finished=True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with report.HostReport(torch.device("cpu")) as written:
        written.words.zero_()
        written.read()
    with report.HostReport(torch.device("cpu")) as written, pytest.raises(RuntimeError, match="without reporting"):
        written.read()
