"""The bilateral solver against dense equations in NumPy; gradients, laws, bad input."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.features import FEATURE_SHIFT

HEIGHT, WIDTH, SIGMA_SPACE, SIGMA_COLOR = 6, 8, 2.3, 0.37
EXACT: dict[str, Any] = {"num_iterations": 400, "tolerance": 1e-13}
SIGMAS: dict[str, Any] = {"sigma_space": SIGMA_SPACE, "sigma_color": SIGMA_COLOR}
NARROW: dict[str, Any] = {"sigma_space": 1.7, "sigma_color": SIGMA_COLOR, **EXACT}


def picture(channels: int, seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return to_tensor(np.random.default_rng(seed).random((channels, height, width)))


def features_of(guide: Tensor) -> oracle.Array:
    channels, height, width = guide.shape
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    colors = to_numpy(guide).reshape(channels, -1).T / SIGMA_COLOR
    return FEATURE_SHIFT + np.concatenate([np.stack([y, x], axis=2).reshape(-1, 2) / SIGMA_SPACE, colors], axis=1)


def roughness(simplices: oracle.Simplices) -> oracle.Array:
    """diag(W 1) - W, with W balanced in five steps."""
    vertices, corners = simplices.vertices, simplices.vertices.shape[1]
    steps = [sign * (corners * np.eye(corners, dtype=np.int64)[j] - 1) for j in range(corners) for sign in (1, -1)]
    difference = vertices[None] - vertices[:, None]
    adjacent = sum((difference == step).all(axis=2).astype(float) for step in steps)
    counts = 2 * corners * np.eye(len(vertices)) + adjacent
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


def test_pixels_are_the_solution_of_the_dense_equations() -> None:
    guide, target = picture(1), picture(2, 1) * 100 - 30
    sample_weight = picture(1, 2)[0]
    sample_weight[2:4, 3:6] = 0
    target[:, 2, 3] = torch.nan
    weights = oracle.locate(features_of(guide)).weights
    counts = to_numpy(sample_weight).reshape(-1)
    values = np.nan_to_num(to_numpy(target).reshape(2, -1).T)
    expected = solve(guide, weights, np.diag(weights.T @ counts), weights.T @ (counts[:, None] * values), 0.7)
    found = ph.bilateral_solver(target, guide, sample_weight=sample_weight, smoothness=0.7, **SIGMAS, **EXACT)
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
    assert_close(ph.bilateral_solver(target, guide, smoothness=0.7, **SIGMAS, **options), expected)


def test_points_equal_the_pixels_that_contain_them() -> None:
    guide, values = picture(3), picture(2, 1, 1, 3)[:, 0]
    places = to_tensor([[0.2, 0.4], [3.8, 2.1], [5.0, 7.4]])
    target = torch.full((2, HEIGHT, WIDTH), torch.nan, dtype=torch.float64, device=DEVICE)
    for number, (y, x) in enumerate(((0, 0), (4, 2), (5, 7))):
        target[:, y, x] = values[:, number]
    at_points = ph.bilateral_solver(values, guide, observe=places, **EXACT)
    assert_close(at_points, ph.bilateral_solver(target, guide, **EXACT))
    last = ph.bilateral_solver(values.mT, guide.movedim(0, -1), observe=places, channels_last=True, **EXACT)
    assert_close(last, at_points.movedim(0, -1))


def test_gradients() -> None:
    guide, target, coarse = picture(1, 0, 3, 4), picture(1, 1, 3, 4), picture(1, 2, 1, 2)
    sample_weight, smoothness = picture(1, 3, 3, 4)[0] + 0.1, to_tensor(0.6)
    inputs = [each.requires_grad_() for each in (target, guide, sample_weight, smoothness)]

    def run(target: Tensor, guide: Tensor, sample_weight: Tensor, smoothness: Tensor) -> Tensor:
        found: Tensor = ph.bilateral_solver(target, guide, sample_weight=sample_weight, smoothness=smoothness, **NARROW)
        return found

    def run_cells(coarse: Tensor, guide: Tensor, smoothness: Tensor) -> Tensor:
        found: Tensor = ph.bilateral_solver(coarse, guide, smoothness=smoothness, **NARROW, observe="cells")
        return found

    assert torch.autograd.gradcheck(run, inputs, atol=1e-7, fast_mode=True)
    assert torch.autograd.gradcheck(run_cells, [coarse.requires_grad_(), guide, smoothness], atol=1e-7, fast_mode=True)


def test_rejects_second_derivatives() -> None:
    target = picture(1).requires_grad_()
    with pytest.raises(ph.errors.InputError, match="differentiated again"):
        torch.autograd.grad(ph.bilateral_solver(target, picture(3), sigma_color=0.1).sum(), target, create_graph=True)


def test_preserves_constants() -> None:
    guide = picture(3).float()
    target = torch.full((1, HEIGHT, WIDTH), 60000.5, device=DEVICE)
    target[0, 1:5, 2:] = torch.nan
    assert_close(ph.bilateral_solver(target, guide, sigma_color=0.1), torch.full_like(target, 60000.5))


def test_start_at_the_solution_converges_faster() -> None:
    target, guide = picture(2, 1, 3, 4), picture(3)
    solve = partial(ph.bilateral_solver, target, guide, sigma_space=2.0, sigma_color=0.5, observe="cells")
    solved = solve(**EXACT)
    again, first = solve(num_iterations=3, start=solved), solve(num_iterations=3)
    assert (again - solved).abs().max() < (first - solved).abs().max()


def test_batch_equals_its_items() -> None:
    guides, targets = torch.stack([picture(2), picture(2, 5)]), torch.stack([picture(1, 1), picture(1, 2)])
    targets[1, 0, 2] = torch.nan
    weights = torch.stack([picture(1, 9)[0], picture(1, 10)[0]])
    together = ph.bilateral_solver(targets, guides, **EXACT)
    weighted = ph.bilateral_solver(targets, guides, sample_weight=weights, **EXACT)
    for item in range(2):
        assert_close(together[item], ph.bilateral_solver(targets[item], guides[item], **EXACT))
        alone = ph.bilateral_solver(targets[item], guides[item], sample_weight=weights[item], **EXACT)
        assert_close(weighted[item], alone)
    shared = ph.bilateral_solver(targets, guides[0], **EXACT)
    assert_close(shared[1], ph.bilateral_solver(targets[1], guides[0], **EXACT))


def test_items_in_other_units_do_not_interact() -> None:
    """Nor what units these are: float32 has few digits, and no squares of its smallest and largest numbers."""
    guides, targets = (
        torch.stack([picture(2), picture(2, 5)]).float(),
        torch.stack([picture(1, 1), picture(1, 2)]).float(),
    )
    # far from all data, values are those of the item
    guides[0, :, 4:] += 100.0
    targets[0, 0, 2:] = torch.nan
    alone = ph.bilateral_solver(targets[0], guides[0], tolerance=1e-6, num_iterations=200, sigma_color=0.1)
    for unit in (1e-22, 1e6, 1e22):
        units = torch.tensor([1.0, unit], device=DEVICE).view(2, 1, 1, 1)
        found = ph.bilateral_solver(targets * units, guides, tolerance=1e-6, num_iterations=200, sigma_color=0.1)
        assert_close(found[0], alone)
        assert_close(
            found[1] / unit,
            ph.bilateral_solver(targets[1], guides[1], tolerance=1e-6, num_iterations=200, sigma_color=0.1),
        )


def test_extra_iterations_do_no_harm() -> None:
    """Without a tolerance they go on when only rounding errors are left."""
    generator = torch.Generator().manual_seed(31)
    values, guide = torch.rand(4, 4, generator=generator), torch.rand(2, 19, generator=generator)
    sample_weight = torch.tensor([0.4648, 0.0, 0.0, 0.6])
    inputs = [each.double().to(DEVICE) for each in (values, guide)]
    places = torch.tensor([[0], [4], [9], [14]], device=DEVICE)
    options: dict[str, Any] = {"sigma_space": 3.5, "observe": places, "spatial_dims": 1}
    options["sample_weight"] = sample_weight.double().to(DEVICE)
    enough = ph.bilateral_solver(*inputs, **options, num_iterations=8, tolerance=0.0)
    assert_close(ph.bilateral_solver(*inputs, **options, num_iterations=100, tolerance=0.0), enough)


def test_volumes() -> None:
    guide = picture(4, 0, 5, 6)[None]
    assert_close(
        ph.bilateral_solver(torch.ones_like(guide), guide, spatial_dims=3, sigma_color=0.1), torch.ones_like(guide)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(1, 3, 4)}, "observe='cells'"),
        ({"target": torch.zeros(1, 6, 8, dtype=torch.bool)}, "floating"),
        ({"target": torch.full((1, 6, 8), torch.nan)}, "nothing is known"),
        ({"sample_weight": torch.zeros(6, 8)}, "nothing is known"),
        ({"target": torch.full((1, 6, 8), torch.inf)}, "infinity"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"observe": "blobs"}, "observe must be"),
        ({"observe": torch.zeros(3, 3)}, "positions"),
        ({"observe": torch.zeros(3, 2)}, "one for each position"),
        (
            {"target": torch.zeros(4, 1), "observe": torch.zeros(3, 2), "channels_last": True},
            r"4 values but observe 3 positions.*\[..., 3, channels\] with channels_last",
        ),
        ({"target": torch.zeros(1, 2), "observe": torch.tensor([[0.0, 1.0], [3.0, 7.6]])}, "lie in the image"),
        ({"target": torch.zeros(1, 1), "observe": torch.full((1, 2), torch.nan)}, "lie in the image"),
        ({"target": torch.zeros(1, 0), "observe": torch.zeros(0, 2)}, "nothing is known"),
        ({"start": torch.zeros(1, 3, 4)}, "start must be"),
        ({"start": torch.full((1, 6, 8), torch.nan)}, "start must be finite"),
        ({"spatial_dims": 4}, "spatial_dims"),
        ({"guide": torch.zeros(2, 3, 6, 8)}, "batch axes"),
    ],
)
def test_rejects_mismatched_inputs(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"target": torch.zeros(1, 6, 8), "guide": torch.zeros(3, 6, 8)}
    with pytest.raises(ph.errors.InputError, match=message):
        ph.bilateral_solver(**{**arguments, **change})


def test_gradient_is_finite_where_no_data_reach() -> None:
    """Pixels without data have the mean of the data, so adding one to all data adds one to all pixels."""
    guide = torch.zeros(1, 16, 16, device=DEVICE)
    guide[:, :, 8:] = 1.0
    sample_weight = (guide[0] == 0).float()
    for dtype in (torch.float32, torch.float64):
        for iterations in (5, 200):
            target = picture(1, 1, 16, 16).to(dtype).requires_grad_()
            options: dict[str, Any] = {"num_iterations": iterations, "tolerance": 0.0}
            found = ph.bilateral_solver(target, guide.to(dtype), sample_weight=sample_weight, **options)
            (gradient,) = torch.autograd.grad(found.sum(), target)
            assert abs(float(gradient.sum()) - 256) < 0.01
            assert float(gradient.abs().max()) < 256


def test_gradient_where_no_data_reach_is_that_of_finite_differences() -> None:
    guide = picture(1, 0, 3, 4)
    guide[:, :, 2:] += 100.0
    sample_weight = torch.ones(3, 4, dtype=torch.float64, device=DEVICE)
    sample_weight[:, 2:] = 0
    target = picture(1, 1, 3, 4).requires_grad_()

    def run(target: Tensor) -> Tensor:
        found: Tensor = ph.bilateral_solver(target, guide, sample_weight=sample_weight, smoothness=0.6, **NARROW)
        return found

    assert torch.autograd.gradcheck(run, [target], atol=1e-7)


def isolated() -> tuple[Tensor, Tensor, Tensor]:
    """A smooth guide in which pixels of one cell have colors of their own, a coarse target, and a gradient."""
    guide = 0.3 * picture(1, 0, 12, 12) + 0.1
    for number, (y, x) in enumerate([(1, 1), (2, 3), (3, 2), (5, 10), (9, 7), (10, 8)]):
        guide[:, y, x] = 3.0 + number
    return guide, picture(1, 1, 3, 3), picture(1, 2, 12, 12) - 0.5


@pytest.mark.parametrize(("iterations", "tolerance"), [(16, 0.4), (100, 1e-8), (1000, 1e-8)])
def test_gradient_of_cells_with_isolated_colors(iterations: int, tolerance: float) -> None:
    """The equations are singular: the means of cells do not determine the values of several isolated pixels."""
    guide, coarse, upper = isolated()
    simplices = oracle.locate(features_of(guide))
    pool = torch.nn.functional.adaptive_avg_pool2d(torch.eye(144).view(-1, 12, 12).double(), (3, 3))
    means = to_numpy(pool.flatten(1)).T @ simplices.weights
    equations = 0.7 * roughness(simplices) + 16 * means.T @ means
    assert np.linalg.matrix_rank(equations) < len(equations)
    gradient = simplices.weights.T @ to_numpy(upper).reshape(-1)
    # of all solutions the smallest in the units of the preconditioner
    units = (0.7 * np.diag(roughness(simplices)) + 16 * means.sum(axis=0)) ** -0.5
    inverse = units[:, None] * np.linalg.pinv(units[:, None] * equations * units, 1e-10, hermitian=True) * units
    expected = 16 * means @ (inverse @ gradient)
    # of data minus their mean, which all pixels have
    expected += (to_numpy(upper).sum() - expected.sum()) / 9
    coarse.requires_grad_()
    options: dict[str, Any] = {"smoothness": 0.7, "num_iterations": iterations, "tolerance": 0.0, "observe": "cells"}
    ph.bilateral_solver(coarse, guide, **SIGMAS, **options).backward(upper)
    assert coarse.grad is not None
    error = np.abs(to_numpy(coarse.grad).reshape(-1) - expected).max() / np.abs(expected).max()
    assert error < tolerance


def test_guide_gradient_with_isolated_colors() -> None:
    guide, coarse, upper = isolated()
    options: dict[str, Any] = {"smoothness": 0.7, "num_iterations": 200, "tolerance": 0.0, "observe": "cells"}

    def run(guide: Tensor) -> Tensor:
        found: Tensor = ph.bilateral_solver(coarse, guide, **SIGMAS, **options)
        return (found * upper).sum()

    along = picture(1, 4, 12, 12)
    (gradient,) = torch.autograd.grad(run(guide.requires_grad_()), guide)
    quotient = (run(guide.detach() + 1e-6 * along) - run(guide.detach() - 1e-6 * along)) / 2e-6
    # how the choice among several solutions changes is not part of the gradient
    assert abs(float((gradient * along).sum() - quotient)) < 0.1 * abs(float(quotient))


def test_more_iterations_do_not_diverge() -> None:
    """The lattice has parts that only rounding errors join, along which the equations are singular."""
    generator = torch.Generator().manual_seed(779245)
    guide = torch.rand(1, 12, 19, generator=generator, dtype=torch.float64)
    coarse = torch.rand(1, 9, 3, generator=generator, dtype=torch.float64) * 1500 + 154
    coarse[torch.rand(coarse.shape, generator=generator) < 0.3] = torch.nan
    few, many = (
        ph.upsample(
            coarse.to(DEVICE),
            guide.to(DEVICE),
            sigma_space=1.0,
            sigma_color=0.02,
            mode="solver",
            num_iterations=steps,
            smoothness=10.0,
        )
        for steps in (16, 2000)
    )
    assert float(many.abs().max()) < 2 * float(few.abs().max())


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -1.0])
def test_rejects_invalid_smoothness_tensors(number: float) -> None:
    with pytest.raises(ph.errors.InputError, match="smoothness must be"):
        ph.bilateral_solver(
            torch.zeros(1, 6, 8), torch.zeros(3, 6, 8), smoothness=torch.tensor(number), sigma_color=0.1
        )
    with pytest.raises(ph.errors.InputError, match="smoothness must be one"):
        ph.bilateral_solver(torch.zeros(1, 6, 8), torch.zeros(3, 6, 8), smoothness=torch.ones(2), sigma_color=0.1)


def test_float64_targets_keep_their_digits_along_a_float32_guide() -> None:
    guide, target = picture(3).float(), 4e6 + picture(1, 1)
    expected = ph.bilateral_solver(target, guide.double(), tolerance=1e-10, num_iterations=100, sigma_color=0.1)
    assert_close(
        ph.bilateral_solver(target, guide, tolerance=1e-10, num_iterations=100, sigma_color=0.1) - 4e6,
        expected - 4e6,
        torch.float32,
    )


@pytest.mark.parametrize("observe", ["pixels", "cells"])
def test_unknown_samples_are_unknown_per_channel(observe: Any) -> None:
    guide, target = picture(1), picture(2, 1, *((HEIGHT, WIDTH) if observe == "pixels" else (3, 4)))
    target[0, 1:] = torch.nan
    options: dict[str, Any] = {"observe": observe, **EXACT}
    found = ph.bilateral_solver(target, guide, smoothness=0.7, **SIGMAS, **options)
    for channel in range(2):
        alone = ph.bilateral_solver(target[channel, None], guide, smoothness=0.7, **SIGMAS, **options)
        assert_close(found[channel, None], alone)


def test_rejects_weights_of_one_row() -> None:
    with pytest.raises(ph.errors.InputError, match="sample_weight must be"):
        ph.bilateral_solver(torch.zeros(1, 6, 8), torch.zeros(3, 6, 8), sample_weight=torch.ones(8), sigma_color=0.1)


@pytest.mark.parametrize("unit", [1e-37, 1e-20, 1e20])
@pytest.mark.parametrize("observe", ["pixels", "cells"])
def test_only_the_ratio_of_weight_and_smoothness_matters(unit: float, observe: Any) -> None:
    guide, target = picture(1).float(), picture(1, 1, *((HEIGHT, WIDTH) if observe == "pixels" else (3, 4))).float()
    sample_weight = picture(1, 2, *target.shape[1:])[0].float() + 0.5
    solve = partial(ph.bilateral_solver, target, guide, observe=observe, **SIGMAS)
    expected = solve(sample_weight=sample_weight, smoothness=0.3)
    assert_close(solve(sample_weight=unit * sample_weight, smoothness=0.3 * unit), expected)
    # data of no weight compared with the smoothness have no influence but their mean
    smooth = solve(sample_weight=sample_weight, smoothness=1e5, tolerance=0.0)
    found = solve(sample_weight=1e-25 * sample_weight, tolerance=0.0)
    assert float((found - smooth).abs().max()) < 0.01


def test_error_for_a_guide_with_nan_names_the_guide() -> None:
    with pytest.raises(ph.errors.FeatureRangeError, match="made of the guide and sigma"):
        ph.bilateral_solver(torch.rand(3, 8, 9), torch.full((1, 8, 9), float("nan")))
