"""Splat, blur, slice, convolve: every kernel in Triton's interpreter against the reference.

The interpreter does not multiply matrices of bfloat16; that is left to the suite on a GPU.
"""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch
from interpreted.internals import blur, gaussian, lattice, splat, tuning
from support import assert_close

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import reference
from permutohedral.ops.contract import FieldPlan, PairwiseTables, blur_gain
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton import BACKEND as kernels


@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.float64, 3), (torch.float32, 70), (torch.float16, 4), (torch.bfloat16, 1)]
)
def test_filtering(dtype: torch.dtype, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splat, "_WORTH_RUNS", 1)
    vertices = torch.randint(0, 5, (43, 3), dtype=torch.int32).sort(dim=0).values
    barycentric = torch.rand(3, 43, dtype=torch.float64 if dtype == torch.float64 else torch.float32).T
    values, lattice_values = torch.randn(43, channels).to(dtype), torch.randn(5, channels).to(dtype)
    expected = reference.splat(values, vertices, barycentric, 5)
    assert_close(kernels.splat(values, vertices, barycentric, 5), expected, dtype)
    torch.use_deterministic_algorithms(True)
    assert_close(kernels.splat(values, vertices, barycentric, 5), expected, dtype)
    torch.use_deterministic_algorithms(False)
    expected = reference.slice(lattice_values, vertices, barycentric)
    assert_close(kernels.slice(lattice_values, vertices, barycentric), expected)
    planes = kernels.slice_planes(lattice_values, vertices, barycentric)
    assert planes.is_contiguous()
    assert_close(planes, expected.T)
    expected = reference.barycentric_gradient(values, lattice_values, vertices)
    assert_close(kernels.barycentric_gradient(values, lattice_values, vertices), expected)


@pytest.mark.parametrize("channels", [1, 66])
@pytest.mark.parametrize("deterministic", [False, True])
def test_filter_gaussian(channels: int, deterministic: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    vertices, target_vertices = torch.randint(0, 7, (2, 20, 3), dtype=torch.int32)
    barycentric, target_barycentric = torch.rand(2, 20, 3)
    values = torch.randn(20, channels)
    axis_neighbors = torch.randint(-1, 7, (6, 7), dtype=torch.int32)
    found = kernels.filter_gaussian(values, vertices, barycentric, axis_neighbors, target_vertices, target_barycentric)
    with_mass = torch.cat([values, torch.ones(20, 1)], dim=1)
    blurred = reference.blur(reference.splat(with_mass, vertices, barycentric, 7), axis_neighbors, False)
    expected = reference.slice(blurred / blur_gain(2), target_vertices, target_barycentric)
    assert_close(found, expected[:, :-1] / expected[:, -1:])


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("axes", "dtype"), [(1, torch.float64), (3, torch.float32), (4, torch.float16)])
@pytest.mark.parametrize("reverse", [False, True])
def test_blur(reverse: bool, axes: int, dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blur, "_WORTH_SINGLE_AXES", 0 if at_once == 1 else 100)
    lattice_values = torch.randn(30, 3).to(dtype)
    before = lattice_values.clone()
    axis_neighbors = torch.randint(-1, 30, (2 * axes, 30), dtype=torch.int32)
    expected = reference.blur(lattice_values, axis_neighbors, reverse)
    assert_close(kernels.blur(lattice_values, axis_neighbors, reverse), expected)
    assert torch.equal(lattice_values, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), [(3, 5, 1), (24, 20, 1), (32, 16, 2), (4, 8, 4)])
def test_convolve(dtype: torch.dtype, in_channels: int, out_channels: int, groups: int) -> None:
    neighbors = torch.randint(-1, 30, (3, 41), dtype=torch.int32)
    lattice_values = torch.randn(30, in_channels).to(dtype)
    weight = torch.randn(3, in_channels // groups, out_channels).to(dtype)
    expected = reference.convolve(lattice_values, weight, neighbors, groups)
    assert_close(kernels.convolve(lattice_values, weight, neighbors, groups), expected)
    turned = weight.transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(kernels.convolve(lattice_values, turned, neighbors, groups), expected)
    gradient = torch.randn(41, out_channels).to(dtype)
    expected = reference.convolve_weight_gradient(lattice_values, gradient, neighbors, groups)
    assert_close(kernels.convolve_weight_gradient(lattice_values, gradient, neighbors, groups), expected)


def test_convolve_weight_gradient_of_four_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_WORTH_FOUR_TAPS", 1)
    neighbors = torch.randint(-1, 30, (7, 41), dtype=torch.int32)
    lattice_values, gradient = torch.randn(30, 18).half(), torch.randn(41, 20).half()
    expected = reference.convolve_weight_gradient(lattice_values, gradient, neighbors, 1)
    assert_close(kernels.convolve_weight_gradient(lattice_values, gradient, neighbors, 1), expected)


def test_nothing_in_nothing_out() -> None:
    keys, vertices, barycentric, table = kernels.index_points(torch.empty(0, 2), None)
    assert keys.shape == vertices.shape == barycentric.shape == (0, 3)
    assert kernels.find_neighbors(keys, table, keys, Neighborhood(2, 1).offsets()).shape == (7, 0)
    assert kernels.splat(torch.empty(0, 4), vertices, barycentric, 0).shape == (0, 4)
    assert kernels.slice(torch.empty(0, 4), vertices, barycentric).shape == (0, 4)
    neighbors = torch.full((7, 2), -1, dtype=torch.int32)
    assert torch.equal(kernels.convolve(torch.empty(0, 4), torch.ones(7, 4, 2), neighbors, 1), torch.zeros(2, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "ones"), [(3, 1), (1, 0), (2, 1)])
def test_splat_of_consecutive_points(
    dtype: torch.dtype, channels: int, ones: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of equal corners, corners in turn, and others; points that are no multiple of what a thread takes."""
    monkeypatch.setattr(splat, "_WORTH_RUNS", 1)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    # rows of four, the last of which is whole or holds two points
    points = 2050 if channels == 3 else 2052
    vertices = torch.randint(0, 6, (3, 2052), dtype=torch.int32)
    vertices[0, 9:40], vertices[1, 4:30:2], vertices[1, 5:31:2] = 2, 4, 1
    barycentric = torch.rand(3, 2052, dtype=exact)
    barycentric[:, points:] = torch.nan
    corners = vertices.T[:points], barycentric.T[:points]
    values = torch.randn(points, channels).to(dtype)
    assert splat.can_run(values, *corners, channels + ones)
    # of a part that begins within four, the last four would end beyond the memory
    assert not splat.can_run(values[1:], corners[0][1:], corners[1][1:], channels + ones)
    found = splat.splat_sums(values, *corners, 6, ones)
    exactly = torch.cat([values.double(), torch.ones(points, ones, dtype=torch.float64)], dim=1)
    expected = reference.splat(exactly, corners[0], corners[1].double(), 6)
    assert_close(found, expected.to(exact))


@pytest.mark.parametrize("batched", [False, True])
def test_gaussians_of_changing_points(batched: bool) -> None:
    """One call after another: other points, as many lattice points, a few more, far more, far fewer and back."""
    shape = (2, 12) if batched else (24,)
    features = torch.randn(*shape, 2, dtype=torch.float64)
    for scale in (1.0, 1.0, 1.05, 15.0, 0.01, 9.0):
        features, values = features.flip(-2).contiguous(), torch.randn(*shape, 3, dtype=torch.float64)
        with use_backend("triton"):
            found = ph.gaussian_filter(values, scale * features)
        with use_backend("reference"):
            assert_close(found, ph.gaussian_filter(values, scale * features))


def test_a_gaussian_of_values_that_are_the_features() -> None:
    both = torch.randn(20, 2)
    with use_backend("triton"):
        found = [ph.gaussian_filter(both[:, :2], both) for _ in range(2)]
    with use_backend("reference"):
        for each in found:
            assert_close(each, ph.gaussian_filter(both, both))


def test_the_filter_of_a_picture() -> None:
    """Without a guide, with one, and of a picture that lies otherwise in memory."""
    gray, colors = torch.rand(1, 4, 3), torch.rand(3, 4, 3).bfloat16()
    for image, guide in ((gray, None), (colors, gray), (colors.mT, gray.mT)):
        with use_backend("triton"):
            found = ph.bilateral_filter(image, sigma_space=2.3, sigma_color=0.5, guide=guide)
        with use_backend("reference"):
            assert_close(found, ph.bilateral_filter(image, sigma_space=2.3, sigma_color=0.5, guide=guide))


def test_image_filter_rejects_invalid_arguments() -> None:
    picture = torch.rand(3, 5, 6)
    with use_backend("triton"):
        for sigma_space, sigma_color in ((0.0, 0.1), (2.0, -1), (2.0, float("nan"))):
            with pytest.raises(InputError, match=r"sigma_.* must be positive"):
                ph.bilateral_filter(picture, sigma_space=sigma_space, sigma_color=sigma_color)
        with pytest.raises(InputError, match="guide and image must have one height and width"):
            ph.bilateral_filter(picture, sigma_space=2.0, sigma_color=0.1, guide=picture[:, 1:])
        with pytest.raises(InputError, match="values must be finite"):
            ph.bilateral_filter(picture / 0 * 0, sigma_space=2.0, sigma_color=0.1, guide=picture)
        assert ph.bilateral_filter(picture[:, :0], sigma_space=2.0, sigma_color=0.1).shape == (3, 0, 6)


def test_a_gaussian_of_a_picture_keeps_its_planes() -> None:
    """The result has the memory format of the picture, so that no copy is needed; several channels, too."""
    for channels in (1, 3, 70):
        image = torch.rand(channels, 5, 4)
        features = ph.features.bilateral(image[:1], sigma_space=2.0, sigma_color=0.5)
        values = image.flatten(1).T
        with use_backend("triton"):
            found = ph.gaussian_filter(values, features)
        assert found.stride() == values.stride() or channels == 1
        with use_backend("reference"):
            assert_close(found, ph.gaussian_filter(values, features))


def test_a_gaussian_of_more_lattice_points_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    features, values = 9 * torch.randn(20, 2), torch.randn(20, 2)
    with use_backend("reference"):
        expected = ph.gaussian_filter(values, features)
    monkeypatch.setattr(lattice, "_FEW_DIMENSIONS", 0)
    for module, name, number in ((lattice, "_FEWEST_ROWS", 7), (gaussian, "MOST_POINTS_AHEAD", 5)):
        monkeypatch.setattr(module, name, number)
        with use_backend("triton"):
            assert_close(ph.gaussian_filter(values, features), expected)


@pytest.mark.parametrize("most_ahead", [lattice.MOST_POINTS_AHEAD, 5])
@pytest.mark.parametrize(("dimension", "extent", "insertions"), [(7, 1000.0, 2), (2, 9.0, 1)], ids=["wide", "narrow"])
def test_points_are_inserted_again_only_where_that_helps(
    dimension: int, extent: float, insertions: int, most_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of a wide range get bits by it. This counts launches: nothing else shows repeated work."""
    features, values = torch.rand(12, dimension), torch.randn(12, 2)
    features[:, 0] *= extent
    with use_backend("reference"):
        expected = ph.gaussian_filter(values, features), ph.build_lattice(features).num_lattice_points
    launches: list[bool] = []
    insert_points = lattice.insert_points

    def counted(*arguments: Any) -> lattice.Insertion:
        launches.append(True)
        return insert_points(*arguments)

    monkeypatch.setattr(lattice, "insert_points", counted)
    for module in (lattice, gaussian):
        monkeypatch.setattr(module, "MOST_POINTS_AHEAD", most_ahead)
    with use_backend("triton"):
        assert_close(ph.gaussian_filter(values, features), expected[0])
        assert len(launches) == insertions
        assert ph.build_lattice(features).num_lattice_points == expected[1]
    assert len(launches) == 2 * insertions


def test_gaussian_rejects_nonfinite_features() -> None:
    features, values = torch.randn(20, 2), torch.randn(20, 1)
    with use_backend("triton"):
        ph.gaussian_filter(values, features)
        features[3, 1] = float("nan")
        with pytest.raises(FeatureRangeError):
            ph.gaussian_filter(values, features)


@pytest.mark.parametrize("runs", [True, False])
def test_splat_skips_vertices_without_a_row(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splat, "_WORTH_RUNS", 1 if runs else 1000)
    vertices, barycentric = torch.randint(0, 9, (3, 16), dtype=torch.int32).T, torch.rand(3, 16).T
    values = torch.randn(16, 2)
    expected = reference.splat(values, vertices, barycentric, 9)[:5]
    assert_close(splat.splat_sums(values, vertices, barycentric, 5, 0), expected)


def test_splat_takes_pictures_as_they_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splat, "_WORTH_RUNS", 1)
    vertices, barycentric = torch.randint(0, 5, (3, 16), dtype=torch.int32).T, torch.rand(3, 16).T
    values = torch.randn(3, 16).T
    assert_close(kernels.splat(values, vertices, barycentric, 5), reference.splat(values, vertices, barycentric, 5))


@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("channels", [2, 65])
def test_the_gaussian_between_points_whatever_number_of_rows_was_made_room_for(
    rows: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "_FEW_DIMENSIONS", 0)
    monkeypatch.setattr(lattice, "_FEWEST_ROWS", rows)
    monkeypatch.setattr(lattice, "_POINTS_PER_ROW", 1000)
    features, values = 3 * torch.randn(30, 2), torch.randn(30, channels)
    with use_backend("reference"):
        expected = ph.gaussian_filter(values, features)
    for _ in range(2):
        with use_backend("triton"):
            assert_close(ph.gaussian_filter(values, features), expected)


def far_apart(table: torch.Tensor) -> torch.Tensor:
    """A copy of `[points, 3]` whose corners lie 2^30 elements apart, in memory that is not used in between."""
    memory = torch.frombuffer(mmap.mmap(-1, ((2 << 30) + table.shape[0]) * table.element_size()), dtype=table.dtype)
    return memory.as_strided(table.shape, (1, 1 << 30)).copy_(table)


def test_corners_beyond_32_bits() -> None:
    """Offsets of corners exceed 2^31 as soon as there are 2^31 / d points."""
    near, weights = torch.randint(0, 5, (9, 3), dtype=torch.int32), torch.rand(9, 3)
    vertices, barycentric = far_apart(near), far_apart(weights)
    values, lattice_values = torch.randn(9, 4), torch.randn(5, 4)
    axes = torch.randint(-1, 5, (6, 5), dtype=torch.int32)
    assert_close(kernels.splat(values, vertices, barycentric, 5), reference.splat(values, near, weights, 5))
    assert_close(kernels.slice(lattice_values, vertices, barycentric), reference.slice(lattice_values, near, weights))
    assert_close(
        kernels.barycentric_gradient(values, lattice_values, vertices),
        reference.barycentric_gradient(values, lattice_values, near),
    )
    found = kernels.filter_gaussian(values, vertices, barycentric, axes, vertices, barycentric)
    assert_close(found, kernels.filter_gaussian(values, near, weights, axes, near, weights))


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("labels", [3, 7])
def test_mean_field_beyond_32_bits(labels: int, power: float) -> None:
    near, weights = torch.randint(0, 5, (9, 3), dtype=torch.int32), torch.rand(9, 3)
    axes = torch.randint(-1, 5, (6, 5), dtype=torch.int32)
    energies = torch.randn(1, labels, 9)

    def run(vertices: torch.Tensor, barycentric: torch.Tensor) -> torch.Tensor:
        pairwise = PairwiseTables(vertices, barycentric, axes, power, power, None, 0.3, False)
        found = kernels.mean_field(energies, None, FieldPlan([pairwise], 2, False))
        return found[0]

    assert_close(run(far_apart(near), far_apart(weights)), run(near, weights))
