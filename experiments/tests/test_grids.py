"""Filters on grids and on the lattice in plain torch, and the experiment on made images."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import permutohedral as ph
from experiments.data.bsds500 import NOISE_SIGMA
from experiments.grids import run as grids
from experiments.grids.images import Space, add_guides
from experiments.grids.places import Kind, build_places, count_weights
from experiments.results import Result
from experiments.training import RunOptions

KINDS: list[Kind] = ["lattice", "hashed", "dense"]


def draw(dimension: int, points: int = 60) -> tuple[Tensor, Tensor]:
    """Return features around the origin and values."""
    generator = torch.Generator().manual_seed(dimension)
    features = 4 * torch.rand(points, dimension, generator=generator, dtype=torch.float64) - 2
    return features, torch.rand(points, 2, generator=generator, dtype=torch.float64)


def weight_of(kind: Kind, dimension: int, size: int) -> Tensor:
    number = count_weights(kind, dimension, size)
    return torch.randn(number, generator=torch.Generator().manual_seed(number), dtype=torch.float64)


@pytest.mark.parametrize(("dimension", "size"), [(1, 3), (2, 3), (2, 5), (3, 3), (3, 5), (4, 3)])
def test_hashed_and_dense_grids_give_the_same(dimension: int, size: int) -> None:
    features, values = draw(dimension)
    weight = weight_of("dense", dimension, size)
    hashed, dense = (build_places(kind, features, size) for kind in ("hashed", "dense"))
    assert hashed.num_places < dense.num_places
    torch.testing.assert_close(hashed.filter(values, weight), dense.filter(values, weight), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("dimension", "size"), [(1, 5), (2, 3), (3, 3)])
def test_a_grid_interpolates_between_the_corners_of_cells(dimension: int, size: int) -> None:
    """The oracle weights every corner with the product of 1 - distance, and looks neighbors up in a dictionary."""
    features, values = draw(dimension, points=20)
    weight = weight_of("hashed", dimension, size)
    offsets = list(itertools.product(range(-(size // 2), size // 2 + 1), repeat=dimension))
    binomial = [math.comb(size - 1, tap) / 2 ** (size - 1) for tap in range(size)]

    def corners(feature: list[float]) -> dict[tuple[int, ...], float]:
        near = itertools.product(*((math.floor(x), math.floor(x) + 1) for x in feature))
        return {cell: math.prod(1 - abs(x - c) for x, c in zip(feature, cell, strict=True)) for cell in near}

    empty = torch.zeros(3, dtype=torch.float64)
    cells: dict[tuple[int, ...], Tensor] = {}
    for feature, value in zip(features.tolist(), values, strict=True):
        for cell, share in corners(feature).items():
            cells[cell] = cells.get(cell, empty) + share * torch.cat([value, value.new_ones(1)])
    expected = []
    for feature in features.tolist():
        total = empty.clone()
        for cell, share in corners(feature).items():
            for tap, offset in enumerate(offsets):
                found = cells.get(
                    tuple(c + o for c, o in zip(cell, offset, strict=True)), torch.zeros(3, dtype=torch.float64)
                )
                mass = math.prod(binomial[o + size // 2] for o in offset)
                total += share * found * torch.tensor([weight[tap], weight[tap], mass], dtype=torch.float64)
        expected.append(total[:2] / total[2])
    places = build_places("hashed", features, size)
    assert places.num_places == len(cells)
    torch.testing.assert_close(places.filter(values, weight), torch.stack(expected), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("dimension", "size"), [(2, 1), (3, 2), (5, 1)])
def test_the_lattice_in_plain_torch_is_the_filter_of_the_library(dimension: int, size: int) -> None:
    features, values = draw(dimension)
    weight = weight_of("lattice", dimension, size)
    expected = ph.permutohedral_filter(values, features, weight, neighborhood_size=size, normalization="homogeneous")
    places = build_places("lattice", features, size)
    assert places.num_places == ph.build_lattice(features).num_lattice_points
    torch.testing.assert_close(places.filter(values, weight), expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("kind", ["lattice", "hashed"])
def test_the_result_is_the_sum_of_the_responses_times_the_weights(kind: Kind) -> None:
    features, values = draw(3)
    weight = weight_of(kind, 3, 3)
    places = build_places(kind, features, 3)
    expected = torch.einsum("tpc,t->pc", places.responses(values, together=10), weight)
    torch.testing.assert_close(places.filter(values, weight), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gaussian_keeps_a_constant(kind: Kind) -> None:
    features, _ = draw(3)
    places = build_places(kind, features, 3)
    ones = torch.ones(len(features), 1, dtype=torch.float64)
    torch.testing.assert_close(places.filter(ones, places.gaussian), ones, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("space", "channels", "guides"), [("gray", 1, 1), ("gray_blurred", 1, 2), ("color", 3, 3), ("color_gradient", 3, 4)]
)
def test_features_are_positions_and_guides_in_units_of_the_scales(space: Space, channels: int, guides: int) -> None:
    pixels = torch.linspace(0, 1, 3 * 20 * 30).reshape(3, 20, 30)
    image = add_guides("test/1", pixels, space, 10, NOISE_SIGMA, 0)
    assert image.noisy.shape == (100, channels)
    features = image.features(2.0, 0.5, None if guides == channels else 0.25)
    assert features[11, :2].tolist() == [0.5, 0.5]
    torch.testing.assert_close(features[:, 2 : 2 + channels], image.noisy / 0.5)
    torch.testing.assert_close(features[:, 2 + channels :], image.guide[:, channels:] / 0.25)
    # the gradient of a plane, and the blur of a plane
    if space == "color_gradient":
        assert abs(float(image.guide[:, -1].mean()) - math.hypot(30, 1) / 1799) < 0.02
    if space == "gray_blurred":
        assert float((image.guide[:, 1:] - image.clean).std()) < 0.5 * NOISE_SIGMA


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    def make_images(split: str, folder: Path | None, limit: int | None) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(split))
        shades = torch.rand(limit or 3, 3, 4, 5, generator=generator)
        images = shades.repeat_interleave(6, dim=2).repeat_interleave(6, dim=3)
        return {f"{split}/{number}": image for number, image in enumerate(images)}

    monkeypatch.setattr(grids, "read_colors", make_images)
    return RunOptions(tmp_path, tmp_path, device_name="cpu")


def row(geometry: str, size: int, **changes: Any) -> grids.GridsConfig:
    few = {"train_images": 3, "test_images": 3, "crop": 20, "timed_images": 2, "split": "validation"}
    values: dict[str, Any] = {"space": "gray", "sigma_space": 1.6, "sigma_color": 0.25} | few | changes
    return grids.GridsConfig(f"{geometry}_{size}", "Row", geometry=geometry, size=size, **values)  # type: ignore[arg-type]


def test_rows_are_fitted_measured_and_reported(options: RunOptions) -> None:
    rows = [row("lattice", 1), row("grid", 3), row("grid", 5, fitted=False), row("lattice", 2, search=True)]
    rows[1] = replace(rows[1], memory_limit=1.0)
    results = [Result("grids", each.name, asdict(each), grids.run(each, options)[0], 0) for each in rows]
    lattice, grid, counted, search = (result.metrics for result in results)
    # noise of 25/255 is 20.17 dB
    assert all(sum(each["psnr"].values()) > 3 * 24 for each in (lattice, grid))
    assert set(lattice["cost"]) == {"lattice", "reference", "native"}
    assert "seconds" in grid["cost"]["hashed"]
    assert "seconds" not in grid["cost"]["dense"]
    assert grid["cost"]["dense"]["places"] > grid["cost"]["hashed"]["places"]
    assert "psnr" not in counted
    assert counted["weights"] == 125
    assert len(search["psnr"]) >= 5
    assert max(search["psnr"].values()) >= search["psnr"]["1.6 px, 0.25"]
    [page] = grids.report(results, options)
    assert [table.heading for table in page.tables] == ["Quality", "Cost", "Chosen on validation images"]
    assert "| Gray, d = 3 | Row | 125 |" in str(page.tables[0])
    assert "needs" in str(page.tables[1])
