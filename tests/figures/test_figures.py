"""Figures of the lattice: their geometry and files."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from figures.__main__ import main
from figures.canvas import DPI, MARGIN
from figures.filters import draw_neighborhood
from figures.steps import make_scene
from PIL import Image

import permutohedral as ph
from permutohedral.apps.io.figure import save_figure
from permutohedral.lattice.geometry import lattice_positions, step_positions, tap_positions

# rounding in float64
TOLERANCE = 1e-12


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_points_are_barycentric_means_of_corners(dimension: int) -> None:
    features = torch.randn(40, dimension, dtype=torch.float64) * 5
    simplices = ph.build_lattice(features).source
    corners = lattice_positions(simplices)[simplices.vertices.long()]
    torch.testing.assert_close((simplices.barycentric[..., None] * corners).sum(dim=1), features, rtol=0, atol=1e-10)


def test_taps_match_neighbors() -> None:
    lattice = ph.build_lattice(torch.rand(200, 2, dtype=torch.float64) * 4, neighborhood_size=2)
    positions, taps = lattice_positions(lattice.source), tap_positions(lattice.neighborhood)
    for tap, row in zip(taps, lattice.neighbors, strict=True):
        found = row >= 0
        assert bool(found.any())
        torch.testing.assert_close(positions[row[found].long()], positions[found] + tap, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dimension", "size"), [(2, 3), (3, 2), (5, 1)])
def test_taps_match_neighborhood_distances(dimension: int, size: int) -> None:
    neighborhood = ph.lattice.Neighborhood(dimension, size)
    distances = tap_positions(neighborhood).norm(dim=1)
    torch.testing.assert_close(distances, neighborhood.distances(), rtol=0, atol=TOLERANCE)


def test_steps_close_into_a_simplex() -> None:
    steps = step_positions(3)
    assert float(steps.sum(dim=0).abs().max()) < TOLERANCE
    torch.testing.assert_close(steps.norm(dim=1), torch.full((4,), np.sqrt(9 / 8)), check_dtype=False)


def test_scene_matches_operators() -> None:
    scene = make_scene(num_points=9)
    weight = ph.lattice.gaussian_weight(2, 2, torch.float64)
    expected = ph.permutohedral_filter(scene.values, scene.features, weight / weight.sum(), neighborhood_size=2)
    torch.testing.assert_close(scene.sliced, expected, rtol=0, atol=TOLERANCE)


def test_draws_the_figures_of_the_documentation(tmp_path: Path) -> None:
    main(tmp_path)
    paths = sorted(tmp_path.iterdir())
    images = Path(__file__).parents[2] / "docs" / "images"
    assert len(paths) > 5
    assert [path.name for path in paths if not (images / path.name).is_file()] == []
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            with Image.open(path) as image:
                assert np.asarray(image.convert("L")).std() > 5


def test_figures_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save_figure(draw_neighborhood(2), tmp_path / name, DPI, MARGIN)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
