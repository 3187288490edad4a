"""What is recorded once and repeated on other tensors, in Triton's interpreter; run by `test_triton.py`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support import assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.functional import Normalization
from permutohedral.ops import fused
from permutohedral.ops import triton as kernels
from permutohedral.ops.dispatch import use_backend
from permutohedral.ops.triton import from_features, gaussian, lattice, replay

pytestmark = pytest.mark.usefixtures("not_deterministic")

# what a recorded function may ask of torch: memory, and other views of it
HARMLESS = (
    "empty",
    "new_empty",
    "new_empty_strided",
    "empty_like",
    "view",
    "as_strided",
    "slice",
    "select",
    "transpose",
    "alias",
)


class OnlyLaunches(TorchDispatchMode):
    """Refuses whatever would not be repeated."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name in HARMLESS, f"{name} would not be repeated"
        return func(*args, **kwargs or {})


class Recorder:
    """Counts recordings and repetitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded = self.repeated = 0
        record, repeat = replay.record, replay.Recording.repeat

        def count_record(*arguments: Any, **options: Any) -> tuple[Tensor, ...]:
            self.recorded += 1
            return record(*arguments, **options)

        def count_repeat(recording: replay.Recording, *given: Tensor) -> list[Tensor]:
            self.repeated += 1
            return repeat(recording, *given)

        for module in (from_features, gaussian, lattice):
            monkeypatch.setattr(module, "record", count_record)
        monkeypatch.setattr(replay.Recording, "repeat", count_repeat)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(lattice, "_sizes", {})
    monkeypatch.setattr(replay, "_recordings", {})
    monkeypatch.setattr(from_features, "_filters", {})
    monkeypatch.setattr(from_features, "_too_wide", set())
    return Recorder(monkeypatch)


def test_every_gaussian_after_the_first_three_is_repeated(counted: Recorder) -> None:
    """Step by step, then with more rows than lattice points, then with hardly more as there were as many twice."""
    features = torch.randn(2, 30, 2, dtype=torch.float64)
    for _ in range(5):
        # other points, and as many lattice points as foreseen
        features, values = features.flip(1).contiguous(), torch.randn(2, 30, 3, dtype=torch.float64)
        with use_backend("triton"):
            found = ph.gaussian_filter(values, features)
        with use_backend("reference"):
            assert_close(found, ph.gaussian_filter(values, features))
    assert (counted.recorded, counted.repeated) == (2, 2)


def test_a_lattice_is_recorded_and_repeated(counted: Recorder) -> None:
    features = 3 * torch.randn(40, 2, dtype=torch.float64)
    batch = torch.randint(0, 3, (40,), dtype=torch.int32)
    expected, first, *others = (kernels.index_points(features.clone(), batch) for _ in range(5))
    assert (counted.recorded, counted.repeated) == (2, 2)
    for found in (first, *others):
        # rows are numbered anew
        assert torch.equal(found[0][found[1].long()], expected[0][expected[1].long()])
        assert torch.equal(found[2], expected[2])
        offsets = torch.tensor([[1, 1], [-1, -1]], dtype=torch.int32)
        neighbors = kernels.find_neighbors(found[0], found[3], found[0], offsets)
        same = kernels.find_neighbors(expected[0], expected[3], found[0], offsets)
        assert torch.equal(neighbors >= 0, same >= 0)


def test_a_repeated_lattice_is_saved(counted: Recorder, tmp_path: Path) -> None:
    """torch does not save tensors of different dtypes that share memory."""
    features, values = 3 * torch.randn(40, 2), torch.randn(40, 1)
    with use_backend("triton"):
        for _ in range(4):
            built = ph.build_lattice(features)
        assert counted.repeated == 1
        torch.save(built, tmp_path / "lattice.pt")
        loaded = torch.load(tmp_path / "lattice.pt", weights_only=False)
        for other in (loaded, pickle.loads(pickle.dumps(built))):
            assert_close(ph.splat(values, other), ph.splat(values, built))


@dataclass(frozen=True)
class Case:
    """A layer, and what is asked of it."""

    channels: tuple[int, int]
    dtype: torch.dtype = torch.float64
    normalization: Normalization = "density"
    groups: int = 1
    targets: bool = True
    gradient: bool = False
    batched: bool = True


CASES = [
    Case((2, 4)),
    Case((2, 4), normalization="none", groups=2, gradient=True),
    Case((1, 3), torch.float32, targets=False, gradient=True, batched=False),
    Case((3, 2), targets=False),
    Case((9, 3), torch.float16, batched=False),
    # on the matrix units, whose backward pass is not recorded
    Case((16, 24), torch.float32),
    Case((8, 16), torch.float16, gradient=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_filter_of_features(case: Case, counted: Recorder) -> None:
    """Step by step the first time, recorded twice, repeated then: the same result and derivatives."""
    channels, dtype, targets, gradient = case.channels, case.dtype, case.targets, case.gradient
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    items = (2,) if case.batched else ()
    features = 3 * torch.randn(*items, 30, 2, dtype=exact)
    at = 2 * torch.randn(*items, 20, 2, dtype=exact) if targets else None
    layer = ph.nn.PermutohedralConvolution(*channels, 2, 1, case.groups, normalization=case.normalization, dtype=dtype)
    assert layer.bias is not None
    torch.nn.init.normal_(layer.bias)

    def run(backend: str, values: Tensor, upstream: Tensor) -> list[Tensor]:
        leaves = [*layer.parameters(), *([values] if gradient else [])]
        with use_backend(backend):
            output = layer(values, features, at)
            return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]

    for _ in range(5):
        values = torch.randn(*items, 30, channels[0]).to(dtype).requires_grad_(gradient)
        upstream = torch.randn(*items, 20 if targets else 30, channels[1]).to(dtype)
        for found, expected in zip(run("triton", values, upstream), run("reference", values, upstream), strict=True):
            assert_close(found, expected, dtype)
    # forward, and backward of a repeated forward pass
    both = not gradient and channels[0] < 16
    assert counted.recorded == (3 if both else 2)
    assert counted.repeated == (3 if both else 2)


def test_the_filter_of_features_is_differentiated_twice(counted: Recorder) -> None:
    features = 2 * torch.randn(6, 1, dtype=torch.float64)
    layer = ph.nn.PermutohedralConvolution(1, 2, 1, 1, dtype=torch.float64)
    assert layer.bias is not None
    values = torch.randn(6, 1, dtype=torch.float64, requires_grad=True)

    def run(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = {"weight": weight, "bias": bias}
        output: Tensor = torch.func.functional_call(layer, given, (values, features))
        return output.square()

    with use_backend("triton"):
        for _ in range(4):
            run(values, layer.weight, layer.bias)
        assert torch.autograd.gradgradcheck(run, (values, layer.weight, layer.bias), fast_mode=True)
    assert counted.repeated > 0


def test_a_graph_that_is_kept_is_run_back_twice(counted: Recorder) -> None:
    layer, features = ph.nn.PermutohedralConvolution(1, 2, 2, 1), torch.randn(30, 2)
    with use_backend("triton"):
        for _ in range(5):
            output = layer(torch.randn(30, 1), features)
            upstream = torch.randn_like(output)
            first = torch.autograd.grad(output, list(layer.parameters()), upstream, retain_graph=True)
            # once not contiguous
            strided = upstream.T.contiguous().T
            second = torch.autograd.grad(output, list(layer.parameters()), strided)
            for one, other in zip(first, second, strict=True):
                assert_close(one, other)


@pytest.mark.parametrize("scale", [0.01, 1.05, 30.0])
def test_another_lattice_than_foreseen(scale: float, counted: Recorder) -> None:
    layer, features, values = ph.nn.PermutohedralConvolution(1, 2, 2, 1), torch.randn(40, 2), torch.randn(40, 1)
    with use_backend("triton"), torch.no_grad():
        for _ in range(4):
            layer(values, features)
        found = [layer(values, scale * features) for _ in range(3)]
    with use_backend("reference"), torch.no_grad():
        for each in found:
            assert_close(each, layer(values, scale * features))


def test_points_too_far_apart_are_tried_once(counted: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts, start = [], from_features._start

    def count(*given: Any) -> Any:
        attempts.append(given)
        return start(*given)

    monkeypatch.setattr(from_features, "_start", count)
    layer, values = ph.nn.PermutohedralConvolution(1, 2, 7, 0), torch.randn(2, 5, 1)
    features = torch.randn(2, 5, 7)
    with use_backend("triton"), torch.no_grad():
        for scale in (1.0, 1.0, 300.0, 300.0, 300.0):
            found = layer(values, scale * features)
            with use_backend("reference"):
                assert_close(found, layer(values, scale * features))
    # once with the features as they were, once too far apart
    assert len(attempts) == 2
    assert len(from_features._too_wide) == 1


def test_what_is_wrong_is_refused_as_ever(counted: Recorder) -> None:
    layer, features, values = ph.nn.PermutohedralConvolution(1, 2, 2, 0), torch.randn(40, 2), torch.randn(40, 1)
    with use_backend("triton"):
        for _ in range(4):
            layer(values, features)
        broken = features.clone()
        broken[7, 1] = float("nan")
        with pytest.raises(FeatureRangeError):
            layer(values, broken)
        with pytest.raises(InputError, match="2 dimensions"):
            layer(values, torch.randn(40, 3))
        with pytest.raises(InputError, match="values"):
            layer(values[:7], features)
        with pytest.raises(InputError, match="float64"):
            layer(values.double(), features)
        with pytest.raises(InputError, match="as_tensor"):
            layer(values, features.numpy())
        # and nothing is broken by it
        assert_close(layer(values, features), layer(values, lattice=layer.build_lattice(features)))


def test_only_launches_are_recorded(counted: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    record = replay.record

    def record_strictly(
        key: object, run: Callable[[], tuple[Tensor, ...]], *given: Tensor, **options: bool
    ) -> tuple[Tensor, ...]:
        def run_strictly() -> tuple[Tensor, ...]:
            with OnlyLaunches():  # type: ignore[no-untyped-call]
                return run()

        return record(key, run_strictly, *given, **options)

    for module in (from_features, gaussian, lattice):
        monkeypatch.setattr(module, "record", record_strictly)
    # the interpreter itself copies what kernels are given
    monkeypatch.setattr("permutohedral.ops.triton.launch._launch", lambda *unused: None)
    monkeypatch.setattr("permutohedral.ops.triton.report.Reports.read", lambda self, number, size: [3, -1, -1, -1, 0])
    features, values, many = torch.randn(2, 40, 2), torch.randn(2, 40, 3), torch.randn(2, 40, 16)
    layer = ph.nn.PermutohedralConvolution(3, 2, 2, 1)
    wide = ph.nn.PermutohedralConvolution(16, 16, 2, 1)
    with use_backend("triton"):
        for _ in range(5):
            fused.filter_points(values, features, 1e-20)
            kernels.index_points(features[0], None)
            layer(values, features, features.clone()).sum().backward()
            layer(values, features).sum().backward()
            wide(many, features).sum().backward()
    assert len(replay._recordings) >= 6


def test_tensors_that_share_memory_are_not_recorded(counted: Recorder) -> None:
    both = torch.randn(40, 2)
    with use_backend("triton"):
        for _ in range(5):
            found = ph.gaussian_filter(both[:, :2], both)
    with use_backend("reference"):
        assert_close(found, ph.gaussian_filter(both, both))
    assert counted.repeated == 0


def test_tensors_that_begin_anywhere_are_filtered_too(counted: Recorder) -> None:
    layer = ph.nn.PermutohedralConvolution(1, 2, 2, 1)
    memory, values = torch.randn(41, 2), torch.randn(40, 1)
    for features in (*4 * [memory[:40]], memory[1:]):
        with use_backend("triton"), torch.no_grad():
            found = layer(values, features)
        with use_backend("reference"), torch.no_grad():
            assert_close(found, layer(values, features))
    assert counted.repeated
