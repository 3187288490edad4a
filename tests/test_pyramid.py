"""Pyramid levels, compared with the oracle at every scale, and properties between levels."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import oracle
import pytest
import torch
from support import (
    DEVICE,
    NONDETERMINISM,
    ErrorCase,
    assert_close,
    assert_raises,
    draw,
    to_numpy,
    to_tensor,
    vertices_of,
)
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import permutohedral as ph

pytestmark = pytest.mark.usefixtures("backend")

LEVELS = 3


def rows_of(vertices: np.ndarray, lattice: ph.Lattice) -> list[int]:
    """Where the oracle's vertices are among the lattice points."""
    row = {vertex: number for number, vertex in enumerate(map(tuple, vertices_of(lattice.source.keys).tolist()))}
    return [row[tuple(vertex)] for vertex in vertices.tolist()]


def touching(dimension: int) -> Tensor:
    """Points on vertices of the lattice, where rounding chooses the simplex."""
    steps = np.random.default_rng(dimension).integers(-3, 4, size=(12, dimension + 1))
    vertices = (dimension + 1) * steps - steps.sum(axis=1, keepdims=True)
    return to_tensor(vertices @ np.linalg.pinv(oracle.elevation(dimension)).T)


@pytest.mark.parametrize("dimension", range(1, 7))
def test_levels_are_lattices_of_their_scale(dimension: int) -> None:
    features, values = draw(12, dimension, scale=3.0), draw(12, 2, seed=1)
    pyramid = ph.levels.build_pyramid(features, LEVELS)
    assert len(pyramid.levels) == LEVELS
    for number, lattice in enumerate(pyramid.levels):
        expected = oracle.locate(to_numpy(features) / 2**number)
        rows = rows_of(expected.vertices, lattice)
        assert len(rows) == lattice.num_lattice_points
        assert_close(ph.splat(values, lattice)[rows], oracle.splat(to_numpy(values), expected))
        lattice_values = draw(lattice.num_lattice_points, 2, seed=2)
        sliced = oracle.slice_at(to_numpy(lattice_values[rows]), expected)
        assert_close(ph.slice(lattice_values, lattice), sliced)


@pytest.mark.parametrize("dimension", range(1, 7))
def test_points_between_simplices(dimension: int) -> None:
    """Rounding chooses one of the simplices that meet there; on every level the result is the same for any choice."""
    features, values = touching(dimension), draw(12, 2, seed=1)
    for number, lattice in enumerate(ph.levels.build_pyramid(features, LEVELS).levels):
        expected = oracle.locate(to_numpy(features) / 2**number)
        sliced = oracle.slice_at(oracle.splat(to_numpy(values), expected), expected)
        assert_close(ph.slice(ph.splat(values, lattice), lattice), sliced)


def test_level_convolves_like_its_lattice() -> None:
    features, weight = draw(15, 3, scale=3.0), draw(15, 2, 3, seed=3)
    lattice = ph.levels.build_pyramid(features, LEVELS).levels[1]
    expected = oracle.locate(to_numpy(features) / 2)
    rows, values = rows_of(expected.vertices, lattice), draw(lattice.num_lattice_points, 2)
    vertices = expected.vertices
    convolved = oracle.convolve(to_numpy(values[rows]), to_numpy(weight), vertices, vertices, 1)
    assert_close(ph.convolve(values, weight, lattice)[rows], convolved)


@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_convolutions_between_levels(dimension: int, size: int) -> None:
    """Coarse vertices are fine ones at twice the coordinates, and filters are those of the fine lattice."""
    features = draw(12, dimension, scale=3.0)
    weight = draw(ph.lattice.Neighborhood(dimension, size).filter_size, 2, 3, seed=3)
    pyramid = ph.levels.build_pyramid(features, 2, neighborhood_size=size)
    fine, coarse = (oracle.locate(to_numpy(features) / scale).vertices for scale in (1, 2))
    rows, coarse_rows = (rows_of(each, level) for each, level in zip((fine, coarse), pyramid.levels, strict=True))
    values, coarse_values = (draw(level.num_lattice_points, 2) for level in pyramid.levels)
    down = ph.levels.convolve_down(values, weight, pyramid, 0)
    assert_close(down[coarse_rows], oracle.convolve(to_numpy(values[rows]), to_numpy(weight), fine, 2 * coarse, size))
    up = ph.levels.convolve_up(coarse_values, weight, pyramid, 0)
    expected = oracle.convolve(to_numpy(coarse_values[coarse_rows]), to_numpy(weight), 2 * coarse, fine, size)
    assert_close(up[rows], expected)


@pytest.mark.parametrize("features", [draw(30, 2), draw(30, 5), touching(3)], ids=["d2", "d5", "on_vertices"])
def test_function_spaces_are_nested(features: Tensor) -> None:
    points, dimension = features.shape
    pyramid = ph.levels.build_pyramid(features, LEVELS)
    halves = torch.full((ph.lattice.Neighborhood(dimension, 1).filter_size,), 0.5, dtype=features.dtype, device=DEVICE)
    halves[0] = 1.0
    for level in range(LEVELS - 1):
        fine, coarse = pyramid.levels[level], pyramid.levels[level + 1]
        values, coarse_values = draw(points, 2), draw(coarse.num_lattice_points, 2)
        splatted = ph.splat(values, fine)
        assert_close(ph.levels.coarsen(splatted, pyramid, level), ph.splat(values, coarse))
        assert_close(ph.levels.convolve_down(splatted, halves, pyramid, level), ph.splat(values, coarse))
        refined = ph.levels.refine(coarse_values, pyramid, level)
        assert_close(ph.slice(refined, fine), ph.slice(coarse_values, coarse))
        assert_close(ph.levels.convolve_up(coarse_values, halves, pyramid, level), refined)
        # no fine lattice point is left out
        assert bool((ph.levels.refine(torch.ones_like(coarse_values), pyramid, level) == 1).all())


def test_convolve_up_is_transpose_of_down() -> None:
    pyramid = ph.levels.build_pyramid(draw(40, 3, scale=2.0), 2)
    fine, coarse = (draw(level.num_lattice_points, 2) for level in pyramid.levels)
    weight = draw(15, 2, 2, seed=3)
    adjoint = weight[pyramid.neighborhood.opposite(DEVICE)].transpose(1, 2)
    one = (ph.levels.convolve_down(fine, weight, pyramid, 0) * coarse).sum()
    assert_close(one, (ph.levels.convolve_up(coarse, adjoint, pyramid, 0) * fine).sum())
    assert_close(
        (ph.levels.coarsen(fine, pyramid, 0) * coarse).sum(), (ph.levels.refine(coarse, pyramid, 0) * fine).sum()
    )


def test_pool_takes_the_maximum() -> None:
    features = draw(25, 2, scale=3.0)
    pyramid = ph.levels.build_pyramid(features, 2)
    values = draw(pyramid.levels[0].num_lattice_points, 3)
    fine, coarse = (vertices_of(level.source.keys) for level in pyramid.levels)
    reached = oracle.tap_table(fine, 2 * coarse, 1) >= 0
    expected = np.where(reached[:, :, None], to_numpy(values)[None], -np.inf).max(axis=1)
    assert_close(ph.levels.pool(values, pyramid, 0), expected)


def test_items_never_mix() -> None:
    features, values = draw(40, 3, scale=2.0), draw(40, 2)
    # item 1 is empty
    batch = torch.tensor([0, 2, 3, 2], device=DEVICE).repeat(10)
    together = ph.levels.build_pyramid(features, LEVELS, batch=batch)
    for number in range(LEVELS - 1):
        joint = ph.levels.refine(
            ph.levels.coarsen(ph.splat(values, together.levels[number]), together, number), together, number
        )
        sliced = ph.slice(joint, together.levels[number])
        for item in (0, 2, 3):
            alone = ph.levels.build_pyramid(features[batch == item], LEVELS)
            splatted = ph.splat(values[batch == item], alone.levels[number])
            back = ph.levels.refine(ph.levels.coarsen(splatted, alone, number), alone, number)
            assert_close(sliced[batch == item], ph.slice(back, alone.levels[number]))


def test_batches_and_leading_axes() -> None:
    features, values = draw(3, 20, 2, scale=2.0), draw(3, 20, 2)
    pyramid = ph.levels.build_pyramid(features, 2)
    result = ph.slice(ph.levels.coarsen(ph.splat(values, pyramid.levels[0]), pyramid, 0), pyramid.levels[1])
    shared = ph.levels.build_pyramid(features[0], 2)
    many = ph.levels.coarsen(ph.splat(values, shared.levels[0]), shared, 0)
    assert many.shape == (3, shared.levels[1].num_lattice_points, 2)
    for item in range(3):
        alone = ph.levels.build_pyramid(features[item], 2).levels[1]
        assert_close(result[item], ph.slice(ph.splat(values[item], alone), alone))
        assert_close(many[item], ph.splat(values[item], shared.levels[1]))


def test_empty_point_set() -> None:
    pyramid = ph.levels.build_pyramid(draw(0, 3), LEVELS)
    assert [level.num_lattice_points for level in pyramid.levels] == [0, 0, 0]
    assert ph.levels.coarsen(draw(0, 2), pyramid, 0).shape == (0, 2)
    assert ph.levels.refine(draw(0, 2), pyramid, 0).shape == (0, 2)
    assert ph.levels.pool(draw(0, 2), pyramid, 1).shape == (0, 2)


def test_one_level_is_the_lattice() -> None:
    pyramid = ph.levels.build_pyramid(draw(10, 2), 1)
    assert pyramid.tables == ()
    assert_close(ph.splat(draw(10, 1), pyramid.levels[0]), ph.splat(draw(10, 1), ph.build_lattice(draw(10, 2))))


STEPS: dict[str, Callable[[Tensor, Tensor, ph.levels.LatticePyramid], Tensor]] = {
    "coarsen": lambda values, weight, pyramid: ph.levels.coarsen(values, pyramid, 0) * weight.sum(),
    "refine": lambda values, weight, pyramid: ph.levels.refine(values, pyramid, 0) * weight.sum(),
    "convolve_down": lambda values, weight, pyramid: ph.levels.convolve_down(values, weight, pyramid, 0),
    "convolve_up": lambda values, weight, pyramid: ph.levels.convolve_up(values, weight, pyramid, 0),
    "pool": lambda values, weight, pyramid: ph.levels.pool(values, pyramid, 0) * weight.sum(),
}


@pytest.mark.parametrize("name", STEPS)
def test_derivatives(name: str) -> None:
    pyramid = ph.levels.build_pyramid(draw(8, 2, scale=2.0), 2)
    rows = pyramid.levels[name in ("refine", "convolve_up")].num_lattice_points
    inputs = draw(rows, 2).requires_grad_(), draw(7, 2, 2, seed=1).requires_grad_()

    def function(values: Tensor, weight: Tensor) -> Tensor:
        return STEPS[name](values, weight, pyramid)

    assert gradcheck(function, inputs, fast_mode=True, nondet_tol=NONDETERMINISM)
    assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=NONDETERMINISM)


def test_derivatives_of_features_on_coarse_level() -> None:
    def function(features: Tensor, values: Tensor) -> Tensor:
        lattice = ph.levels.build_pyramid(features, LEVELS).levels[2]
        return ph.slice(ph.splat(values, lattice).square(), lattice)

    inputs = draw(6, 2, scale=2.0).requires_grad_(), draw(6, 2).requires_grad_()
    assert gradcheck(function, inputs, fast_mode=True, nondet_tol=NONDETERMINISM)
    assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=NONDETERMINISM)


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "torch.save", "to"])
def test_copies(way: str) -> None:
    pyramid = ph.levels.build_pyramid(draw(20, 2), LEVELS)
    if way == "pickle":
        restored = pickle.loads(pickle.dumps(pyramid))
    elif way == "deepcopy":
        restored = copy.deepcopy(pyramid)
    elif way == "torch.save":
        buffer = io.BytesIO()
        torch.save(pyramid, buffer)
        restored = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    else:
        restored = pyramid.to(DEVICE)
    values = draw(pyramid.levels[0].num_lattice_points, 2)
    assert_close(ph.levels.coarsen(values, restored, 0), ph.levels.coarsen(values, pyramid, 0))
    assert repr(restored) == repr(pyramid)
    assert restored.num_bytes() == pyramid.num_bytes() > sum(level.statistics().num_bytes for level in pyramid.levels)


def test_compiled_pyramid() -> None:
    pyramid = ph.levels.build_pyramid(draw(20, 2), 2)
    weight = draw(7, 2, 2)

    def function(values: Tensor) -> Tensor:
        return ph.levels.convolve_up(ph.levels.convolve_down(values, weight, pyramid, 0), weight, pyramid, 0)

    values = draw(pyramid.levels[0].num_lattice_points, 2)
    assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(values), function(values))


PYRAMID = ph.levels.build_pyramid(draw(9, 2), 2)
ERRORS: dict[str, ErrorCase] = {
    "no_level": (
        lambda: ph.levels.build_pyramid(draw(9, 2), 0),
        ph.errors.InputError,
        "levels must be a whole number from 1",
    ),
    "many_levels": (
        lambda: ph.levels.build_pyramid(draw(9, 2), 31),
        ph.errors.InputError,
        "levels must be a whole number from 1",
    ),
    "features": (lambda: ph.levels.build_pyramid(draw(9), 2), ph.errors.InputError, "features must be"),
    "coarsest": (lambda: ph.levels.coarsen(draw(9, 2), PYRAMID, 1), ph.errors.InputError, "from 0 to 0"),
    "negative": (lambda: ph.levels.refine(draw(9, 2), PYRAMID, -1), ph.errors.InputError, "from 0 to 0"),
    "rows": (lambda: ph.levels.pool(draw(1, 2), PYRAMID, 0), ph.errors.InputError, "one row for each"),
    "taps": (
        lambda: ph.levels.convolve_down(draw(len(PYRAMID.levels[0].source.keys), 2), draw(3, 2, 2), PYRAMID, 0),
        ph.errors.InputError,
        "has 3 taps",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_rejects_bad_arguments(case: str) -> None:
    assert_raises(*ERRORS[case])


def test_splat_with_maximum() -> None:
    features, values = draw(20, 2, scale=2.0), draw(20, 3)
    lattice = ph.build_lattice(features, halo=1)
    largest = ph.splat(values, lattice, reduce="max")
    for row in range(lattice.num_lattice_points):
        around = (lattice.source.vertices == row).any(dim=1)
        expected = to_numpy(values)[to_numpy(around).astype(bool)].max(axis=0) if bool(around.any()) else np.zeros(3)
        assert_close(largest[row], expected)
    assert_close(ph.splat(torch.stack([values, -values]), lattice, reduce="max")[0], to_numpy(largest))
    values.requires_grad_()
    assert gradcheck(lambda each: ph.splat(each, lattice, reduce="max"), (values,), nondet_tol=NONDETERMINISM)
    with pytest.raises(ph.errors.InputError, match="reduce must be 'sum' or 'max', got 'mean'"):
        ph.splat(values, lattice, reduce="mean")  # type: ignore[arg-type]
