"""The drop-in for SimpleCRF: the same field written with `crf`, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import permutohedral as ph
from permutohedral.compat.simplecrf import denseCRF, denseCRF3D
from permutohedral.errors import InputError

PARAMETERS = (4.0, 6.0, 25.0, 2.0, 1.5, 4.0)
PARAMETERS_3D: dict[str, Any] = {
    "MaxIterations": 3.0,
    "PosW": 2.0,
    "PosRStd": 1,
    "PosCStd": 2,
    "PosZStd": 3,
    "BilateralW": 3.0,
    "BilateralRStd": 4.0,
    "BilateralCStd": 5.0,
    "BilateralZStd": 6.0,
    "ModalityNum": 2,
    "BilateralModsStds": (20.0, 40.0),
}


def probabilities(*shape: int) -> Any:
    drawn = np.random.default_rng(1).dirichlet(np.ones(3), shape)
    drawn[(0,) * len(shape)] = [1, 0, 0]
    return drawn.astype(np.float32)


def labels_of_field(given: Any, least: float, most: float, kernels: list[ph.crf.Kernel], steps: int) -> Any:
    energies = -torch.from_numpy(given).reshape(-1, 3).clamp(least, most).log()
    return ph.crf.mean_field(energies, kernels, num_iterations=steps).argmax(dim=1).reshape(given.shape[:-1]).numpy()


def kernel(values: list[Any], compatibility: float) -> ph.crf.Kernel:
    return ph.crf.Kernel(torch.from_numpy(np.stack(values, axis=-1)).float(), compatibility)


def test_labels_of_an_image() -> None:
    given = probabilities(11, 13)
    picture = np.random.default_rng(2).integers(0, 255, (11, 13, 3), np.uint8)
    y, x = np.indices((11, 13)).reshape(2, -1)
    colors = picture.reshape(-1, 3).T
    kernels = [kernel([x / 6, y / 6, *(colors / 25)], 4.0), kernel([x / 1.5, y / 1.5], 2.0)]
    labels = denseCRF.densecrf(picture, given, PARAMETERS)
    assert labels.dtype == np.int8
    np.testing.assert_array_equal(labels, labels_of_field(given, 0.01, 0.99, kernels, 4))
    assert np.mean(labels == given.argmax(axis=2)) < 0.9


def test_labels_of_a_volume() -> None:
    given = probabilities(5, 7, 9)
    volume = np.random.default_rng(2).integers(0, 255, (5, 7, 9, 2), np.uint8)
    z, y, x = np.indices((5, 7, 9)).reshape(3, -1)
    first, second = volume.reshape(-1, 2).T
    kernels = [kernel([x / 4, y / 5, z / 6, first / 20, second / 40], 3.0), kernel([x / 1, y / 2, z / 3], 2.0)]
    labels = denseCRF3D.densecrf3d(volume, given, PARAMETERS_3D)
    np.testing.assert_array_equal(labels, labels_of_field(given, 1e-30, 1.0, kernels, 3))
    assert labels[0, 0, 0] == 0
    assert np.mean(labels == given.argmax(axis=3)) < 0.9


@pytest.mark.parametrize(
    ("picture", "given", "parameters"),
    [
        (np.zeros((4, 5, 3), np.uint8), np.ones((5, 4, 2)), PARAMETERS),
        (np.zeros((4, 5), np.uint8), np.ones((4, 5, 2)), PARAMETERS),
        (np.zeros((4, 5, 4), np.uint8), np.ones((4, 5, 2)), PARAMETERS),
        (np.zeros((4, 5, 3)), np.ones((4, 5, 2)), PARAMETERS),
        (np.zeros((4, 5, 3), np.uint8), np.ones((4, 5, 2)), PARAMETERS[:5]),
        (np.zeros((4, 5, 3), np.uint8), np.ones((4, 5, 2)), (1, 0, 1, 1, 1, 1)),
        (np.zeros((4, 5, 3), np.uint8), np.full((4, 5, 2), np.nan), PARAMETERS),
        (np.zeros((4, 5, 3), np.uint8), np.ones((4, 5, 129)), PARAMETERS),
    ],
)
def test_rejects_wrong_images(picture: Any, given: Any, parameters: Any) -> None:
    with pytest.raises(InputError):
        denseCRF.densecrf(picture, given, parameters)


@pytest.mark.parametrize(
    "change",
    [
        {"ModalityNum": 1},
        {"BilateralModsStds": (1.0,)},
        {"PosRStd": 0},
        {"MaxIterations": float("nan")},
        {"PosW": float("inf")},
    ],
)
def test_rejects_wrong_parameters_of_volumes(change: dict[str, Any]) -> None:
    volume, given = np.zeros((2, 3, 4, 2), np.uint8), np.full((2, 3, 4, 2), 0.5)
    with pytest.raises(InputError):
        denseCRF3D.densecrf3d(volume, given, {**PARAMETERS_3D, **change})
    with pytest.raises(InputError, match="lacks PosW"):
        denseCRF3D.densecrf3d(volume, given, {key: PARAMETERS_3D[key] for key in PARAMETERS_3D if key != "PosW"})
