"""Choosing and forcing a backend, and agreement between backends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, draw, to_tensor, usable_backends
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import permutohedral as ph
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.ops import dispatch
from permutohedral.ops.reference import Reference


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register backends that do not load, are unavailable, or do not support the device."""
    loader = dispatch._loader("permutohedral.ops.no_such_module")
    loads = dispatch.BackendEntry("broken", loader, lambda: None, lambda device: None)
    absent = replace(loads, name="absent", why_unavailable=lambda: "it is not installed")
    elsewhere = replace(loads, name="elsewhere", why_not_on=lambda device: f"it does not run on {device!r}")
    monkeypatch.setattr(dispatch, "_BACKENDS", [absent, elsewhere, loads, *dispatch._BACKENDS])
    monkeypatch.setattr(dispatch, "_load", dispatch._load.__wrapped__)


def backend_report() -> dispatch.BackendReport:
    return ph.backends.explain(torch.zeros(1, device=DEVICE))


def chosen_backend() -> str:
    return backend_report().name


def forced_backend() -> str | None:
    """Return the name of the forced backend, None if it was chosen for the device."""
    report = backend_report()
    assert str(report).startswith(f"{report.name}: {report.reason}")
    return report.name if report.reason == "forced" else None


def test_reference_is_always_available() -> None:
    assert ph.backends.available()[-1] == "reference"
    assert len(set(ph.backends.available())) == len(ph.backends.available())


def test_use_backend_block_forces_and_restores(backend: str) -> None:
    assert forced_backend() == backend
    with ph.backends.use("reference"):
        assert forced_backend() == "reference"
        with ph.backends.use(None):
            assert forced_backend() is None
        assert forced_backend() == "reference"
    assert forced_backend() == backend


def test_restores_backend_after_error(backend: str) -> None:
    def fail() -> None:
        with ph.backends.use("reference"):
            ph.build_lattice(torch.zeros(3, device=DEVICE))

    with pytest.raises(ph.errors.InputError):
        fail()
    assert forced_backend() == backend


@pytest.mark.parametrize("force", [ph.backends.use, ph.backends.set_default])
def test_rejects_unknown_backend(force: Callable[[str], object]) -> None:
    with pytest.raises(ph.errors.InputError, match=r"no backend 'cuda'; choose one of .*'reference'"):
        force("cuda")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("force", [ph.backends.use, ph.backends.set_default])
def test_unavailable_backend_raises_with_reason(force: Callable[[str], object]) -> None:
    with pytest.raises(ph.errors.BackendUnavailable, match="'absent' cannot be used: it is not installed"):
        force("absent")
    assert "absent" not in ph.backends.available()
    assert ph.backends.explain().others["absent"] == "it is not installed"


@pytest.mark.usefixtures("broken")
def test_unsupported_device_raises_with_reason() -> None:
    with (
        ph.backends.use("elsewhere"),
        pytest.raises(ph.errors.BackendUnavailable, match=r"'elsewhere'.*does not run on"),
    ):
        ph.build_lattice(draw(5, 2))
    assert backend_report().others["elsewhere"] == f"it does not run on {DEVICE.type!r}"


@pytest.mark.usefixtures("broken")
def test_broken_backend_raises_without_fallback() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        ph.build_lattice(draw(5, 2))


@pytest.mark.usefixtures("broken")
def test_broken_backend_is_not_listed() -> None:
    assert "broken" not in ph.backends.available()
    assert "no_such_module" in ph.backends.explain().reason


class Counting(Reference):
    """A backend of a test: the reference, which counts its calls of one primitive."""

    name = "counting"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def slice(self, *arguments: Any) -> Tensor:
        self.calls["slice"] += 1
        return super().slice(*arguments)


def test_a_backend_is_a_class() -> None:
    """Definitions of fused functions call its primitives, with and without gradients."""
    counting = Counting()
    values, features = draw(9, 2), draw(9, 2, seed=1)
    with ph.backends.use(counting):
        assert ph.backends.explain(values).name == "counting"
        ph.gaussian_filter(values, features)
        assert counting.calls["slice"] == 1
        ph.gaussian_filter(values.requires_grad_(), features).sum().backward()
        # forward, and in the derivative of the splat
        assert counting.calls["slice"] == 3
    ph.gaussian_filter(values, features)
    assert counting.calls["slice"] == 3


def test_block_does_not_affect_other_threads() -> None:
    by_default = chosen_backend()
    with ph.backends.use("reference"):
        assert in_another_thread(chosen_backend) == by_default


def in_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60)


def test_default_holds_for_all_threads_outside_of_blocks() -> None:
    ph.backends.set_default("reference")
    try:
        assert in_another_thread(chosen_backend) == "reference"
        with ph.backends.use(None):
            assert forced_backend() is None
        assert chosen_backend() == "reference"
    finally:
        ph.backends.set_default(None)
    assert forced_backend() is None


def test_block_that_is_made_does_not_affect_other_threads() -> None:
    by_default = chosen_backend()
    block = ph.backends.use("reference")
    assert in_another_thread(chosen_backend) == by_default
    assert chosen_backend() == by_default
    with block:
        assert chosen_backend() == "reference"


class Recorded(TorchDispatchMode):
    """Sends every operator through the dispatcher of torch, as tensor subclasses and tracers do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("registered", [False, True], ids=["eager", "registered"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["after_the_block", "in_another_thread"])
def test_backward_uses_backend_of_forward(elsewhere: bool, registered: bool) -> None:
    counting = Counting()
    values, features = draw(5, 2).requires_grad_(), draw(5, 2, seed=1)
    with ph.backends.use(counting):
        lattice = ph.build_lattice(features)
        with Recorded() if registered else nullcontext():  # type: ignore[no-untyped-call]
            result = ph.splat(values, lattice).sum()
    assert not counting.calls
    if elsewhere:
        thread = threading.Thread(target=result.backward)
        thread.start()
        thread.join()
    else:
        result.backward()
    assert counting.calls["slice"] == 1


def results_of(values: Tensor, features: Tensor, targets: Tensor, weight: Tensor) -> list[Tensor]:
    return [
        ph.permutohedral_filter(values, features, weight, targets),
        ph.permutohedral_filter(values, features, weight, targets, normalization="symmetric"),
        ph.permutohedral_filter(values, features, weight, normalization="density"),
        ph.gaussian_filter(values, features, targets),
        ph.gaussian_filter(values, features, targets, normalization="none", halo=1),
    ]


def gradients_of(*inputs: Tensor) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    total = torch.zeros((), device=DEVICE, dtype=inputs[0].dtype)
    for result in results_of(*leaves):
        total = total + (result * torch.linspace(-1, 2, result.shape[-1], device=DEVICE)).sum()
    return list(torch.autograd.grad(total, leaves))


@pytest.fixture(params=[name for name in usable_backends() if name != "reference"])
def other_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with ph.backends.use(request.param):
        yield request.param


@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_backends_agree_on_scattered_points(dimension: int, dtype: torch.dtype) -> None:
    """On more points than the oracle can take. Gradients in float64: of features they jump from face to face."""
    taps = ph.lattice.Neighborhood(dimension, 1).filter_size
    shapes = [(700, 4), (700, dimension), (300, dimension), (taps, 2, 6)]
    inputs = [draw(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]
    actual = results_of(*inputs) + (gradients_of(*inputs) if dtype == torch.float64 else [])
    with ph.backends.use("reference"):
        expected = results_of(*inputs) + (gradients_of(*inputs) if dtype == torch.float64 else [])
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize(("method", "levels"), [("lattice", None), ("dense", 8)])
def test_backends_agree_on_images(method: GaussianMethod, levels: int | None, dtype: torch.dtype) -> None:
    colors = np.random.default_rng(0).random((1, 24, 31))
    image = to_tensor(colors if levels is None else np.round(colors * levels) / levels, dtype)
    actual = ph.bilateral_filter(image, sigma_space=4.0, sigma_color=0.25, method=method)
    with ph.backends.use("reference"):
        assert_close(actual, ph.bilateral_filter(image, sigma_space=4.0, sigma_color=0.25, method=method))


def _image_functions() -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions and layers whose features are those of an image `[3, height, width]` in [0, 1]."""
    layer = partial(ph.nn.BilateralConv2d, 3, 4, sigma_space=1.0, device=DEVICE)
    of_volumes = partial(ph.nn.BilateralConv3d, 3, 4, sigma_space=1.0, device=DEVICE)
    logits = draw(3, 24, 30, dtype=torch.float32)
    field = ph.nn.DenseCRF(3, sigma_smoothness=3.0, sigma_space=3.0, sigma_color=0.1, device=DEVICE)
    return {
        "density": lambda image: layer().to(image.dtype)(image),
        "coverage": lambda image: layer(normalization="coverage").to(image.dtype)(image),
        "volume": lambda image: of_volumes().to(image.dtype)(image[:, None, :16, :16].expand(-1, 6, -1, -1)),
        "filter": lambda image: ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.2),
        "field": lambda image: field.to(image.dtype)(logits.to(image.dtype), image),
    }


@pytest.mark.usefixtures("other_backend")
@pytest.mark.parametrize("name", _image_functions())
def test_image_functions_do_not_depend_on_ties(name: str) -> None:
    """Black pixels and pixels at whole ratios would lie on facets of the lattice, where rounding decides."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 24), torch.linspace(0, 1, 30), indexing="ij")
    image = (torch.stack([x, y, x * y]) * 20).round().to(DEVICE) / 20
    image[:, 8:16, 10:20] = 0
    results = {}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        results[dtype] = _image_functions()[name](image.to(dtype))
    with ph.backends.use("reference"):
        torch.manual_seed(0)
        expected = _image_functions()[name](image)
    assert_close(results[torch.float32], expected)
    assert_close(results[torch.float32], results[torch.float64])


def test_lattice_works_on_another_backend(backend: str) -> None:
    """What a backend keeps in its table must not mislead the next."""
    features, targets, values, weight = draw(40, 3), draw(15, 3, seed=1), draw(40, 2), draw(15, 2, 3)

    def use(lattice: ph.Lattice) -> Tensor:
        return ph.permutohedral_filter(values, lattice, weight, normalization="symmetric")

    mine = ph.build_lattice(features, targets)
    expected = use(mine)
    with ph.backends.use("reference"):
        assert_close(use(mine), expected)
        theirs = ph.build_lattice(features, targets)
    assert_close(use(theirs), expected)


def test_results_are_deterministic(backend: str) -> None:
    if DEVICE.type != "cpu":
        pytest.skip("on a GPU the order of sums may change from run to run; torch's deterministic mode is for that")
    features, values, weight = draw(500, 3, dtype=torch.float32), draw(500, 4, dtype=torch.float32), draw(15, 4, 4)
    runs = [ph.permutohedral_filter(values, features, weight.float()) for _ in range(3)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] == runs[2]).all()
