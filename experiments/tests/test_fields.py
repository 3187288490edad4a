"""Neural fields: encodings, the tasks' true values, equal parameters."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.fields.encodings import Field, HashGrid, level_resolutions, permutohedral_encoding
from experiments.fields.run import build_field, make_task
from experiments.fields.tasks import Surface, Waves, value_and_gradient
from experiments.registry import load_experiment
from experiments.training import RunOptions, count_weights

CPU = torch.device("cpu")


def interpolate_slowly(grid: HashGrid, position: np.ndarray) -> np.ndarray:
    """Encode one position as Instant-NGP defines it, corner by corner."""
    primes = (1, 2654435761, 805459861, 3674653429, 2097192037, 1434869437)
    table, resolutions, result = grid.table.detach().numpy(), grid.resolutions.numpy(), []
    for level, resolution in zip(table, resolutions, strict=True):
        scaled = position * resolution + np.float32(0.5)
        base, points = np.floor(scaled).astype(int), np.ceil(resolution).astype(int) + 2
        total = np.zeros(level.shape[1])
        for corner in itertools.product((0, 1), repeat=len(position)):
            place, row = base + corner, 0
            if points.prod() <= len(level):
                row = sum(int(c) * int(points[:axis].prod()) for axis, c in enumerate(place))
            else:
                for c, prime in zip(place, primes, strict=False):
                    row ^= int(c) * prime
            weight = np.prod(np.where(corner, scaled - base, 1 - scaled + base))
            total += weight * level[row % len(level)]
        result.append(total)
    return np.concatenate(result)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_grid_equals_its_definition(d: int) -> None:
    grid = HashGrid(level_resolutions(4, 2, 20, torch.linspace(0.5, 1, d)), 3, 4**d)
    grid.table.data.normal_()
    assert 0 < grid.numbered < 4
    positions = torch.rand(20, d, generator=torch.Generator().manual_seed(0))
    expected = np.stack([interpolate_slowly(grid, position) for position in positions.numpy()])
    np.testing.assert_allclose(grid(positions).detach().numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("d", [2, 3, 6])
def test_lattice_has_as_many_points_per_volume_as_the_grid(d: int) -> None:
    encoding = permutohedral_encoding(torch.full((1, d), 7.0, dtype=torch.float64), 1, 16)
    assert encoding.transforms.shape == (1, d, d + 1)
    density = torch.linalg.det(encoding.transforms[0, :, :d].double()).abs()
    torch.testing.assert_close(density, torch.tensor(7.0**d, dtype=torch.float64), rtol=1e-4, atol=0)


def test_rows_of_a_task_have_equal_parameters() -> None:
    experiment = load_experiment("fields")
    rows = experiment.choose_rows(["surface_permutohedral", "surface_grid", "waves_permutohedral", "waves_grid"])
    counts = []
    for config in rows:
        d, size = config.dimensions[0], 2 ** config.table_sizes[0]
        task = make_task(config, d, RunOptions(Path(), device_name="cpu"))
        counts.append(count_weights(build_field(config, d, size, task)))
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]


def test_surface_is_a_distance_within_the_cube() -> None:
    surface = Surface(CPU, 2000)
    assert 0 < surface.cloud.min() < surface.cloud.max() < 1
    torch.testing.assert_close(surface.values(surface.cloud), torch.zeros(2000, 1), atol=1e-5, rtol=0)
    positions = torch.rand(500, 3, generator=torch.Generator().manual_seed(1))
    distances, gradients = value_and_gradient(surface.values, positions)
    torch.testing.assert_close(gradients.norm(dim=1), torch.ones(500), atol=1e-4, rtol=0)
    nearest = torch.cdist(positions, Surface(CPU, 100_000).cloud).amin(dim=1)
    assert ((nearest - distances[:, 0].abs()).abs() < 0.02).all()
    scores = surface.evaluate(surface.values, 1000)
    assert scores["near"] == scores["anywhere"] == 0
    assert scores["degrees"] < 0.05
    assert scores["smoothed"] < 1


@pytest.mark.parametrize("row", ["surface_permutohedral", "surface_grid", "surface_frequency"])
def test_window_hides_fine_levels(row: str) -> None:
    [config] = load_experiment("fields").choose_rows([row])
    field = build_field(config, 3, 2**12, Surface(CPU, 16))
    if config.encoding != "frequency":
        field.encoding.get_parameter("table").data.normal_()
    positions = torch.rand(10, 3, generator=torch.Generator().manual_seed(0))
    complete, start = field(positions), (positions - 0.5).norm(dim=1, keepdim=True) - 0.4
    field.show_levels(1.0)
    torch.testing.assert_close(field(positions), complete)
    field.show_levels(0.0)
    assert field.window is not None
    expected = field.network(torch.cat([torch.zeros(10, len(field.window)), 2 * positions - 1], dim=1)) + start
    torch.testing.assert_close(field(positions), expected)
    field.show_levels(0.5)
    assert 0 < field.window.count_nonzero() < len(field.window)


def test_a_perfect_field_scores_high() -> None:
    waves = Waves(4, CPU)
    assert waves.evaluate(waves.values, 1000)["psnr"] == math.inf
    field = Field(HashGrid(level_resolutions(2, 2, 4, torch.ones(4)), 2, 64), 4, 3, 8, smooth=False)
    assert waves.evaluate(field, 1000)["psnr"] < 20
