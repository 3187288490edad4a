"""The drop-in's `utils` and `eigen`: values stated by hand, and bad input."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from permutohedral.compat.pydensecrf import eigen, utils
from permutohedral.errors import InputError


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_unary_from_labels(dtype: Any) -> None:
    labels = np.array([[0, 1, 2], [3, 3, 0]], dtype)
    unary = utils.unary_from_labels(labels, 3, 0.7)
    third, other = 1 / 3, 0.15
    expected = [
        [third, 0.7, other, other, other, third],
        [third, other, 0.7, other, other, third],
        [third, other, other, 0.7, 0.7, third],
    ]
    np.testing.assert_allclose(np.exp(-unary), expected, rtol=1e-6)
    assert unary.dtype == np.float32
    assert unary.flags.c_contiguous
    sure = utils.unary_from_labels(np.maximum(labels, 1) - 1, 3, 0.7, zero_unsure=False)
    np.testing.assert_array_equal(sure[:, 1:5], unary[:, 1:5])


def test_old_names_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    labels, probabilities = np.array([0, 1, 2]), np.array([[0.3, 1.0], [0.7, 0.0]])
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(utils.compute_unary(labels, 2), utils.unary_from_labels(labels, 2, 0.5))
        old = utils.softmax_to_unary(probabilities)
        np.testing.assert_array_equal(
            utils.softmax_to_unary(probabilities, GT_PROB=0.8), utils.unary_from_softmax(probabilities, 0.8, None)
        )
    assert [record.message.split(" ")[0] for record in caplog.records] == [
        *("compute_unary", "softmax_to_unary", "softmax_to_unary")
    ]
    assert old[1, 1] == np.inf
    np.testing.assert_allclose(old[:, 0], -np.log([0.3, 0.7]), rtol=1e-6)


def test_unary_from_softmax() -> None:
    probabilities = np.moveaxis(np.array([[[0.25, 0.75]], [[1.0, 0.0]]]), -1, 0)
    unary = utils.unary_from_softmax(probabilities, clip=1e-3)
    np.testing.assert_allclose(unary, -np.log([[0.25, 1], [0.75, 1e-3]]), rtol=1e-6, atol=1e-9)
    assert unary.flags.c_contiguous
    scaled = utils.unary_from_softmax(probabilities, scale=0.6)
    np.testing.assert_allclose(np.exp(-scaled), [[0.35, 0.8], [0.65, 0.2]], rtol=1e-6)


def test_positions_have_y_before_x() -> None:
    features = utils.create_pairwise_gaussian((2, 4, 1), (3, 5, 2))
    assert features.dtype == np.float32
    assert features.shape == (3, 30)
    np.testing.assert_array_equal(features[:, (1 * 5 + 3) * 2 + 1], [0.5, 0.75, 1])


@pytest.mark.parametrize("chdim", [0, 2, -1])
def test_values_after_positions(chdim: int) -> None:
    picture = np.arange(3 * 4 * 2, dtype=np.uint8).reshape(3, 4, 2)
    shape = {0: (4, 2), 2: (3, 4), -1: (3, 4, 2)}[chdim]
    features = utils.create_pairwise_bilateral((2,) * len(shape), 10, picture, chdim)
    np.testing.assert_array_equal(features[: len(shape)], utils.create_pairwise_gaussian((2,) * len(shape), shape))
    values = {0: picture, 2: picture.transpose(2, 0, 1), -1: picture[None]}[chdim]
    np.testing.assert_allclose(features[len(shape) :], values.reshape(len(values), -1) / 10, rtol=1e-6)


def test_channels_without_a_deviation_are_not_scaled() -> None:
    """As pydensecrf does."""
    features = utils.create_pairwise_bilateral((2, 2), (10,), np.ones((3, 4, 2)), chdim=2)
    np.testing.assert_allclose(features[2:, 0], [0.1, 1])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unary_from_labels", (np.array([0, 4]), 3, 0.5)),
        ("unary_from_labels", (np.array([-1]), 3, 0.5)),
        ("unary_from_labels", (np.array([3]), 3, 0.5, False)),
        ("unary_from_labels", (np.array([1.0]), 3, 0.5)),
        ("unary_from_labels", (np.array([1]), 1, 0.5)),
        ("unary_from_labels", (np.array([1]), 3, 1.0)),
        ("unary_from_softmax", (np.ones((2, 3)), 0.0)),
        ("create_pairwise_gaussian", ((3, 0), (4, 4))),
        ("create_pairwise_gaussian", ((3,), (4, 4))),
        ("create_pairwise_bilateral", ((3, 3), 0, np.ones((4, 4)))),
        ("create_pairwise_bilateral", ((3, 3), (1, 1), np.ones((4, 4)))),
        ("create_pairwise_bilateral", ((3, 3, 3), 1, np.ones((4, 4)))),
        ("create_pairwise_bilateral", ((3, np.nan), 1, np.ones((4, 4)))),
    ],
)
def test_rejects_wrong_arguments(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InputError):
        getattr(utils, name)(*arguments)


def test_matrices_and_vectors_are_copies() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    matrix, vector = eigen.matrixXf(given), eigen.vectorXf(given[0])
    given[...] = 9
    assert matrix.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert vector.tolist() == [0, 1, 2]
    assert eigen.MatrixXf().shape == (0, 0)
    assert eigen.VectorXf().shape == (0,)
    with pytest.raises(InputError):
        eigen.vectorXf(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        eigen.matrixXf(None)  # type: ignore[arg-type]
