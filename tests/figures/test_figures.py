"""Figures of the lattice: their geometry and files."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from figures import draw_filter, draw_steps, make_scene
from figures.__main__ import main
from figures.canvas import grid_points
from figures.filters import neighborhood_with_taps
from figures.inputs import read_filters, shipped_filters
from PIL import Image
from safetensors.torch import save_file

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.files.figure import save_figure
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
    neighborhood = ph.Neighborhood(dimension, size)
    distances = tap_positions(neighborhood).norm(dim=1)
    torch.testing.assert_close(distances, neighborhood.distances(), rtol=0, atol=TOLERANCE)


def test_steps_close_into_a_simplex() -> None:
    steps = step_positions(3)
    assert float(steps.sum(dim=0).abs().max()) < TOLERANCE
    torch.testing.assert_close(steps.norm(dim=1), torch.full((4,), np.sqrt(9 / 8)), check_dtype=False)


def test_backdrop_contains_every_lattice_point() -> None:
    scene = make_scene()
    occupied = lattice_positions(scene.lattice.source).numpy()
    drawn = grid_points(occupied.min(axis=0), occupied.max(axis=0))
    nearest = np.linalg.norm(occupied[:, None] - drawn, axis=2).min(axis=1)
    assert nearest.max() < 1e-9
    assert len(drawn) == len(np.unique(drawn.round(6), axis=0))


def test_scene_matches_operators() -> None:
    scene = make_scene(num_points=9)
    weight = ph.gaussian_weight(2, 2, torch.float64)
    expected = ph.permutohedral_filter(scene.values, scene.features, weight / weight.sum(), neighborhood_size=2)
    torch.testing.assert_close(scene.sliced, expected, rtol=0, atol=TOLERANCE)


def test_steps_label_the_barycentric_weights() -> None:
    texts = [text.get_text() for text in draw_steps(make_scene(), ["splat"]).axes[0].texts]
    weights = [float(text) for text in texts if text]
    assert len(weights) == 3
    assert sum(weights) == pytest.approx(1, abs=0.02)


def test_draws_figures_of_documentation(tmp_path: Path) -> None:
    main(tmp_path)
    for path in tmp_path.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    with Image.open(tmp_path / "simplices.png") as image:
        assert np.asarray(image.convert("L")).std() > 5
    assert len(list(tmp_path.iterdir())) == 5


def test_drawing_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_figure(draw_steps(make_scene(), ["slice"]), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_reads_filters_from_files(tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    weight = torch.randn(7, 2, 3)
    save_file({"layer.weight": weight, "layer.bias": torch.zeros(3)}, path)
    filters = read_filters(path, None)
    assert list(filters) == ["0 to 0", "1 to 0", "0 to 1", "1 to 1", "0 to 2", "1 to 2"]
    assert torch.equal(filters["1 to 2"], weight[:, 1, 2].double())
    draw_filter(read_filters(path, "layer.weight"))
    np.save(tmp_path / "one.npy", np.zeros(65))
    assert list(read_filters(tmp_path / "one.npy", None)) == ["filter"]


def test_shipped_filter_has_three_dimensions() -> None:
    filters = shipped_filters()
    assert [len(weight) for weight in filters.values()] == [65, 65]
    assert not torch.allclose(filters["Gaussian"], filters["trained"])
    # a row for each filter, a panel for each layer, and a scale for each row
    layers = len(set(tap_positions(neighborhood_with_taps(65))[:, 2].round(decimals=4).tolist()))
    assert len(draw_filter(filters).axes) == 2 * (layers + 1)


def test_rejects_filters_that_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="8 taps belongs to no neighborhood"):
        neighborhood_with_taps(8)
    with pytest.raises(InputError, match="25 filters do not fit"):
        draw_filter({str(number): torch.zeros(7) for number in range(25)})
    np.save(tmp_path / "flat.npy", np.zeros((7, 2)))
    with pytest.raises(InputError, match="holds 0 filters"):
        read_filters(tmp_path / "flat.npy", None)
    with pytest.raises(InputError, match=r"\[taps, inputs, outputs\]"):
        read_filters(tmp_path / "flat.npy", "flat")
