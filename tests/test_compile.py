"""torch.compile with fullgraph=True, fake tensors, export, and autocast: the same results as eager.

`nn/test_compiled_gradients.py` compiles every layer with the default compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS
from permutohedral.lattice import neighborhood
from permutohedral.ops import constants


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled for one test is reused, or counted, in another."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), torch.float32)


def compare(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Results and all gradients, compiled whole, against eager."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    leaves = [each.clone().requires_grad_() for each in inputs], [each.clone().requires_grad_() for each in inputs]
    expected, actual = function(*leaves[0]), compiled(*leaves[1])
    assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, leaves[0], upstream)
    for mine, theirs in zip(torch.autograd.grad(actual, leaves[1], upstream), gradients, strict=True):
        assert_close(mine, theirs)


# coverage divides by the density, too
@pytest.mark.parametrize("normalization", ["none", "homogeneous", "symmetric", "coverage"])
def test_learned_filter(normalization: Any) -> None:
    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight, normalization=normalization)

    compare(function, draw(20, 2), draw(20, 2, seed=1), draw(7, 2, 3))


@pytest.mark.parametrize("shared", [False, True], ids=["own_lattices", "shared_lattice"])
def test_dense_batches(shared: bool) -> None:
    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight)

    features = draw(12, 2, seed=1) if shared else draw(3, 12, 2, seed=1)
    compare(function, draw(3, 12, 2), features, draw(7, 2, 3))


def test_ragged_batches() -> None:
    batch = torch.arange(20, device=DEVICE) % 3

    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        lattice = ph.build_lattice(features, batch=batch)
        return ph.permutohedral_filter(values, lattice, weight)

    compare(function, draw(20, 2), draw(20, 2, seed=1), draw(7, 2, 3))


@pytest.mark.parametrize(("method", "halo"), [("lattice", 0), ("lattice", 1), ("dense", 0)])
def test_gaussian_filter(method: Any, halo: int) -> None:
    def function(values: Tensor, features: Tensor) -> Tensor:
        return ph.gaussian_filter(values, features, method=method, halo=halo)

    compare(function, draw(20, 2), draw(20, 2, seed=1))


def test_bilateral_filter() -> None:
    compare(lambda image: ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.5), draw(2, 3, 4, 5))


def test_solver_where_ratios_are_not_whole() -> None:
    def function(coarse: Tensor, guide: Tensor) -> Tensor:
        result: Tensor = ph.upsample(coarse, guide, sigma_color=0.3, num_iterations=1, spatial_dims=1)
        return result

    compare(function, draw(1, 3), draw(1, 5))


def test_bandwidths_that_change_reuse_the_graph() -> None:
    def smooth(image: Tensor, sigma: float) -> Tensor:
        return ph.bilateral_filter(image, sigma_space=sigma, sigma_color=0.5)

    compiled, image = torch.compile(smooth, fullgraph=True, backend="aot_eager"), draw(3, 4, 5)
    for sigma in (2.0, 3.0, 4.0):
        assert_close(compiled(image, sigma), smooth(image, sigma))


def test_lattice_built_outside() -> None:
    lattice = ph.build_lattice(draw(20, 2, seed=1))

    def function(values: Tensor, weight: Tensor) -> Tensor:
        return ph.slice(ph.convolve(ph.splat(values, lattice), weight, lattice), lattice)

    compare(function, draw(20, 2), draw(7, 2, 3))


def test_new_sizes_reuse_the_graph() -> None:
    """The number of lattice points is data: it may change without compiling again."""
    graphs = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    layer = ph.nn.PermutohedralConv(4, 3, dimension=2, device=DEVICE)
    compiled = torch.compile(layer, fullgraph=True, backend=counting, dynamic=True)
    for seed, points in enumerate((20, 31, 8, 50)):
        values, features = draw(points, 4), draw(points, 2, seed=seed) * (1 + seed)
        assert_close(compiled(values, features), layer(values, features))
    assert len(graphs) == 1


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "other_targets"])
def test_graph_breaks_only_around_the_layer(apart: bool, caplog: pytest.LogCaptureFixture) -> None:
    """No frame of a backend is compiled, and sizes that change do not end in a warning."""
    layer = ph.nn.PermutohedralConv(2, 3, dimension=2, device=DEVICE)

    def function(values: Tensor, features: Tensor) -> Tensor:
        output: Tensor = layer(2 * values, features, features[::2] if apart else None)
        return output.relu()

    compiled = torch.compile(function, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for seed, points in enumerate((20, 31, 8, 50, 70)):
        values, features = draw(points, 2), draw(points, 2, seed=seed)
        assert_close(compiled(values, features), function(values, features))
    (reason,) = torch._dynamo.utils.counters["graph_break"]
    assert "_build_and_filter" in reason
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_fake_tensors_have_real_shapes() -> None:
    """Nothing is computed. Data-dependent sizes are symbols."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        features, values, weight = torch.empty(20, 2), torch.empty(20, 3), torch.empty(7, 3, 5)
        keys, vertices, barycentric, _ = torch.ops.permutohedral.index_points(features, None)
        assert isinstance(keys.shape[0], torch.SymInt)
        assert (keys.shape[1], keys.dtype) == (3, torch.int32)
        assert (vertices.shape, vertices.dtype) == ((20, 3), torch.int32)
        assert (barycentric.shape, barycentric.dtype) == ((20, 3), torch.float32)
        splatted = torch.ops.permutohedral.splat(values, vertices, barycentric, keys.shape[0])
        neighbors = torch.empty(7, 11, dtype=torch.int32)
        convolved = torch.ops.permutohedral.convolve(splatted, weight, neighbors, 1, None, torch.arange(7))
        assert convolved.shape == (11, 5)
        assert torch.ops.permutohedral.slice(convolved, vertices, barycentric).shape == (20, 5)


def test_export() -> None:
    layer = ph.nn.PermutohedralConv(2, 3, dimension=2, device=DEVICE).eval()
    values, features = draw(20, 2), draw(20, 2, seed=1)
    program = torch.export.export(layer, (values, features), strict=True)
    others = draw(20, 2, seed=2), 3 * draw(20, 2, seed=3)
    assert_close(program.module()(*others), layer(*others))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU puts pixels on other sides of facets for rounded bandwidths")
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "compiled"])
def test_export_of_a_field_with_sizes_that_change(strict: bool) -> None:
    layer = ph.nn.DenseCRF(3, dtype=torch.float64, device=DEVICE)
    sizes = {2: torch.export.Dim("height", min=4, max=64), 3: torch.export.Dim("width", min=4, max=64)}
    inputs = draw(2, 3, 5, 6).double(), draw(2, 1, 5, 6).double()
    program = torch.export.export(layer, inputs, dynamic_shapes=(sizes, sizes), strict=strict)
    others = draw(2, 3, 8, 7).double(), draw(2, 1, 8, 7).double()
    # bandwidths are rounded differently
    assert_close(program.module()(*others), layer(*others), torch.float32)


@pytest.mark.parametrize("export", [True, False], ids=["export", "fake_tensors"])
def test_eager_call_after_export(export: bool) -> None:
    """Offsets of taps are kept from call to call, and those of a recording hold no numbers."""
    layer = ph.nn.PermutohedralConv(2, 3, dimension=2, device=DEVICE)
    inputs = draw(20, 2), draw(20, 2, seed=1)
    expected = layer(*inputs)
    neighborhood._taps.cache_clear()
    constants._build.cache_clear()
    if export:
        torch.export.export(layer, inputs, strict=False)
    else:
        with FakeTensorMode(shape_env=ShapeEnv()):
            neighborhood.neighborhood_of(2, 1).offsets(DEVICE)
            neighborhood.neighborhood_of(2, 1).opposite(DEVICE)
    assert_close(layer(*inputs), expected)


def test_export_with_data_dependent_shapes() -> None:
    """How many items there are, and the Gaussian's share."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = ph.nn.PermutohedralConv(2, 4, dimension=2, normalization="coverage", device=DEVICE)
            self.norm = ph.nn.LatticeGroupNorm(2, 4, device=DEVICE)

        def forward(self, values: Tensor, features: Tensor, batch: Tensor) -> Tensor:
            lattice = self.filter.build_lattice(features, batch=batch)
            return ph.slice(self.norm(ph.splat(self.filter(values, lattice), lattice), lattice), lattice)

    network = Network()
    item = torch.arange(20, device=DEVICE)
    program = torch.export.export(network, (draw(20, 2), draw(20, 2, seed=1), item // 10), strict=False)
    others = draw(20, 2, seed=2), 3 * draw(20, 2, seed=3), item // 5
    assert_close(program.module()(*others), network(*others))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_autocast_keeps_float64(normalization: Any) -> None:
    layer = ph.nn.PermutohedralConv(2, 3, 2, normalization=normalization, device=DEVICE, dtype=torch.float64)
    inputs = draw(20, 2).double(), draw(20, 2, seed=1).double()
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        actual = layer(*inputs)
    assert_close(actual, layer(*inputs))


def test_autocast_with_compile() -> None:
    layer = ph.nn.PermutohedralConv(4, 3, dimension=2, device=DEVICE)
    values, features = draw(40, 4), draw(40, 2, seed=1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        expected, actual = layer(values, features), compiled(values, features)
    assert actual.dtype == torch.bfloat16
    assert_close(actual, expected)


def record(function: Callable[..., Tensor], **options: Any) -> tuple[Callable[..., Tensor], list[str]]:
    """The function compiled, and a list that will hold the operators of this package in its graphs."""
    names: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "permutohedral" in str(node.target))
        return graph.forward

    return torch.compile(function, backend=keep, **options), names


def compare_step(eager: Callable[..., Tensor], compiled: Callable[..., Tensor], parameters: Any, *inputs: Any) -> None:
    """Results and gradients of the parameters and of the first input."""
    found = []
    for function in (eager, compiled):
        leaf = inputs[0].clone().requires_grad_()
        output = function(leaf, *inputs[1:])
        found.append([output, *torch.autograd.grad(output.square().sum(), [leaf, *parameters])])
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("dynamic", [None, True], ids=["default", "dynamic"])
def test_field_and_pyramid_run_outside_of_the_graph(dynamic: bool | None) -> None:
    """Each is one break of the graph, around all of it."""
    field = ph.nn.DenseCRF(3, device=DEVICE)
    network = ph.nn.LatticeUNet(2, 3, dimension=2, step=1.0, widths=(4, 8)).to(DEVICE)
    trained = [each for each in field.parameters() if each.requires_grad]
    torch._dynamo.utils.counters.clear()
    compiled, names = record(field, dynamic=dynamic)
    compare_step(field, compiled, trained, draw(3, 5, 6), draw(1, 5, 6, seed=1))
    assert names == []
    compiled, names = record(network, dynamic=dynamic)
    compare_step(network, compiled, list(network.parameters()), draw(20, 2), 3 * draw(20, 2, seed=1))
    assert not {"permutohedral.coarsen_lattice.default", "permutohedral.index_points.default"} & set(names)
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert [name for name in ("forward", "build_pyramid", "_items") if not any(name in each for each in breaks)] == []
    assert len(breaks) == 3
