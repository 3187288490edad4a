"""Networks on point clouds: grids against dense definitions, batches, equal sizes, loaders, choice of settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from town import make_town

from experiments.data import ldraw
from experiments.experiment import run_row
from experiments.points import tune as points_tune
from experiments.points.data import Cloud, collate, load_folder, load_lidar, thin_each, turn
from experiments.points.grids import Grid, GridConv, GridStride, convolve, find_neighbors
from experiments.points.networks import NetworkName, build_network
from experiments.points.run import PointsConfig, count_sites, draw_hills, match_cell, measure
from experiments.points.tune import CELLS, LEARNING_RATES, tune
from experiments.registry import load_experiment
from experiments.results import parse_config
from experiments.training import RunOptions, count_weights
from permutohedral.errors import DataError, InputError

GRIDS: tuple[NetworkName, ...] = ("voxel", "voxel_learned", "trilinear")
ALL = [name for name in get_args(NetworkName) if name != "spconv"]
CPU = torch.device("cpu")


def full_grid(side: int, dimension: int) -> Tensor:
    """Return the middle of each voxel of a cube."""
    return torch.tensor(list(product(range(side), repeat=dimension))).double() + 0.5


@pytest.mark.parametrize("dimension", [2, 3])
def test_voxel_convolution_is_that_of_a_dense_grid(dimension: int) -> None:
    """With gradients; zeros are around the cube, and a second item is elsewhere in the batch."""
    torch.manual_seed(0)
    side, positions = 6, full_grid(6, dimension)
    number = len(positions)
    item = torch.arange(2 * number) // number
    level = Grid(positions.repeat(2, 1) - 3, item, 1, linear=False).levels[0]
    layer = GridConv(2, 3, dimension, 0).double()
    rows = torch.randn(2 * number, 2, dtype=torch.float64, requires_grad=True)
    found = layer(rows, level)
    dense = rows.view(2, *[side] * dimension, 2).movedim(-1, 1)
    weight = layer.weight.view(*[3] * dimension, 2, 3).permute(-1, -2, *range(dimension))
    conv = F.conv3d if dimension == 3 else F.conv2d
    expected = conv(dense, weight, layer.bias, padding=1).movedim(1, -1).reshape(2 * number, 3)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    inputs = [rows, layer.weight, layer.bias]
    for one, other in zip(*(torch.autograd.grad(each, inputs, upstream) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_levels_of_a_full_grid_are_pooled_and_copied() -> None:
    torch.manual_seed(0)
    positions = full_grid(4, 3)
    grid = Grid(positions, torch.zeros(64), 2, linear=False)
    rows = torch.randn(64, 5, dtype=torch.float64)
    dense = rows.view(4, 4, 4, 5).movedim(-1, 0)
    torch.testing.assert_close(grid.links[0].mean(rows), F.avg_pool3d(dense, 2).movedim(0, -1).reshape(8, 5))
    coarse = torch.randn(8, 5, dtype=torch.float64)
    spread = coarse.view(2, 2, 2, 5)
    for axis in range(3):
        spread = spread.repeat_interleave(2, dim=axis)
    torch.testing.assert_close(grid.links[0].up(coarse), spread.reshape(64, 5))
    # learned filters of 2 x 2 x 2, down and up
    down, up = (GridStride(5, 3, 3, 0, way, learned=True).double() for way in (True, False))
    # children are numbered with the first axis as the lowest bit
    kernel = down.mix.weight.view(3, 2, 2, 2, 5).permute(0, 4, 3, 2, 1)
    expected = F.conv3d(dense[None], kernel, down.mix.bias, stride=2)[0].movedim(0, -1)
    torch.testing.assert_close(down(rows, grid, 0), expected.reshape(8, 3))
    kernel = up.mix.weight.view(2, 2, 2, 3, 5).permute(4, 3, 2, 1, 0)
    bias = up.mix.bias.view(2, 2, 2, 3).permute(2, 1, 0, 3).repeat(2, 2, 2, 1).reshape(64, 3)
    expected = F.conv_transpose3d(coarse.view(2, 2, 2, 5).movedim(-1, 0)[None], kernel, stride=2)[0].movedim(0, -1)
    torch.testing.assert_close(up(coarse, grid, 0), expected.reshape(64, 3) + bias)


Sites = dict[tuple[int, ...], Any]


def _corners(position: Any, item: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the sites around a position, item first, and their hat functions there."""
    base = np.floor(position).astype(int)
    found = []
    for step in product((0, 1), repeat=len(position)):
        site = base + step
        found.append(((int(item), *map(int, site)), float(np.prod(1 - np.abs(position - site)))))
    return found


def splat_from(positions: Any, item: Any, values: Any) -> Sites:
    """Return the sum of values times hat functions at each site."""
    sites: Sites = {}
    for position, each, value in zip(positions, item, values, strict=True):
        for site, weight in _corners(position, each):
            sites[site] = sites.get(site, 0) + weight * value
    return sites


def interpolate_at(positions: Any, item: Any, sites: Sites) -> Any:
    """Return the sum of the sites' values times their hat functions at each position."""
    pairs = zip(positions, item, strict=True)
    return np.stack([sum(weight * sites[site] for site, weight in _corners(*pair)) for pair in pairs])


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_linear_splat_and_slice_by_their_definition(dimension: int) -> None:
    random = np.random.default_rng(0)
    positions = 4 * random.normal(size=(60, dimension))
    item, values = np.arange(60) % 2, random.normal(size=(60, 2))
    grid = Grid(torch.from_numpy(positions), torch.from_numpy(item), 1, linear=True)
    rows = grid.points.down(torch.from_numpy(values))
    expected = splat_from(positions, item, values)
    assert len(rows) == len(expected)
    # sites are sorted by item, then by place
    torch.testing.assert_close(rows, torch.from_numpy(np.stack([expected[site] for site in sorted(expected)])))
    found = grid.points.up(rows)
    torch.testing.assert_close(found, torch.from_numpy(interpolate_at(positions, item, expected)))


def test_gradients_of_grids() -> None:
    torch.manual_seed(0)
    positions, item = 3 * torch.rand(30, 3, dtype=torch.float64), torch.arange(30) // 15
    grid = Grid(positions, item, 2, linear=True)
    rows = torch.randn(len(grid.points.keys), 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(27, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(convolve, (rows, weight, grid.levels[0].neighbors))
    assert torch.autograd.gradcheck(grid.points.up, (rows,))
    assert torch.autograd.gradcheck(grid.links[0].mean, (rows,))


def test_neighbors_of_gpus_are_those_of_cpus() -> None:
    """A GPU finds each pair twice, so as not to wait; this is its function on the CPU."""
    level = Grid(torch.rand(300, 3) * 6, torch.arange(300) % 2, 1, linear=True).levels[0]
    offsets = [(x << 32) + (y << 16) + z for x, y, z in product((-1, 0, 1), repeat=3)]
    assert torch.equal(find_neighbors(level.keys, torch.tensor(offsets)), level.neighbors)


def clouds(dimension: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(80, 2), torch.rand(80, dimension) * 5, torch.arange(80) // 40


def small(name: NetworkName, head: Any, dimension: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_network(name, 2, 3, dimension, 0.7, (8, 16), head, options)


@pytest.mark.parametrize("head", ["points", "clouds"])
@pytest.mark.parametrize("name", ALL)
def test_every_weight_learns(name: NetworkName, head: Any) -> None:
    for dimension in (2, 3):
        network = small(name, head, dimension)
        scores = network(*clouds(dimension))
        assert scores.shape == ((80, 3) if head == "points" else (2, 3))
        scores.logsumexp(dim=1).sum().backward()
        silent = [n for n, p in network.named_parameters() if p.dim() > 1 and (p.grad is None or not p.grad.any())]
        assert silent == []


@pytest.mark.parametrize("head", ["points", "clouds"])
@pytest.mark.parametrize("name", ALL)
def test_clouds_of_a_batch_do_not_see_each_other(name: NetworkName, head: Any) -> None:
    network, (values, positions, item) = small(name, head), clouds()
    expected = network(values[:40], positions[:40], item[:40])
    # the other cloud is elsewhere, so that a common origin would show
    moved = positions - torch.where(item[:, None] == 1, 33.3, 0.0)
    found = network(values, moved, item)[: len(expected)]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["lattice", *GRIDS])
def test_networks_without_density_do_not_see_repeated_points(name: NetworkName) -> None:
    twice = [torch.cat([each, each]) for each in clouds()]
    for density_input in (True, False):
        network = small(name, "points", density_input=density_input)
        same = torch.allclose(network(*twice)[:80], network(*clouds()), atol=1e-4, rtol=1e-3)
        assert same is not density_input


def test_bfloat16_is_near_float32() -> None:
    for name in ("lattice", *GRIDS):
        network, inputs = small(name, "points"), clouds()
        expected = network(*inputs)
        with torch.autocast("cpu", torch.bfloat16):
            found = network(*inputs)
        assert found.dtype == torch.bfloat16
        assert float((found - expected).detach().abs().max() / expected.detach().abs().max()) < 0.05


def test_rejects_unknown_networks_and_far_positions() -> None:
    with pytest.raises(InputError, match="network must be one of lattice, voxel"):
        build_network("tree", 2, 3, 3, 0.7, (8,), "points", {})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="options do not fit the network voxel"):
        small("voxel", "points", depth=3)
    with pytest.raises(InputError, match="within 32,767 cells of the origin"):
        small("voxel", "points")(torch.rand(5, 2), 1e5 + torch.rand(5, 3), torch.zeros(5))


class FakeSpconv(ModuleType):
    """The part of spconv's API that is used, on the grids of plain torch, with sites of levels out of order."""

    class SparseConvTensor(SimpleNamespace):
        def __init__(self, features: Tensor, indices: Tensor, spatial_shape: Sequence[int], batch_size: int) -> None:
            assert indices.dtype == torch.int32
            assert bool((indices[:, 1:] < torch.tensor(spatial_shape)).all())
            super().__init__(features=features, indices=indices, shape=spatial_shape, batch_size=batch_size, keys={})

        def replace_feature(self, features: Tensor) -> Any:
            assert len(features) == len(self.indices)
            other = FakeSpconv.SparseConvTensor(features, self.indices, self.shape, self.batch_size)
            other.keys = self.keys
            return other

    class SubMConv3d(nn.Module):
        def __init__(self, inward: int, outward: int, size: int, padding: int, indice_key: str) -> None:
            super().__init__()
            self.linear = nn.Linear(inward, outward)

        def forward(self, sites: Any) -> Any:
            return sites.replace_feature(self.linear(sites.features))

    class SparseConv3d(nn.Module):
        def __init__(self, inward: int, outward: int, size: int, stride: int, indice_key: str) -> None:
            super().__init__()
            self.linear, self.key = nn.Linear(inward, outward), indice_key

        def forward(self, sites: Any) -> Any:
            assert all(side % 2 == 0 for side in sites.shape)
            coarse = torch.cat([sites.indices[:, :1], sites.indices[:, 1:] // 2], dim=1)
            indices, parents = coarse.unique(dim=0, return_inverse=True)
            indices, parents = indices.flip(0), len(indices) - 1 - parents
            rows = self.linear(sites.features).new_zeros(len(indices), self.linear.out_features)
            rows = rows.index_add(0, parents, self.linear(sites.features))
            made = FakeSpconv.SparseConvTensor(rows, indices, [side // 2 for side in sites.shape], sites.batch_size)
            made.keys = sites.keys
            made.keys[self.key] = sites, parents
            return made

    class SparseInverseConv3d(nn.Module):
        def __init__(self, inward: int, outward: int, size: int, indice_key: str) -> None:
            super().__init__()
            self.linear, self.key = nn.Linear(inward, outward), indice_key

        def forward(self, sites: Any) -> Any:
            fine, parents = sites.keys[self.key]
            return fine.replace_feature(self.linear(sites.features)[parents])


@pytest.mark.parametrize("head", ["points", "clouds"])
def test_spconv_network_on_a_stand_in(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plumbing: spconv itself needs a GPU."""
    with pytest.raises(InputError, match="needs spconv"):
        small("spconv", head)
    monkeypatch.setitem(sys.modules, "spconv.pytorch", FakeSpconv("spconv.pytorch"))
    network, (values, positions, item) = small("spconv", head), clouds()
    scores = network(values, positions - 2, item)
    assert scores.shape == ((80, 3) if head == "points" else (2, 3))
    scores.logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters() if p.dim() > 1)
    # batch norm sees the batch in training only
    network.eval()
    alone = network(values[:40], positions[:40], item[:40])
    torch.testing.assert_close(network(values, positions, item)[: len(alone)], alone, atol=1e-5, rtol=1e-4)


# classes and input channels, as they are with the data
SIZES = {"lidar": (3, 1, 3, "points"), "parts": (41, 1, 3, "clouds"), "digits": (10, 1, 2, "clouds")}


@pytest.mark.parametrize("data", SIZES)
def test_networks_of_a_data_set_have_equal_numbers_of_weights(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, channels, dimension, head = SIZES[data]
    experiment = load_experiment("points")
    content = experiment.read_rows()
    numbers = {}
    for config in experiment.choose_rows([*content["rows"], *content["more_rows"]]):
        if config.data != data or config.training is None or config.network == "spconv":
            continue
        sizes: Any = (channels, classes, dimension, config.cell, config.widths, head, config.options)
        numbers[config.name] = count_weights(build_network(config.network, *sizes))
    lattice = numbers[f"{data}_lattice"]
    wrong = {name: n for name, n in numbers.items() if abs(n / lattice - 1) > 0.05 and "equal_widths" not in name}
    assert wrong == {}
    assert len(numbers) >= 6


def test_thinning_keeps_a_share_of_each_cloud() -> None:
    cloud = Cloud(torch.rand(1000, 3), {"ones": torch.ones(1000, 1)}, torch.arange(1000))
    assert [len(cloud.thin(share, torch.Generator()).labels) for share in (1.0, 0.25, 0.001)] == [1000, 250, 8]
    thinned = cloud.thin(0.1, torch.Generator())
    assert torch.equal(cloud.positions[thinned.labels], thinned.positions)
    sizes = [len(each.labels) for each in thin_each([cloud] * 200, (0.1, 1.0), seed=0, step=0)]
    assert 95 < min(sizes) < 120
    assert 800 < max(sizes) <= 1000
    # log-uniform: the median is the geometric mean
    assert 250 < sorted(sizes)[100] < 400
    assert sizes == [len(each.labels) for each in thin_each([cloud] * 200, (0.1, 1.0), seed=0, step=0)]


def test_clouds_are_turned_about_the_last_axis() -> None:
    cloud = Cloud(torch.rand(20, 3), {}, torch.tensor(0))
    turned = turn(cloud, 1.0)
    assert torch.equal(turned.positions[:, 2], cloud.positions[:, 2])
    torch.testing.assert_close(torch.pdist(turned.positions), torch.pdist(cloud.positions))
    assert float((turned.positions - cloud.positions).abs().max()) > 0.1


def write_folder(root: Path) -> Path:
    """Write clouds of two classes: on a line, and in a ball."""
    random = np.random.default_rng(0)
    for split, number in (("train", 6), ("validation", 4), ("test", 4)):
        (root / "shapes" / split).mkdir(parents=True)
        for place in range(number):
            positions = random.normal(size=(50 + place, 3)) * ([1, 0, 0] if place % 2 else [0.5, 0.5, 0.5])
            np.savez(root / "shapes" / split / f"{place}.npz", positions=positions, labels=place % 2)
    (root / "shapes" / "classes.txt").write_text("ball\nline")
    return root


def test_folders_of_clouds(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    task = load_folder("shapes", "validation", root, CPU, 4, seed=0)
    assert (task.classes, task.head, task.dimension, len(task.tests["shapes"])) == (("ball", "line"), "clouds", 3, 4)
    values, positions, batch, labels = collate(task.draw(0), ["ones", "height"])
    assert values.shape == (len(positions), 2)
    assert batch.unique().tolist() == [0, 1, 2, 3]
    assert labels.shape == (4,)
    # what is chosen on validation is trained on train alone
    final = load_folder("shapes", "test", root, CPU, 10, seed=0)
    assert [len(each.draw(0)) for each in (task, final)] == [4, 10]


def test_folders_that_are_not_clouds(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    path = root / "shapes" / "train" / "0.npz"
    np.savez(path, positions=np.zeros((5, 3)))
    with pytest.raises(DataError, match="is not a cloud"):
        load_folder("shapes", "validation", root, CPU, 2, seed=0)
    np.savez(path, positions=np.zeros((5, 3)), labels=np.zeros(4, dtype=int))
    with pytest.raises(DataError, match="must have a row for each point"):
        load_folder("shapes", "validation", root, CPU, 2, seed=0)
    with pytest.raises(DataError, match=r"has no \.npz files"):
        load_folder("shapes", "validation", root / "shapes" / "train", CPU, 2, seed=0)


def test_laser_scans_are_split_from_south_to_north(tmp_path: Path) -> None:
    """The part for choosing is the north of the west half; the east half and other places are not read."""
    positions, labels = make_town(8000, side=60.0)
    (tmp_path / "lidar").mkdir()
    np.savez(tmp_path / "lidar" / "zurich.npz", positions=positions.numpy(), classification=labels.numpy())
    task = load_lidar("validation", tmp_path, CPU, 3, 0, 500)
    [north] = task.tests["zurich"]
    corner = positions[:, :2].amin(dim=0)
    places = positions[:, :2] - corner
    held_out = (places[:, 0] < 30) & (places[:, 1] >= 42)
    assert abs(len(north.labels) - int(held_out.sum())) < 20
    assert (task.classes, task.head) == (("ground", "vegetation", "building"), "points")
    for cloud in task.draw(0):
        assert 0 < len(cloud.positions) <= 600
        assert float((cloud.positions[:, :2].amax(dim=0) - cloud.positions[:, :2].amin(dim=0)).max()) < 26
    values, *_ = collate(task.draw(1), ["ones", "height", "above"])
    assert values.shape[1] == 7
    assert torch.equal(task.draw(2)[0].positions, task.draw(2)[0].positions)


def test_ldraw_parts_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ldraw, "LEAST_SHAPES", 2)
    library = tmp_path / "ldraw"
    (library / "parts" / "s").mkdir(parents=True)
    (library / "p").mkdir()
    # a unit square as a primitive; a box of two of them through a subpart, moved by 5 and scaled
    (library / "p" / "rect.dat").write_text("0 Rectangle\n4 16 1 0 1 1 0 -1 -1 0 -1 -1 0 1\n2 24 0 0 0 1 1 1\n")
    (library / "parts" / "s" / "3001s01.dat").write_text("0 ~Brick half\n1 16 0 5 0 2 0 0 0 1 0 0 0 2 RECT.DAT\n")
    brick = "0 Brick  2 x  4\n0 !CATEGORY Brick\n1 16 0 0 0 1 0 0 0 1 0 0 0 1 s\\3001s01.dat\n3 16 0 0 0 4 0 0 0 0 4\n"
    for name in ("3001.dat", "3001p01.dat", "3001a.dat"):
        (library / "parts" / name).write_text(brick)
    for name in ("3020.dat", "3021.dat"):
        (library / "parts" / name).write_text(brick.replace("Brick", "Plate"))
    (library / "parts" / "3005.dat").write_text("0 ~Moved to 3001\n1 16 0 0 0 1 0 0 0 1 0 0 0 1 3001.dat\n")
    (library / "parts" / "st1.dat").write_text(brick.replace("0 Brick", "0 Sticker"))
    assert ldraw.convert(library, tmp_path / "parts") == {"Brick": 2, "Plate": 2}
    found = {path.stem: path.parent.name for path in (tmp_path / "parts").rglob("*.npz")}
    assert sorted(found) == ["3001", "3001a", "3020", "3021"]
    assert found["3001"] == found["3001a"] == ldraw.split_of("3001")
    triangles = ldraw.Library(library).triangles("3001.dat")
    assert triangles.shape == (3, 3, 3)
    assert sorted({float(y) for y in triangles[:, :, 1].flatten()}) == [0.0, 5.0]
    assert np.abs(triangles[1:, :, [0, 2]]).max() == 2
    path = next((tmp_path / "parts").rglob("3001.npz"))
    with np.load(path) as content:
        cloud = content["positions"].astype(np.float32)
    assert cloud.shape == (1024, 3)
    assert np.linalg.norm(cloud, axis=1).max() == pytest.approx(1, abs=1e-3)
    # two planes, of 16 and 8 square units; y points down in the library
    low = cloud[:, 2] < 0
    assert len(np.unique(cloud[low, 2])) == len(np.unique(cloud[~low, 2])) == 1
    assert low.mean() == pytest.approx(2 / 3, abs=0.05)
    assert (tmp_path / "parts" / "classes.txt").read_text() == "Brick\nPlate"
    with pytest.raises(DataError, match="has no folder parts"):
        ldraw.Library(tmp_path / "parts")


def test_cells_are_matched_and_cost_is_measured() -> None:
    positions, item = draw_hills(4000, CPU)
    for network in ("voxel", "trilinear"):
        cell = match_cell(network, positions, item, 1.5)
        wanted = count_sites("lattice", positions, item, 1.5)
        assert abs(count_sites(network, positions, item, cell) / wanted - 1) <= 0.02
    [config] = load_experiment("points").choose_rows(["cost_voxel"], smoke=True)
    found = measure(config, 800, CPU)
    assert set(found) == {"weights", "cell", "sites", "step_ms", "inference_ms", "points_per_second"}


def shapes_config(**changes: Any) -> Any:
    [config] = load_experiment("points").choose_rows(["parts_lattice"], smoke=True)
    return replace(config, data="shapes", widths=(8,), cell=0.5, **changes)


def test_a_row_is_trained_and_evaluated_on_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    training = replace(shapes_config().training, steps=30, batch_size=6, warmup=0, learning_rate=0.01)
    config = shapes_config(training=training, inputs=("ones", "height"))
    result = run_row(load_experiment("points"), config, RunOptions(tmp_path / "out", tmp_path, "cpu"))
    scores = result.metrics["scores"]["shapes"]
    assert list(scores) == ["100", "50", "25", "10", "5"]
    assert scores["100"]["score"] == scores["100"]["accuracy"] == 1.0
    assert set(result.metrics["changed"]) == {"shift", "turn", "both"}
    with pytest.raises(InputError, match="inputs must be among ones, height for shapes, got 'above'"):
        run_row(load_experiment("points"), shapes_config(inputs=("above",)), RunOptions(tmp_path, tmp_path, "cpu"))


def test_tuning_chooses_the_best_of_each_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def score(config: Any, options: RunOptions) -> Any:
        tried.append(config)
        good = (config.training.learning_rate == 0.01) + (config.cell == 0.14) + (config.inputs == ("height",))
        return {"scores": {"shapes": {"100": {"score": float(good)}}}}, {}

    monkeypatch.setattr(points_tune, "run", score)
    result = tune(shapes_config(split="test"), RunOptions(tmp_path, tmp_path, "cpu"))
    best = parse_config(PointsConfig, result.config)
    assert best.training is not None
    assert (best.training.learning_rate, best.cell, best.inputs) == (0.01, 0.14, ("height",))
    assert {config.split for config in tried} == {result.split} == {"validation"}
    # nothing is tried twice
    assert len(tried) == len(result.metrics["tried"]) == len(LEARNING_RATES) + 4 + 1
    assert set(CELLS) == {"lidar", "digits"}
