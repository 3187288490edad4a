"""The permutohedral encoding: its definition in NumPy, derivatives, and what torch does with the layer."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import encoding_oracle
import numpy as np
import pytest
import torch
from support import DEVICE, INTERPRETED, ErrorCase, assert_close, assert_raises, draw, on_default_backend, to_numpy
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError

SIGMAS = np.geomspace(1.0, 0.05, 4)
# largest error, for tables of normal numbers
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def make(dimension: int = 3, dtype: torch.dtype = torch.float64, **options: Any) -> ph.nn.PermutohedralEncoding:
    """A layer of four levels with a table of normal numbers, whose lattices mostly exceed it."""
    arguments: dict[str, Any] = {"num_levels": 4, "table_size": 64, "sigmas": SIGMAS} | options
    layer = ph.nn.PermutohedralEncoding(dimension, device=DEVICE, dtype=dtype, **arguments)
    torch.nn.init.normal_(layer.table)
    return layer


def positions_of(points: int, dimension: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(points, dimension, dtype=torch.float64).to(DEVICE, dtype)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dimension", range(1, 9))
def test_equals_the_definition(dimension: int, dtype: torch.dtype) -> None:
    """With a sigma for each axis, large shifts, and a table whose size is no power of two."""
    sigmas = SIGMAS[:, None] * np.linspace(1.0, 1.5, dimension)
    shifts = np.random.default_rng(0).normal(size=(4, dimension)) * 10
    options = {"features_per_level": 3, "table_size": 101, "sigmas": sigmas, "shifts": shifts, "bounds": None}
    layer = make(dimension, dtype, **options)
    positions = positions_of(40, dimension, dtype).requires_grad_()
    features = layer(positions)
    upper = draw(*features.shape, dtype=dtype)
    features.backward(upper)
    expected = encoding_oracle.encode(to_numpy(positions), to_numpy(layer.table), sigmas, shifts)
    assert np.abs(to_numpy(features) - expected).max() <= TOLERANCE[dtype]
    to_table = encoding_oracle.table_gradient(to_numpy(positions), to_numpy(upper), layer.table.shape, sigmas, shifts)
    assert layer.table.grad is not None
    assert np.abs(to_numpy(layer.table.grad) - to_table).max() <= TOLERANCE[dtype]


@pytest.mark.usefixtures("backend")
def test_fine_levels_stay_precise() -> None:
    """Shifts of ten thousand cells cost no bits: the error is that of float32 positions, and not of the shifts."""
    sigmas, shifts = np.full((1, 2), 1e-3), np.array([[12.3456, -9.8765]])
    layer = make(2, torch.float32, num_levels=1, table_size=4096, sigmas=sigmas, shifts=shifts, bounds=None)
    positions = positions_of(200, 2, torch.float32)
    expected = encoding_oracle.encode(to_numpy(positions), to_numpy(layer.table), sigmas, shifts)
    assert np.abs(to_numpy(layer(positions)) - expected).max() < 1e-3


def count_rows(positions: Tensor, sigma: float, table_size: int, bounds: tuple[float, float] | None) -> tuple[int, int]:
    """Count the rows that positions reach at one level, and the lattice points; axes have different sigmas."""
    dimension = positions.shape[1]
    sigmas, shifts = sigma * np.linspace(1.0, 1.3, dimension)[None], np.linspace(0.1, 0.7, dimension)[None]
    options: dict[str, Any] = {"table_size": table_size, "features_per_level": 1, "sigmas": sigmas, "shifts": shifts}
    layer = make(dimension, num_levels=1, bounds=bounds, **options)
    layer(positions).sum().backward()
    assert layer.table.grad is not None
    places = (to_numpy(positions) + shifts) / sigmas
    keys, _ = encoding_oracle.find_simplices(places.astype(np.longdouble))
    return int((layer.table.grad != 0).sum()), len(np.unique(keys.reshape(-1, dimension), axis=0))


@pytest.mark.parametrize(
    ("dimension", "sigma", "table_size", "bounds"),
    [
        (2, 0.0083, 2422, (0.0, 1.0)),
        (3, 0.0112, 20656, (0.0, 1.0)),
        (3, 0.09, 716, (-1.0, 1.0)),
        (4, 0.032, 8727, (0.0, 1.0)),
        (5, 0.065, 5067, (0.0, 1.0)),
        (6, 0.084, 11085, (0.0, 1.0)),
    ],
)
def test_levels_that_fit_have_no_collisions(
    dimension: int, sigma: float, table_size: int, bounds: tuple[float, float]
) -> None:
    """Tables just large enough; the hash of `bounds=None` has collisions."""
    inside = positions_of(30_000, dimension)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64, device=DEVICE)] * dimension)
    positions = bounds[0] + (bounds[1] - bounds[0]) * torch.cat([inside, corners.view(-1, dimension)])
    rows, lattice_points = count_rows(positions, sigma, table_size, bounds)
    assert rows == lattice_points
    assert count_rows(positions, sigma, table_size, None)[0] < lattice_points


@pytest.mark.parametrize(
    ("dimension", "sigma", "table_size"), [(2, 0.0083, 512), (2, 0.0083, 499), (3, 0.0112, 4096), (5, 0.032, 4096)]
)
def test_points_that_share_a_row_lie_apart(dimension: int, sigma: float, table_size: int) -> None:
    """Three times as many lattice points fill the table; those of a third of the cube have no collisions."""
    positions = positions_of(40_000, dimension)
    rows, lattice_points = count_rows(positions, sigma, table_size, (0.0, 1.0))
    assert rows == table_size < lattice_points / 3
    rows, lattice_points = count_rows(positions / 3 + 0.25, sigma, table_size, (0.0, 1.0))
    assert rows == lattice_points > 100


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dimension", [1, 3, 5])
def test_derivatives(dimension: int) -> None:
    layer, positions = make(dimension, table_size=16, num_levels=2, sigmas=[1.0, 0.3]), positions_of(4, dimension)

    def run(positions: Tensor, table: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(layer, {"table": table}, (positions,))
        return found

    inputs = positions.requires_grad_(), layer.table
    assert torch.autograd.gradcheck(run, inputs, nondet_tol=1e-10)
    assert torch.autograd.gradgradcheck(run, inputs, nondet_tol=1e-10)


@pytest.mark.usefixtures("backend")
def test_eikonal_loss() -> None:
    """Derivatives of the gradient of positions with respect to the table, against differences."""
    layer, positions = make(), positions_of(30).requires_grad_()
    mix = draw(8)

    def loss(table: Tensor) -> Tensor:
        distance = (torch.func.functional_call(layer, {"table": table}, (positions,)) * mix).tanh().sum()
        (slope,) = torch.autograd.grad(distance, positions, create_graph=True)
        found: Tensor = (slope.norm(dim=1) - 1).square().mean()
        return found

    (gradient,) = torch.autograd.grad(loss(layer.table), layer.table)
    direction = draw(*layer.table.shape, seed=1)
    with torch.no_grad():
        ahead, behind = layer.table + 1e-6 * direction, layer.table - 1e-6 * direction
    difference = (loss(ahead) - loss(behind)) / 2e-6
    assert abs(float((gradient * direction).sum() - difference.detach())) < 1e-6 * abs(float(difference.detach()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("backend")
def test_tables_of_other_dtypes(dtype: torch.dtype) -> None:
    layer = make(dtype=dtype)
    exact = make(shifts=np.zeros((4, 3)))
    exact.load_state_dict(layer.state_dict())
    positions = positions_of(50, dtype=torch.float32).requires_grad_()
    features = layer(positions)
    assert features.dtype == dtype
    assert_close(features, exact(positions.double()))
    features.float().square().sum().backward()
    assert layer.table.grad is not None
    assert (layer.table.grad.dtype, positions.grad is not None) == (dtype, True)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (3,), (2, 0, 3), (2, 5, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    layer = make(num_levels=1, sigmas=[0.5], include_input=True)
    positions = torch.rand(shape, dtype=torch.float64, device=DEVICE).requires_grad_()
    features = layer(positions)
    assert features.shape == (*shape[:-1], layer.out_features) == (*shape[:-1], 5)
    assert torch.equal(features[..., 2:], positions)
    flat = layer(positions.reshape(-1, 3))
    assert torch.equal(features.reshape(-1, 5), flat)
    features.sum().backward()
    assert positions.grad is not None
    assert positions.grad.shape == shape


def test_window() -> None:
    layer, positions = make(), positions_of(9)
    assert layer.coarse_to_fine(0.0).tolist() == [0.0] * 4
    assert layer.coarse_to_fine(torch.tensor(1.0)).tolist() == [1.0] * 4
    window = layer.coarse_to_fine(0.6)
    assert_close(window, (1 + np.cos(np.pi * np.clip(0.6 * 4 - np.arange(4), 0, 1) + np.pi)) / 2)
    expected = layer(positions).view(9, 4, 2) * window[:, None]
    assert_close(layer(positions, window), expected.flatten(1))
    fixed = make(window=window.tolist(), shifts=0.0)
    fixed.load_state_dict(layer.state_dict() | {"window": window})
    assert_close(fixed(positions), expected.flatten(1))


@on_default_backend
def test_compiles_and_exports(backend: str) -> None:
    layer, positions = make(), positions_of(9).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for points in (9, 6):
        assert torch.equal(compiled(positions[:points]), layer(positions[:points]))
    (slope,) = torch.autograd.grad(compiled(positions).square().sum(), positions)
    assert_close(slope, torch.autograd.grad(layer(positions).square().sum(), positions)[0])
    dynamic = {"positions": {0: torch.export.Dim("points", min=2)}}
    exported = torch.export.export(layer, (positions.detach(),), dynamic_shapes=dynamic)
    assert torch.equal(exported.module()(positions[:5]), layer(positions[:5]))


@pytest.mark.usefixtures("backend")
def test_transforms() -> None:
    """Gradients of single points, ensembles of tables, and forward mode equal plain calls."""
    layer, positions = make(), positions_of(6)
    leaf = positions.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(leaf).square().sum(), leaf)
    assert_close(torch.vmap(torch.func.grad(lambda point: layer(point).square().sum()))(positions), expected)
    tables = torch.stack([layer.table.detach(), 2 * layer.table.detach()])
    both = torch.vmap(lambda table: torch.func.functional_call(layer, {"table": table}, (positions,)))(tables)
    assert_close(both[1], 2 * layer(positions))
    forward = torch.func.jacfwd(layer)(positions[0])
    assert_close(forward, torch.func.jacrev(layer)(positions[0]))

    def slope(table: Tensor, point: Tensor) -> Tensor:
        square = torch.func.grad(lambda at: torch.func.functional_call(layer, {"table": table}, (at,)).square().sum())
        found: Tensor = square(point).norm()
        return found

    mapped = torch.func.grad(lambda table: torch.vmap(lambda point: slope(table, point))(positions).sum())
    whole = torch.func.grad(lambda table: torch.stack([slope(table, point) for point in positions]).sum())
    assert_close(mapped(layer.table.detach()), whole(layer.table.detach()))


def test_autocast() -> None:
    layer, positions = make(dtype=torch.float32), positions_of(9, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        features = layer(positions)
    assert features.dtype == torch.bfloat16
    features.float().sum().backward()
    assert layer.table.grad is not None
    assert layer.table.grad.dtype == torch.float32
    assert_close(features, layer(positions), torch.bfloat16)


def test_conversion_keeps_the_geometry() -> None:
    """Only the table is rounded; a layer that was loaded equals the one that was saved."""
    layer, positions = make(dtype=torch.float32), positions_of(20, dtype=torch.float32)
    half = copy.deepcopy(layer).half()
    assert (half.table.dtype, half.transforms.dtype) == (torch.float16, torch.float32)
    assert_close(half(positions), layer(positions))
    other = make(dtype=torch.float32)
    assert not torch.equal(other(positions), layer(positions))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(positions), layer(positions))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs programs one after another")
def test_deterministic_mode() -> None:
    layer, positions = make(), positions_of(500)
    torch.use_deterministic_algorithms(True)
    gradients = []
    for _ in range(2):
        layer.zero_grad()
        layer(positions).square().sum().backward()
        assert layer.table.grad is not None
        gradients.append(layer.table.grad.clone())
    assert torch.equal(*gradients)


def test_configuration_of_tiny_cuda_nn() -> None:
    config = {"otype": "Permuto", "n_levels": 3, "n_features_per_level": 4, "base_scale": 8, "log2_hashmap_size": 10}
    layer = ph.nn.PermutohedralEncoding.from_config(config, 5, dtype=torch.float64)
    again = ph.nn.PermutohedralEncoding.from_config(config, 5, dtype=torch.float64)
    assert torch.equal(layer.transforms, again.transforms)
    assert (layer.table.shape, layer.bounds) == ((3, 1024, 4), None)
    by_hand = ph.nn.PermutohedralEncoding(5, 3, 4, 1024, sigmas=[1 / 8, 1 / 16, 1 / 32], dtype=torch.float64)
    assert_close(layer.transforms[..., :-1], by_hand.transforms[..., :-1])


ERRORS: dict[str, ErrorCase] = {
    "no dimension": (lambda: make(0), InputError, "dimension must be a whole number of at least 1, got 0"),
    "many dimensions": (lambda: make(17), InputError, "dimension must be at most 16, got 17"),
    "no levels": (lambda: make(num_levels=0), InputError, "num_levels must be .* got 0"),
    "large table": (lambda: make(table_size=2**31), InputError, "table_size must be below"),
    "negative sigma": (lambda: make(sigmas=[1.0, 0.5, -1.0, 0.1]), InputError, "sigmas must be positive, got -1"),
    "few sigmas": (lambda: make(sigmas=[1.0, 0.5]), InputError, r"sigmas must be \[4\] or \[4, 3\], got \(2,\)"),
    "NaN": (lambda: make(shifts=[0.0, 0.0, 0.0, np.nan]), InputError, "shifts must be finite"),
    "bounds": (lambda: make(bounds=(1.0, 0.0)), InputError, "bounds must be"),
    "integers": (lambda: make(dtype=torch.int64), InputError, "dtype must be a floating dtype, got torch.int64"),
    "other dimension": (lambda: make()(positions_of(5, 2)), InputError, r"positions must be \[..., 3\].*got \(5, 2\)"),
    "other dtype": (lambda: make()(positions_of(5).float()), InputError, "positions must be torch.float64"),
    "no tensor": (lambda: make()([[0.0] * 3]), InputError, "positions must be a torch.Tensor, got list"),
    "window": (lambda: make()(positions_of(5), torch.ones(3)), InputError, r"window must be \[4\], got \(3,\)"),
    "configuration": (
        lambda: ph.nn.PermutohedralEncoding.from_config({"otype": "HashGrid"}, 3),
        InputError,
        'config must have "otype": "Permuto"',
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_rejects(case: str) -> None:
    assert_raises(*ERRORS[case])


@pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU the host would have to wait for the answer")
def test_rejects_far_positions() -> None:
    assert_raises(lambda: make()(1e12 * positions_of(5)), FeatureRangeError, "positions reach .* larger sigmas")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="reading positions would wait for the GPU")
def test_warns_of_positions_far_outside_of_the_bounds() -> None:
    pixels = 480 * torch.rand(100, 2)
    encoding = ph.nn.PermutohedralEncoding(2, 2, table_size=64)
    with pytest.warns(
        UserWarning, match=r"positions from \S+ to 4\d\d are far outside of bounds=\(0.0, 1.0\)"
    ) as caught:
        encoding(pixels)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoding(pixels / 480 + 0.1)
        encoding(pixels[:0])
        ph.nn.PermutohedralEncoding(2, 2, table_size=64, bounds=(0.0, 480.0))(pixels)
        ph.nn.PermutohedralEncoding(2, 2, table_size=64, bounds=None)(pixels)
