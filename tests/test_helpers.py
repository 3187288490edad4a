"""The helpers of the suite: the oracle matches results derived by hand, comparisons can fail, memory is poisoned."""

from __future__ import annotations

import ast
import itertools
import pathlib

import numpy as np
import oracle
import pytest
import torch
from numpy.typing import ArrayLike
from support import assert_close, relative_error

# both sides are float64 with numbers of magnitude ten at most
ROUNDING = 1e-11


def assert_equal(actual: ArrayLike, expected: ArrayLike) -> None:
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(expected, float), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dimension", range(1, 9))
def test_elevation_is_a_scaled_isometry(dimension: int) -> None:
    matrix = oracle.elevation(dimension)
    assert_equal(matrix.T @ matrix, 2 / 3 * (dimension + 1) ** 2 * np.eye(dimension))
    assert_equal(matrix.sum(axis=0), 0)


@pytest.mark.parametrize("dimension", range(1, 9))
def test_simplex_reproduces_the_point(dimension: int, random: np.random.Generator) -> None:
    for feature in random.normal(size=(20, dimension)) * 3:
        simplex = oracle.enclosing_simplex(feature)
        vertices, weights = np.array(list(simplex)), np.array(list(simplex.values()))
        assert len(simplex) == dimension + 1
        assert (weights > 0).all()
        assert sorted(vertices[:, 0] % (dimension + 1)) == list(range(dimension + 1))
        assert (vertices.sum(axis=1) == 0).all()
        assert (vertices % (dimension + 1) == vertices[:, :1] % (dimension + 1)).all()
        assert_equal(weights.sum(), 1)
        assert_equal(weights @ vertices, oracle.elevation(dimension) @ feature)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_simplex_is_a_delaunay_cell(dimension: int, random: np.random.Generator) -> None:
    """No vertex of the lattice lies inside the sphere through the corners."""
    steps = np.array(list(itertools.product(range(-3, 4), repeat=dimension + 1)))
    offsets = np.unique((dimension + 1) * steps - steps.sum(axis=1, keepdims=True), axis=0)
    for feature in random.normal(size=(10, dimension)) * 2:
        corners = np.array(list(oracle.enclosing_simplex(feature)), dtype=float)
        # |c - v|^2 equal for all corners, c in the plane of zero sum
        equations = np.vstack([2 * (corners[1:] - corners[0]), np.ones(dimension + 1)])
        squares = np.square(corners).sum(axis=1)
        center = np.linalg.solve(equations, np.append(squares[1:] - squares[0], 0))
        radius = np.linalg.norm(corners[0] - center)
        distances = np.linalg.norm(corners[0] + offsets - center, axis=1)
        assert distances.min() >= radius - ROUNDING


def test_simplex_on_the_line_by_hand() -> None:
    """d = 1: y = 2 / sqrt(3) (f, -f), the vertices are n (1, -1), so f = sqrt(3)/2 (n + b) lies b beyond vertex n."""
    simplex = oracle.enclosing_simplex(np.array([np.sqrt(3) / 2 * 2.25]))
    assert set(simplex) == {(2, -2), (3, -3)}
    assert_equal([simplex[2, -2], simplex[3, -3]], [0.75, 0.25])


def test_vertex_has_weight_one() -> None:
    assert oracle.enclosing_simplex(np.zeros(4)) == {(0,) * 5: 1.0}


@pytest.mark.parametrize(("dimension", "size"), list(itertools.product(range(1, 5), range(4))))
def test_tap_table_agrees_with_adding_offsets(dimension: int, size: int, random: np.random.Generator) -> None:
    vertices = oracle.locate(random.normal(size=(12, dimension))).vertices
    table = oracle.tap_table(vertices, vertices, size)
    rows = {tuple(vertex): row for row, vertex in enumerate(vertices.tolist())}
    for number, k in enumerate(oracle.taps(dimension, size)):
        offset = sum(k_j * (np.eye(dimension + 1, dtype=int)[j] * (dimension + 1) - 1) for j, k_j in enumerate(k))
        expected = [rows.get(tuple(vertex), -1) for vertex in (vertices + offset).tolist()]
        found = [int(np.flatnonzero(row == number)[0]) if number in row else -1 for row in table]
        assert found == expected


def test_gaussian_weight_in_the_plane_by_hand() -> None:
    """d = 2, s = 1: six equal neighbors; (2^-1 + 2^-2) / (1 + 2^-2) = 0.6."""
    assert_equal(oracle.gaussian_weight(2, 1), [1] + [0.6] * 6)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_blur_matrix_on_a_full_neighborhood_is_the_gaussian(dimension: int) -> None:
    """With every vertex of the support present, the passes give (1 + 2^-d) times the Gaussian of size 2."""
    vertices = oracle.with_halo(np.zeros((1, dimension + 1), dtype=np.int64), 3)
    centre = int(np.flatnonzero((vertices == 0).all(axis=1))[0])
    row = oracle.blur_matrix(vertices)[centre]
    table = oracle.tap_table(vertices, vertices[centre : centre + 1], 2)[0]
    expected = np.where(table >= 0, oracle.gaussian_weight(dimension, 2)[table], 0) * (1 + 2.0**-dimension)
    assert_equal(row, expected)


def test_exact_gaussian_by_hand() -> None:
    features = np.array([[0.0], [1.0]])
    result = oracle.exact_gaussian(np.array([[1.0], [2.0]]), features, np.array([[0.0]]))
    assert_equal(result, [[1 + 2 * np.exp(-0.5)]])
    with pytest.raises(ValueError, match="fewer points"):
        oracle.exact_gaussian(np.zeros((5000, 1)), np.zeros((5000, 1)), np.zeros((5000, 1)))


def test_block_diagonal_by_hand() -> None:
    dense = oracle.block_diagonal(np.array([[[1.0, 2.0]]]), groups=2)
    np.testing.assert_array_equal(dense, [[[1, 0], [0, 2]]])


def test_oracle_imports_nothing_of_the_package() -> None:
    """An oracle that shares code with the package would share its errors."""
    tree = ast.parse(pathlib.Path(oracle.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "itertools", "typing", "numpy", "numpy.typing"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.bool])
def test_uninitialized_memory_is_poisoned(dtype: torch.dtype) -> None:
    like = torch.zeros(4, 5, dtype=dtype)
    tensors = [
        torch.empty(100, dtype=dtype),
        torch.empty_like(like),
        torch.empty_strided((4, 5), (1, 4), dtype=dtype),
        like.new_empty(3),
        like.new_empty_strided((4, 5), (1, 4)),
    ]
    for tensor in tensors:
        if dtype.is_floating_point or dtype.is_complex:
            assert tensor.isnan().all()
        else:
            assert (tensor == (True if dtype == torch.bool else torch.iinfo(dtype).max)).all()


def test_native_memory_is_poisoned() -> None:
    pytest.importorskip("permutohedral._native", reason="the compiled core is not installed")
    from permutohedral.ops.native import bridge

    # large enough for memory that the core keeps, where old results lie about
    assert bridge.empty((1 << 16,), torch.float32).isnan().all()
    assert (bridge.empty((1 << 16,), torch.int32) == 2**31 - 1).all()


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, float("nan")]), [1.0, float("nan")]),
        (torch.tensor([1.0, float("inf")]), [1.0, float("inf")]),
        (torch.tensor([1.0]), [[1.0]]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0001]),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), [1.0, 2.0 + 1e-9]),
        (torch.tensor([1e-3]), [0.0]),
    ],
)
def test_assert_close_fails(actual: torch.Tensor, expected: list[float]) -> None:
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(actual, np.array(expected))


def test_error_is_relative_to_largest_magnitude() -> None:
    assert relative_error(torch.tensor([1.0, 200.0]), np.array([3.0, 200.0])) == pytest.approx(0.01)
    assert relative_error(torch.empty(0, 3), np.empty((0, 3))) == 0
