"""The bilateral solver against dense equations in NumPy; gradients, laws, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.guided.smoothness import smoothness_on

HEIGHT, WIDTH, SIGMA_SPACE, SIGMA_RANGE = 6, 8, 2.3, 0.37
EXACT: dict[str, Any] = {"iterations": 400, "tolerance": 1e-13}


def picture(channels: int, seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return to_tensor(np.random.default_rng(seed).random((channels, height, width)))


def features_of(guide: Tensor) -> oracle.Array:
    channels, height, width = guide.shape
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    colors = to_numpy(guide).reshape(channels, -1).T / SIGMA_RANGE
    return np.concatenate([np.stack([y, x], axis=2).reshape(-1, 2) / SIGMA_SPACE, colors], axis=1)


def roughness(simplices: oracle.Simplices) -> oracle.Array:
    """diag(W 1) - W, with W balanced in five steps."""
    vertices, corners = simplices.vertices, simplices.vertices.shape[1]
    steps = [sign * (corners * np.eye(corners, dtype=np.int64)[j] - 1) for j in range(corners) for sign in (1, -1)]
    difference = vertices[None] - vertices[:, None]
    beside = sum((difference == step).all(axis=2).astype(float) for step in steps)
    counts = 2 * corners * np.eye(len(vertices)) + beside
    wanted, scale = simplices.weights.sum(axis=0), np.ones(len(vertices))
    for _ in range(5):
        scale = np.sqrt(scale * wanted / (counts @ scale))
    joined = scale[:, None] * counts * scale
    rough: oracle.Array = np.diag(joined.sum(axis=1)) - joined
    return rough


def solve(guide: Tensor, seen: oracle.Array, data: oracle.Array, right: oracle.Array, smoothness: float) -> Tensor:
    """Values at all pixels: `data` is the matrix of the data, `seen` the simplices' weights."""
    simplices = oracle.locate(features_of(guide))
    assert seen.shape[1] == len(simplices.vertices)
    solution = np.linalg.solve(smoothness * roughness(simplices) + data, right)
    return to_tensor((simplices.weights @ solution).T.reshape(-1, *guide.shape[1:]))


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 17])
def test_sums_of_what_lies_beside_lattice_points(channels: int) -> None:
    lattice = ph.build_lattice(to_tensor(features_of(picture(1))), neighborhood_size=0, separable=True)
    beside = smoothness_on(lattice).beside
    rows = to_tensor(np.random.default_rng(1).random((lattice.num_lattice_points, channels)))
    values, axes = to_numpy(rows), beside.axes.cpu().numpy()
    expected = len(axes) * values
    for neighbors in axes:
        expected[neighbors >= 0] += values[neighbors[neighbors >= 0]]
    assert_close(beside.add(rows), to_tensor(expected))


def test_pixels_are_the_solution_of_the_dense_equations() -> None:
    guide, target = picture(1), picture(2, 1) * 100 - 30
    confidence = picture(1, 2)[0]
    confidence[2:4, 3:6] = 0
    target[:, 2, 3] = torch.nan
    weights = oracle.locate(features_of(guide)).weights
    counts = to_numpy(confidence).reshape(-1)
    values = np.nan_to_num(to_numpy(target).reshape(2, -1).T)
    expected = solve(guide, weights, np.diag(weights.T @ counts), weights.T @ (counts[:, None] * values), 0.7)
    found = ph.bilateral_solver(target, guide, confidence, 0.7, SIGMA_SPACE, SIGMA_RANGE, **EXACT)
    assert_close(found, expected)


@pytest.mark.parametrize("size", [(3, 2), (4, 3)], ids=["whole ratio", "any ratio"])
def test_cells_are_the_solution_of_the_dense_equations(size: tuple[int, int]) -> None:
    guide, target = picture(1), picture(2, 1, *size)
    pool = torch.nn.functional.adaptive_avg_pool2d(torch.eye(HEIGHT * WIDTH).view(-1, HEIGHT, WIDTH).double(), size)
    simplices = oracle.locate(features_of(guide))
    means = to_numpy(pool.flatten(1)).T @ simplices.weights
    count = HEIGHT * WIDTH / (size[0] * size[1])
    values = to_numpy(target).reshape(2, -1).T
    expected = solve(guide, simplices.weights, count * means.T @ means, count * means.T @ values, 0.7)
    options: dict[str, Any] = {"observe": "cells", **EXACT}
    assert_close(ph.bilateral_solver(target, guide, None, 0.7, SIGMA_SPACE, SIGMA_RANGE, **options), expected)


def test_points_count_as_the_pixels_they_lie_in() -> None:
    guide, values = picture(3), picture(2, 1, 1, 3)[:, 0]
    places = to_tensor([[0.2, 0.4], [3.8, 2.1], [5.0, 7.4]])
    target = torch.full((2, HEIGHT, WIDTH), torch.nan, dtype=torch.float64, device=DEVICE)
    for number, (y, x) in enumerate(((0, 0), (4, 2), (5, 7))):
        target[:, y, x] = values[:, number]
    at_points = ph.bilateral_solver(values, guide, observe=places, **EXACT)
    assert_close(at_points, ph.bilateral_solver(target, guide, **EXACT))


def test_gradients() -> None:
    guide, target, coarse = picture(1, 0, 3, 4), picture(1, 1, 3, 4), picture(1, 2, 1, 2)
    confidence, smoothness = picture(1, 3, 3, 4)[0] + 0.1, to_tensor(0.6)
    inputs = [each.requires_grad_() for each in (target, guide, confidence, smoothness)]

    def run(target: Tensor, guide: Tensor, confidence: Tensor, smoothness: Tensor) -> Tensor:
        found: Tensor = ph.bilateral_solver(target, guide, confidence, smoothness, 1.7, SIGMA_RANGE, **EXACT)
        return found

    def run_cells(coarse: Tensor, guide: Tensor, smoothness: Tensor) -> Tensor:
        options: dict[str, Any] = {"observe": "cells", **EXACT}
        found: Tensor = ph.bilateral_solver(coarse, guide, None, smoothness, 1.7, SIGMA_RANGE, **options)
        return found

    assert torch.autograd.gradcheck(run, inputs, atol=1e-7, fast_mode=True)
    assert torch.autograd.gradcheck(run_cells, [coarse.requires_grad_(), guide, smoothness], atol=1e-7, fast_mode=True)


def test_a_gradient_that_is_differentiated_again_is_refused() -> None:
    target = picture(1).requires_grad_()
    with pytest.raises(ph.InputError, match="differentiated again"):
        torch.autograd.grad(ph.bilateral_solver(target, picture(3)).sum(), target, create_graph=True)


def test_constants_stay() -> None:
    guide = picture(3).float()
    target = torch.full((1, HEIGHT, WIDTH), 60000.5, device=DEVICE)
    target[0, 1:5, 2:] = torch.nan
    assert_close(ph.bilateral_solver(target, guide), torch.full_like(target, 60000.5))


def test_a_start_at_the_solution_needs_no_iterations() -> None:
    solver, target = ph.BilateralSolver(picture(3), 2.0, 0.5), picture(2, 1, 3, 4)
    solved = solver(target, observe="cells", **EXACT)
    again = solver(target, observe="cells", iterations=3, start=solved)
    assert (again - solved).abs().max() < (solver(target, observe="cells", iterations=3) - solved).abs().max()


def test_batches_are_items_side_by_side() -> None:
    guides, targets = torch.stack([picture(2), picture(2, 5)]), torch.stack([picture(1, 1), picture(1, 2)])
    targets[1, 0, 2] = torch.nan
    together = ph.bilateral_solver(targets, guides, **EXACT)
    for item in range(2):
        assert_close(together[item], ph.bilateral_solver(targets[item], guides[item], **EXACT))
    shared = ph.bilateral_solver(targets, guides[0], **EXACT)
    assert_close(shared[1], ph.bilateral_solver(targets[1], guides[0], **EXACT))


def test_items_in_other_units_do_not_matter() -> None:
    """Nor what units these are: float32 has few digits, and no squares of its smallest and largest numbers."""
    guides, targets = (
        torch.stack([picture(2), picture(2, 5)]).float(),
        torch.stack([picture(1, 1), picture(1, 2)]).float(),
    )
    # far from all data, values are those of the item
    guides[0, :, 4:] += 100.0
    targets[0, 0, 2:] = torch.nan
    alone = ph.bilateral_solver(targets[0], guides[0], tolerance=1e-6, iterations=200)
    for unit in (1e-22, 1e6, 1e22):
        units = torch.tensor([1.0, unit], device=DEVICE).view(2, 1, 1, 1)
        found = ph.bilateral_solver(targets * units, guides, tolerance=1e-6, iterations=200)
        assert_close(found[0], alone)
        assert_close(found[1] / unit, ph.bilateral_solver(targets[1], guides[1], tolerance=1e-6, iterations=200))


def test_more_iterations_than_needed_do_no_harm() -> None:
    """Without a tolerance they go on when only rounding errors are left."""
    generator = torch.Generator().manual_seed(31)
    values, guide = torch.rand(4, 4, generator=generator), torch.rand(2, 19, generator=generator)
    confidence = torch.tensor([0.4648, 0.0, 0.0, 0.6])
    inputs = [each.double().to(DEVICE) for each in (values, guide, confidence)]
    places = torch.tensor([[0], [4], [9], [14]], device=DEVICE)
    options: dict[str, Any] = {"sigma_space": 3.5, "observe": places, "spatial_axes": 1}
    enough = ph.bilateral_solver(*inputs, **options, iterations=8, tolerance=0.0)
    assert_close(ph.bilateral_solver(*inputs, **options, iterations=100, tolerance=0.0), enough)


def test_volumes() -> None:
    guide = picture(4, 0, 5, 6)[None]
    assert_close(ph.bilateral_solver(torch.ones_like(guide), guide, spatial_axes=3), torch.ones_like(guide))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(1, 3, 4)}, "observe='cells'"),
        ({"target": torch.zeros(1, 6, 8, dtype=torch.int64)}, "floating"),
        ({"target": torch.full((1, 6, 8), torch.nan)}, "nothing is known"),
        ({"confidence": torch.zeros(6, 8)}, "nothing is known"),
        ({"target": torch.full((1, 6, 8), torch.inf)}, "infinity"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"observe": "blobs"}, "observe must be"),
        ({"observe": torch.zeros(3, 3)}, "positions"),
        ({"observe": torch.zeros(3, 2)}, "one for each position"),
        ({"target": torch.zeros(1, 2), "observe": torch.tensor([[0.0, 1.0], [3.0, 7.6]])}, "lie in the picture"),
        ({"target": torch.zeros(1, 1), "observe": torch.full((1, 2), torch.nan)}, "lie in the picture"),
        ({"target": torch.zeros(1, 0), "observe": torch.zeros(0, 2)}, "nothing is known"),
        ({"start": torch.zeros(1, 3, 4)}, "start must be"),
        ({"start": torch.full((1, 6, 8), torch.nan)}, "start must be finite"),
        ({"spatial_axes": 4}, "spatial_axes"),
        ({"guide": torch.zeros(2, 3, 6, 8)}, "batch axes"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"target": torch.zeros(1, 6, 8), "guide": torch.zeros(3, 6, 8)}
    with pytest.raises(ph.InputError, match=message):
        ph.bilateral_solver(**{**arguments, **change})
