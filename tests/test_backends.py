"""Choosing a backend, forcing one, and that all of them give the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor, usable_backends
from torch import Tensor

import permutohedral as ph
from permutohedral.functional import GaussianMethod
from permutohedral.ops import dispatch, primitives


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A preferred backend that is there and does not load, and one that is not there."""
    loads = dispatch.Backend("broken", "permutohedral.ops.no_such_module", lambda: None, lambda device: None)
    absent = replace(loads, name="absent", why_unavailable=lambda: "it was left at home")
    elsewhere = replace(loads, name="elsewhere", why_not_on=lambda device: f"it does not run on {device!r}")
    monkeypatch.setattr(dispatch, "_BACKENDS", [absent, elsewhere, loads, *dispatch._BACKENDS])
    yield
    ph.use_backend(None)


def test_the_reference_is_always_there() -> None:
    assert ph.available_backends()[-1] == "reference"
    assert len(set(ph.available_backends())) == len(ph.available_backends())


def test_a_backend_is_forced_inside_a_block_and_restored_after_it(backend: str) -> None:
    tensor = torch.zeros(1, device=DEVICE)
    assert ph.explain_backend(tensor).startswith(f"{backend}: forced")
    with ph.use_backend("reference"):
        assert ph.explain_backend(tensor).startswith("reference: forced")
        with ph.use_backend(None):
            assert "chosen" in ph.explain_backend(tensor).splitlines()[0]
        assert ph.explain_backend(tensor).startswith("reference: forced")
    assert ph.explain_backend(tensor).startswith(f"{backend}: forced")


def test_a_backend_is_restored_after_an_error(backend: str) -> None:
    def fail() -> None:
        with ph.use_backend("reference"):
            ph.build_lattice(torch.zeros(3, device=DEVICE))

    with pytest.raises(ph.InputError):
        fail()
    assert ph.explain_backend(torch.zeros(1, device=DEVICE)).startswith(f"{backend}: forced")


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(ph.InputError, match=r"no backend 'cuda'; choose one of .*'reference'"):
        ph.use_backend("cuda")


@pytest.mark.usefixtures("broken")
def test_a_backend_that_is_not_there_says_why() -> None:
    with pytest.raises(ph.BackendUnavailable, match="'absent' cannot be used: it was left at home"):
        ph.use_backend("absent")
    assert "absent" not in ph.available_backends()
    assert "absent: it was left at home" in ph.explain_backend()


@pytest.mark.usefixtures("broken")
def test_a_backend_that_cannot_run_on_the_device_says_why() -> None:
    with ph.use_backend("elsewhere"), pytest.raises(ph.BackendUnavailable, match=r"'elsewhere'.*does not run on"):
        ph.build_lattice(draw(5, 2))
    assert f"elsewhere: it does not run on {DEVICE.type!r}" in ph.explain_backend(torch.zeros(1, device=DEVICE))


@pytest.mark.usefixtures("broken")
def test_a_broken_backend_raises_and_never_falls_back() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        ph.build_lattice(draw(5, 2))


@pytest.mark.usefixtures("broken")
def test_a_broken_backend_is_not_listed_and_explained() -> None:
    assert "broken" not in ph.available_backends()
    assert "no_such_module" in ph.explain_backend().splitlines()[0]


def test_every_backend_has_every_primitive(backend: str) -> None:
    module = dispatch.choose_backend(DEVICE.type).load()
    wanted = [name for name in vars(primitives.Primitives) if not name.startswith("_")]
    assert len(wanted) >= 12
    for name in wanted:
        assert callable(getattr(module, name))


def test_the_backend_chosen_is_the_one_that_runs(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = dispatch.choose_backend(DEVICE.type).load()
    calls: list[Tensor] = []
    genuine = module.index_points

    def counted(features: Tensor, batch: Tensor | None) -> Any:
        calls.append(features)
        return genuine(features, batch)

    monkeypatch.setattr(module, "index_points", counted)
    ph.build_lattice(draw(5, 2))
    assert len(calls) == 1


def test_another_thread_uses_the_forced_backend(backend: str) -> None:
    """Autograd runs backward passes in threads of its own."""
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(ph.explain_backend(torch.zeros(1, device=DEVICE))))
    thread.start()
    thread.join()
    assert seen[0].startswith(f"{backend}: forced")


def chosen_backend() -> str:
    return ph.explain_backend(torch.zeros(1, device=DEVICE)).split(":")[0]


def test_interleaved_blocks_of_two_threads() -> None:
    """The first opens before the second and closes before it: each sees its own, and nothing is left."""
    by_default, seen = chosen_backend(), {}
    opened, closed = threading.Event(), threading.Event()

    def second() -> None:
        with ph.use_backend(by_default):
            opened.set()
            assert closed.wait(timeout=60)
            seen["inside"] = ph.explain_backend(torch.zeros(1, device=DEVICE)).splitlines()[0]
        seen["after"] = ph.explain_backend(torch.zeros(1, device=DEVICE)).splitlines()[0]

    thread = threading.Thread(target=second)
    with ph.use_backend("reference"):
        thread.start()
        assert opened.wait(timeout=60)
        assert chosen_backend() == "reference"
    closed.set()
    thread.join()
    assert seen["inside"] == f"{by_default}: forced by use_backend"
    assert "chosen for device" in seen["after"]
    assert "chosen for device" in ph.explain_backend(torch.zeros(1, device=DEVICE))


def test_a_call_without_a_block_holds_for_the_process() -> None:
    seen: list[str] = []
    ph.use_backend("reference")
    try:
        thread = threading.Thread(target=lambda: seen.append(chosen_backend()))
        thread.start()
        thread.join()
        with ph.use_backend(None):
            assert "chosen for device" in ph.explain_backend(torch.zeros(1, device=DEVICE))
        assert [*seen, chosen_backend()] == ["reference", "reference"]
    finally:
        ph.use_backend(None)
    assert "chosen for device" in ph.explain_backend(torch.zeros(1, device=DEVICE))


def test_calls_without_a_block_take_no_memory() -> None:
    for _ in range(1000):
        ph.use_backend(None)
    assert len(dispatch._requests) < 100


@pytest.mark.parametrize("elsewhere", [False, True], ids=["after_the_block", "in_another_thread"])
def test_the_backward_pass_uses_the_backend_of_the_forward_pass(
    elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from permutohedral.ops import reference

    calls: list[str] = []
    genuine = reference.slice
    values, features = draw(5, 2).requires_grad_(), draw(5, 2, seed=1)
    with ph.use_backend("reference"):
        result = ph.splat(values, ph.build_lattice(features)).sum()

    def counted(*given: Any) -> Tensor:
        calls.append("slice")
        return genuine(*given)

    monkeypatch.setattr(reference, "slice", counted)
    if elsewhere:
        thread = threading.Thread(target=result.backward)
        thread.start()
        thread.join()
    else:
        result.backward()
    assert calls == ["slice"]


def results_of(values: Tensor, features: Tensor, targets: Tensor, weight: Tensor) -> list[Tensor]:
    return [
        ph.permutohedral_filter(values, features, weight, targets),
        ph.permutohedral_filter(values, features, weight, targets, normalization="symmetric"),
        ph.permutohedral_filter(values, features, weight, normalization="density"),
        ph.gaussian_filter(values, features, targets),
        ph.gaussian_filter(values, features, targets, "none", halo=1),
    ]


def gradients_of(*inputs: Tensor) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    total = torch.zeros((), device=DEVICE, dtype=inputs[0].dtype)
    for result in results_of(*leaves):
        total = total + (result * torch.linspace(-1, 2, result.shape[-1], device=DEVICE)).sum()
    return list(torch.autograd.grad(total, leaves))


@pytest.fixture(params=[name for name in usable_backends() if name != "reference"])
def other_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with ph.use_backend(request.param):
        yield request.param


@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_all_backends_agree_on_scattered_points(dimension: int, dtype: torch.dtype) -> None:
    """On more points than the oracle can take. Gradients in float64: of features they jump from face to face."""
    taps = ph.Neighborhood(dimension, 1).filter_size
    shapes = [(700, 4), (700, dimension), (300, dimension), (taps, 2, 6)]
    inputs = [draw(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    actual = results_of(*inputs) + (gradients_of(*inputs) if dtype == torch.float64 else [])
    with ph.use_backend("reference"):
        expected = results_of(*inputs) + (gradients_of(*inputs) if dtype == torch.float64 else [])
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize(("method", "levels"), [("separable", None), ("dense", 8)])
def test_all_backends_agree_on_images(method: GaussianMethod, levels: int | None, dtype: torch.dtype) -> None:
    """The first row of pixels lies on faces: a tie, which all must break alike for the separable method to agree.

    With few colors more pixels come to lie on faces up to rounding; the dense method is indifferent to that.
    """
    colors = np.random.default_rng(0).random((1, 24, 31))
    image = to_tensor(colors if levels is None else np.round(colors * levels) / levels, dtype)
    actual = ph.bilateral_filter(image, 4.0, 0.25, method=method)
    with ph.use_backend("reference"):
        assert_close(actual, ph.bilateral_filter(image, 4.0, 0.25, method=method))


def test_a_lattice_built_by_one_backend_serves_another(backend: str) -> None:
    """What a backend keeps in its table must not mislead the next."""
    features, targets, values, weight = draw(40, 3), draw(15, 3, seed=1), draw(40, 2), draw(15, 2, 3)

    def use(lattice: ph.Lattice) -> Tensor:
        return ph.permutohedral_filter(values, None, weight, normalization="symmetric", lattice=lattice)

    mine = ph.build_lattice(features, targets)
    expected = use(mine)
    with ph.use_backend("reference"):
        assert_close(use(mine), expected)
        theirs = ph.build_lattice(features, targets)
    assert_close(use(theirs), expected)


def test_results_are_the_same_from_run_to_run(backend: str) -> None:
    if DEVICE.type != "cpu":
        pytest.skip("on a GPU the order of sums may change from run to run; torch's deterministic mode is for that")
    features, values, weight = draw(500, 3, dtype=torch.float32), draw(500, 4, dtype=torch.float32), draw(15, 4, 4)
    runs = [ph.permutohedral_filter(values, features, weight.float()) for _ in range(3)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] == runs[2]).all()
