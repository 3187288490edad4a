"""Every primitive of the Triton backend on a GPU against the reference in float64 on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from gpu.exactness import DTYPES, L2_TOLERANCE, assert_near, exact
from mean_field_cases import defined, field, marginals_and_gradients, move
from support import INTERPRETED
from torch import Tensor

from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import reference
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import FieldPlan, blur_gain, transpose_weight

kernels = pytest.importorskip("permutohedral.ops.triton", reason="Triton is not installed")
weight_gradient = pytest.importorskip(
    "permutohedral.ops.triton.filter.weight_gradient", reason="Triton is not installed"
)
launching = pytest.importorskip("permutohedral.ops.triton.kernel", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="tests/interpreted has these for the interpreter")

CHANNELS = [(1, 1, 1), (3, 5, 1), (16, 16, 1), (24, 40, 1), (64, 32, 2), (12, 24, 12), (40, 6, 1), (128, 96, 1)]
LATTICES = [(3000, d, dtype) for d in (1, 2, 3, 5, 6, 8, 12, 16, 20) for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(("points", "d", "dtype"), [*LATTICES, (200_000, 3, torch.float32)])
def test_lattice(points: int, d: int, dtype: torch.dtype) -> None:
    """The same keys at every corner, the same weights, the same neighbors."""
    features = torch.randn(points, d, dtype=dtype, device="cuda") * 4
    batch = torch.randint(0, 5, (points,), dtype=torch.int32, device="cuda") if d % 2 == 1 else None
    keys, vertices, barycentric, table = kernels.index_points(features, batch)
    expected_keys, expected_vertices, expected_barycentric, nothing = reference.index_points(
        features.cpu(), None if batch is None else batch.cpu()
    )
    at_corners = keys[vertices.long()]
    same = (at_corners.cpu() == expected_keys[expected_vertices.long()]).flatten(1).all(dim=1)
    # float32 rounding may put a point that lies near a face on its other side
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    assert 1.0 - same.double().mean().item() <= tolerance
    assert len(keys) == len(torch.unique(keys, dim=0))
    assert_near(barycentric.cpu()[same], expected_barycentric[same], tolerance)
    if d <= 6:
        offsets, opposite = Neighborhood(d, 1).offsets("cuda"), Neighborhood(d, 1).opposite("cuda")
        found = kernels.find_neighbors(keys, table, keys, offsets, opposite)
        assert torch.equal(found.cpu(), reference.find_neighbors(keys.cpu(), nothing, keys.cpu(), offsets.cpu()))
        assert torch.equal(found, kernels.find_neighbors(keys, nothing.cuda(), keys, offsets))
        assert torch.equal(found, kernels.find_neighbors(keys, table, keys, offsets))
        assert torch.equal(kernels.transpose_neighbors(found, opposite, len(keys)), found)
    unique_keys, inverse, _ = kernels.index_keys(at_corners.flatten(0, 1))
    assert torch.equal(unique_keys[inverse.long()], at_corners.flatten(0, 1))
    assert len(unique_keys) == len(keys)


@pytest.mark.parametrize(("points", "scale"), [(50_000, 3.0), (300_000, 0.05), (300_000, 40.0)])
def test_lattice_and_neighbors_in_one_call(points: int, scale: float) -> None:
    """Few lattice points, very few, which go to a smaller table, and more than room was made for."""
    features, neighborhood = scale * torch.randn(points, 3, device="cuda"), Neighborhood(3, 1)
    offsets, opposite = neighborhood.offsets("cuda"), neighborhood.opposite("cuda")
    found = kernels.index_with_neighbors(features, None, offsets, opposite, lambda number: None)
    keys, vertices, _, table, neighbors = found
    expected_keys, expected_vertices, *_ = kernels.index_points(features, None)
    assert torch.equal(keys[vertices.long()], expected_keys[expected_vertices.long()])
    assert len(keys) == len(expected_keys)
    assert torch.equal(neighbors, kernels.find_neighbors(keys, table, keys, offsets))
    assert torch.equal(neighbors, kernels.find_neighbors(keys, table[:0], keys, offsets))


def test_native_launcher_starts_triton_kernels() -> None:
    """Also in a thread that has not used the GPU yet, and on another stream."""
    pytest.importorskip("permutohedral._native", reason="the compiled core is not installed")
    function, stream = launching.clear_kernel.function, torch.cuda.Stream()
    variant = launching.Variant(function, {"BLOCK": 64})
    tensors = [torch.ones(100, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()

    def clear(tensor: Tensor) -> None:
        variant((1, 1, 1), (tensor,), (50,))

    clear(tensors[0])
    # from here on Triton would have to be asked
    variant._function = None
    clear(tensors[1])
    with torch.cuda.stream(stream):
        clear(tensors[2])
    variant._function = function
    thread = threading.Thread(target=clear, args=(tensors[3],))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    for tensor in tensors:
        assert tensor.sum() == 50
        assert not tensor[:50].any()


@pytest.mark.parametrize("channels", [1, 3, 4, 32, 100])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filtering(dtype: torch.dtype, channels: int) -> None:
    features = torch.randn(5000, 3, dtype=torch.float64, device="cuda") * 3
    keys, vertices, barycentric, table = kernels.index_points(features, None)
    if dtype != torch.float64:
        barycentric = barycentric.float()
    values = torch.randn(5000, channels, device="cuda").to(dtype)
    lattice_values = torch.randn(len(keys), channels, device="cuda").to(dtype)
    axes = kernels.find_neighbors(keys, table, keys, axis_offsets(3, "cuda"))
    fused = kernels.filter_gaussian(values, vertices, barycentric, axes, vertices, barycentric)
    corners, weights, neighbors = vertices.cpu(), exact(barycentric), axes.cpu()
    with_mass = torch.cat([exact(values), torch.ones(5000, 1, dtype=torch.float64)], dim=1)
    blurred = reference.blur(reference.splat(with_mass, corners, weights, len(keys)), neighbors, False)
    filtered = reference.slice(blurred / blur_gain(3), corners, weights)
    pairs = [
        (
            kernels.splat(values, vertices, barycentric, len(keys)),
            reference.splat(exact(values), corners, weights, len(keys)),
        ),
        (
            kernels.slice(lattice_values, vertices, barycentric),
            reference.slice(exact(lattice_values), corners, weights),
        ),
        (
            kernels.barycentric_gradient(values, lattice_values, vertices),
            reference.barycentric_gradient(exact(values), exact(lattice_values), corners),
        ),
        (kernels.blur(lattice_values, axes, False), reference.blur(exact(lattice_values), neighbors, False)),
        (kernels.blur(lattice_values, axes, True), reference.blur(exact(lattice_values), neighbors, True)),
        (fused, filtered[:, :-1] / filtered[:, -1:]),
    ]
    for result, expected in pairs:
        assert_near(result, expected, L2_TOLERANCE[dtype])


@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), CHANNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution(dtype: torch.dtype, in_channels: int, out_channels: int, groups: int) -> None:
    neighbors = torch.randint(-1, 3000, (15, 2500), dtype=torch.int32, device="cuda")
    values = torch.randn(3000, in_channels, device="cuda").to(dtype)
    weight = torch.randn(15, in_channels // groups, out_channels, device="cuda").to(dtype)
    gradient = torch.randn(2500, out_channels, device="cuda").to(dtype)
    expected = reference.convolve(exact(values), exact(weight), neighbors.cpu(), groups)
    assert_near(kernels.convolve(values, weight, neighbors, groups), expected, L2_TOLERANCE[dtype])
    expected = reference.convolve_weight_gradient(exact(values), exact(gradient), neighbors.cpu(), groups)
    result = kernels.convolve_weight_gradient(values, gradient, neighbors, groups)
    assert_near(result, expected, L2_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 6, 8, 12, 16, 20])
def test_derivatives_of_the_weights(d: int, dtype: torch.dtype) -> None:
    features = torch.randn(3000, d, dtype=dtype, device="cuda") * 4
    gradient = torch.randn(3000, d + 1, dtype=dtype, device="cuda")
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    expected = reference.embed_gradient(features.cpu(), gradient.cpu())
    assert_near(kernels.embed_gradient(features, gradient), expected, tolerance)


def test_lattices_are_independent_of_earlier_calls() -> None:
    """Of as many points as the one before, but of far more and of far fewer lattice points."""
    features = torch.randn(50_000, 3, dtype=torch.float64, device="cuda")
    offsets, opposite = Neighborhood(3, 1).offsets("cuda"), Neighborhood(3, 1).opposite("cuda")
    for scale in (1.0, 1.0, 30.0, 30.0, 0.01, 4.0):
        keys, vertices, _, table = kernels.index_points(scale * features, None)
        expected_keys, expected_vertices, _, nothing = reference.index_points((scale * features).cpu(), None)
        assert len(keys) == len(expected_keys)
        assert torch.equal(keys[vertices.long()].cpu(), expected_keys[expected_vertices.long()])
        expected = reference.find_neighbors(keys.cpu(), nothing, keys.cpu(), offsets.cpu())
        for taps in ((offsets,), (offsets, opposite)):
            assert torch.equal(kernels.find_neighbors(keys, table, keys, *taps).cpu(), expected)


def test_deterministic_mode_is_bitwise_reproducible() -> None:
    features = torch.rand(200_000, 3, device="cuda") * 20
    values = torch.randn(200_000, 8, device="cuda")
    torch.use_deterministic_algorithms(True)
    runs = []
    for _ in range(2):
        keys, vertices, barycentric, _ = kernels.index_points(features, None)
        runs.append((keys, vertices, kernels.splat(values, vertices, barycentric, len(keys))))
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Products of float32 may be rounded to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32")
def test_tf32_of_channels_of_different_magnitudes() -> None:
    """With gradients: no channel loses more than the others."""
    values, gradient = torch.randn(40_000, 64, device="cuda"), torch.randn(40_000, 96, device="cuda")
    range_in, range_out = (torch.exp2(torch.linspace(*ends, device="cuda")) for ends in ((-30, 30, 64), (20, -40, 96)))
    weight = torch.randn(7, 64, 96, device="cuda") / range_in[:, None] / range_out
    values, gradient = values * range_in, gradient * range_out
    neighbors, reverse = (torch.randint(-1, 40_000, (7, 40_000), dtype=torch.int32, device="cuda") for _ in range(2))
    opposite = torch.tensor([0, 2, 1, 4, 3, 6, 5], device="cuda")
    convolved = kernels.convolve(values, weight, neighbors, 1)
    both = weight_gradient.scaled_fp16_gradients(values, weight, gradient, neighbors, reverse, opposite)
    adjoint = transpose_weight(exact(weight), opposite.cpu(), 1)
    # sums of 40,000 terms that mostly cancel, each to 11 bits; the others have few
    for result, expected, tolerance in (
        (convolved, reference.convolve(exact(values), exact(weight), neighbors.cpu(), 1), 1e-3),
        (both[0], reference.convolve(exact(gradient), adjoint, reverse.cpu(), 1), 1e-3),
        (both[1], reference.convolve_weight_gradient(exact(values), exact(gradient), neighbors.cpu(), 1), 2e-3),
    ):
        error = (exact(result) - expected).norm(dim=0) / expected.norm(dim=0)
        assert float(error.max()) <= tolerance


@pytest.mark.parametrize("with_costs", [False, True])
@pytest.mark.parametrize("labels", [2, 5, 21, 64, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_field(dtype: torch.dtype, labels: int, with_costs: bool) -> None:
    energies, tables = field(labels, 2000, dtype, with_costs)
    on_gpu = [move(kernel, "cuda") for kernel in tables]
    for some in (slice(0, 2), slice(2, 3), slice(0, 3)):
        found, _ = kernels.mean_field(energies.cuda(), None, FieldPlan(on_gpu[some], 3, False))
        # the logits grow with the number of points, and their rounding errors with them
        assert_near(found, defined(energies, None, tables[some], 3), 20 * L2_TOLERANCE[dtype])


@pytest.mark.parametrize(("labels", "with_costs"), [(2, False), (5, True), (21, False)])
def test_mean_field_gradients(labels: int, with_costs: bool) -> None:
    """Of kernels with the same scales at either end, and with others; with and without a start."""
    energies, tables = field(labels, 2000, torch.float32, with_costs)
    start = torch.softmax(torch.randn(2, labels, 2000), dim=1)
    for some, begin in ((slice(0, 2), None), (slice(2, 3), start)):
        for one, other in marginals_and_gradients(kernels, energies, begin, tables[some], 3, "cuda"):
            assert_near(one, other, 20 * L2_TOLERANCE[torch.float32])
