"""Inputs other than dense tensors on the right device: rejected with advice, or converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, ErrorCase, assert_close, assert_raises
from torch import Tensor

import permutohedral as ph

pytestmark = pytest.mark.usefixtures("backend")

InputError = ph.errors.InputError


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, device=DEVICE, dtype=dtype)


def array(*shape: int) -> Any:
    return np.zeros(shape, dtype=np.float32)


def sigma_of(*numbers: float) -> Tensor:
    return torch.tensor(numbers, device=DEVICE)


NOT_TENSORS: dict[str, ErrorCase] = {
    "colors": (lambda: ph.features.colors(array(3, 8, 8)), InputError, "image.*ndarray.*torch.as_tensor"),
    "features_to_join": (lambda: ph.features.join(zeros(3, 1), array(3, 1)), InputError, "features.*ndarray"),
    "values": (lambda: ph.gaussian_filter(array(5, 1), zeros(5, 2)), InputError, "values.*ndarray.*torch.as_tensor"),
    "weight": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), array(7, 1, 1)),
        InputError,
        "weight.*ndarray.*torch.as_tensor",
    ),
    "values_of_a_layer": (
        lambda: ph.nn.PermutohedralConv(1, 1, 2, device=DEVICE)([[0.0]], zeros(1, 2)),
        InputError,
        "values.*list.*torch.as_tensor",
    ),
    "features_of_a_layer": (
        lambda: ph.nn.GaussianFilter(2)(zeros(1, 1), [[0.0, 0.0]]),
        InputError,
        "features.*list.*torch.as_tensor",
    ),
    "image_of_a_layer": (
        lambda: ph.nn.BilateralConv2d(1, 1)(array(1, 4, 4)),
        InputError,
        "image.*ndarray.*torch.as_tensor",
    ),
}

SPARSE: dict[str, ErrorCase] = {
    "values": (lambda: ph.gaussian_filter(zeros(5, 1).to_sparse(), zeros(5, 2)), InputError, "values.*to_dense"),
    "picture": (
        lambda: ph.bilateral_filter(zeros(1, 4, 4).to_sparse(), sigma_space=1.0, sigma_color=1.0),
        InputError,
        "image.*to_dense",
    ),
    "weight": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(7, 1, 1).to_sparse()),
        InputError,
        "weight.*to_dense",
    ),
}

SIGMAS: dict[str, ErrorCase] = {
    "text": (lambda: ph.features.positions((2, 2), "wide"), InputError, "sigma must be one number.*'wide'"),  # type: ignore[arg-type]
    "none": (
        lambda: ph.bilateral_filter(zeros(1, 4, 4), sigma_space=None, sigma_color=1.0),  # type: ignore[call-overload]
        InputError,
        "sigma_space must be.*None",
    ),
    "matrix": (lambda: ph.features.positions((2, 2), np.ones((2, 2))), InputError, r"sigma.*shape \(2, 2\)"),
    "too_many": (lambda: ph.features.positions((2, 2), np.ones(3)), InputError, r"for each of 2, got the shape \(3,\)"),
    "negative_array": (lambda: ph.features.positions((2, 2), -np.ones(2)), InputError, "positive and finite"),
    # on a GPU it stays unread, and no lattice takes what it makes
    "negative_tensor": (
        lambda: ph.bilateral_filter(zeros(1, 4, 4), sigma_space=sigma_of(-2.0), sigma_color=1.0),
        InputError,
        "positive and finite|must be finite",
    ),
    "one_negative": (
        lambda: ph.gaussian_filter(zeros(6, 1), ph.features.positions((2, 3), sigma_of(1.0, -1.0), device=DEVICE)),
        InputError,
        "positive and finite|must be finite",
    ),
    "zero_tensor": (
        lambda: ph.bilateral_filter(zeros(1, 4, 4), sigma_space=1.0, sigma_color=sigma_of(0.0)),
        InputError,
        "positive and finite|must be finite",
    ),
}

FORECASTS: dict[str, ErrorCase] = {
    "points": (lambda: ph.lattice.forecast_memory(-5, 3), InputError, "num_points.*at least 0, got -5"),
    "fraction": (lambda: ph.lattice.forecast_memory(1.5, 3), InputError, "num_points.*whole number.*1.5"),  # type: ignore[arg-type]
    "dimension": (lambda: ph.lattice.forecast_memory(5, 0), InputError, "dimension.*at least 1, got 0"),
    "size": (lambda: ph.lattice.forecast_memory(5, 3, -1), InputError, "neighborhood_size.*got -1"),
    "channels": (lambda: ph.lattice.forecast_memory(5, 3, channels=-1), InputError, "channels.*got -1"),
    "lattice_points": (
        lambda: ph.lattice.forecast_memory(5, 3, num_lattice_points=-1),
        InputError,
        "num_lattice_points",
    ),
    "dtype": (lambda: ph.lattice.forecast_memory(5, 3, dtype=torch.int32), InputError, "floating, got torch.int32"),
}

E8, C64 = torch.float8_e4m3fn, torch.complex64
NOT_COMPUTED_WITH: dict[str, ErrorCase] = {
    name: (function, InputError, f"{argument} must be real, of at least 16 bits, got torch.(float8_e4m3fn|complex64)")
    for name, argument, function in (
        ("weighted", "values", lambda: ph.gaussian_filter(zeros(5, 1, dtype=C64), zeros(5, 2), sample_weight=zeros(5))),
        ("interpolated", "values", lambda: ph.interpolate(zeros(5, 1, dtype=C64), zeros(5, 2), zeros(5, 2))),
        ("float8", "values", lambda: ph.gaussian_filter(zeros(5, 1, dtype=E8), zeros(5, 2))),
        (
            "weights",
            "sample_weight",
            lambda: ph.interpolate(zeros(5, 1), zeros(5, 2), sample_weight=zeros(5).to(E8)),
        ),
        ("image", "image", lambda: ph.bilateral_filter(zeros(3, 4, 4, dtype=E8), sigma_space=1.0, sigma_color=1.0)),
        ("guide", "guide", lambda: ph.features.bilateral(zeros(3, 4, 4, dtype=E8), sigma_space=1.0, sigma_color=1.0)),
        ("colors", "image", lambda: ph.features.colors(zeros(3, 4, 4, dtype=E8))),
        ("maps", "coarse", lambda: ph.upsample(zeros(1, 2, 2, dtype=E8), zeros(3, 4, 4))),
        ("guide_of_maps", "guide", lambda: ph.upsample(zeros(1, 2, 2), zeros(3, 4, 4, dtype=E8))),
        ("target", "target", lambda: ph.bilateral_solver(zeros(1, 4, 4, dtype=E8), zeros(3, 4, 4))),
        ("energies", "energies", lambda: ph.crf.mean_field(zeros(5, 2, dtype=E8), [ph.crf.Kernel(zeros(5, 2))])),
    )
}

CASES = {
    f"{group}-{name}": case
    for group, cases in (
        ("no_tensor", NOT_TENSORS),
        ("sparse", SPARSE),
        ("dtype", NOT_COMPUTED_WITH),
        ("sigma", SIGMAS),
        ("forecast", FORECASTS),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", [*CASES.values()], ids=[*CASES])
def test_rejects_with_advice(case: ErrorCase) -> None:
    assert_raises(*case)


def test_sigma_as_an_array() -> None:
    expected = ph.features.positions((3, 4), [2.0, 4.0])
    assert_close(ph.features.positions((3, 4), np.array([2.0, 4.0])), expected)
    image = torch.rand(1, 5, 6, device=DEVICE)
    twos: list[Any] = [np.float32(2), np.float64(2), np.array(2.0), np.array([2.0])]
    for two in twos:
        assert_close(
            ph.bilateral_filter(image, sigma_space=two, sigma_color=1.0),
            ph.bilateral_filter(image, sigma_space=2.0, sigma_color=1.0),
        )


@pytest.mark.parametrize("points", [0, 1, 50])
@pytest.mark.parametrize("gradient", [False, True])
def test_values_without_channels(points: int, gradient: bool) -> None:
    values = zeros(points, 0).requires_grad_(gradient)
    features = torch.rand(points, 2, device=DEVICE).requires_grad_(gradient)
    lattice = ph.build_lattice(features)
    results = [
        ph.gaussian_filter(values, features),
        ph.gaussian_filter(values, features, method="dense", halo=1),
        ph.gaussian_filter(values[None].expand(3, -1, -1), features[None].expand(3, -1, -1)),
        ph.permutohedral_filter(values, features, zeros(7)),
        ph.slice(ph.convolve(ph.splat(values, lattice), zeros(7), lattice), lattice),
        ph.splat(values[None].expand(3, -1, -1), lattice),
    ]
    for result in results:
        assert result.shape[-1] == 0
    assert results[2].shape == (3, points, 0)
    assert ph.bilateral_filter(zeros(0, 4, 5), sigma_space=1.0, sigma_color=1.0, guide=zeros(1, 4, 5)).shape == (
        0,
        4,
        5,
    )


TRACED: dict[str, Callable[..., Tensor]] = {
    "gaussian": ph.gaussian_filter,
    "learned": lambda values, features: ph.permutohedral_filter(values, features, torch.ones(7, device=DEVICE)),
    "layer": ph.nn.GaussianFilter(2),
}


@pytest.mark.parametrize("function", TRACED.values(), ids=TRACED)
@pytest.mark.filterwarnings("ignore")
def test_rejects_torchscript_tracing(function: Callable[..., Tensor]) -> None:
    example = torch.rand(9, 3, device=DEVICE), torch.rand(9, 2, device=DEVICE)
    with pytest.raises(InputError, match=r"torch.jit.trace.*constant; use torch.compile or torch.export"):
        torch.jit.trace(function, example)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in_a_model"])
@pytest.mark.filterwarnings("ignore")
def test_rejects_torchscript_of_layers(inside: bool) -> None:
    layers = [
        ph.nn.GaussianFilter(2),
        ph.nn.PermutohedralConv(1, 1, 2),
        ph.nn.BilateralFilter(sigma_space=1.0, sigma_color=1.0),
        ph.nn.BilateralConv2d(1, 1),
    ]
    for layer in layers:
        with pytest.raises(InputError, match=rf"script cannot compile {type(layer).__name__}.*use torch.compile"):
            torch.jit.script(torch.nn.Sequential(layer) if inside else layer)


@pytest.mark.parametrize("points", [1, 40])
def test_lazy_negation(points: int) -> None:
    """The imaginary part of a conjugate is a view of the memory of the number itself."""
    values = torch.rand(points, 1, dtype=torch.complex64, device=DEVICE).conj().imag
    assert values.is_neg()
    features = torch.rand(points, 2, device=DEVICE)
    expected = ph.gaussian_filter(values.resolve_neg(), features)
    assert_close(ph.gaussian_filter(values, features), expected)
    assert bool((expected < 0).all())
