"""Check every primitive of the Triton backend on a GPU against the reference in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from permutohedral.neighborhood import Neighborhood, axis_offsets, blur_gain
from permutohedral.ops import reference
from permutohedral.ops import triton as backend

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# relative error of a result, in L2: of rounding for float64 and float32, of the stored result for 16 bits
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
CHANNELS = [(1, 1, 1), (3, 5, 1), (16, 16, 1), (24, 40, 1), (64, 32, 2), (12, 24, 12), (40, 6, 1), (128, 96, 1)]


def relative_error(result: Tensor, expected: Tensor) -> float:
    result, expected = result.double(), expected.double()
    return float((result - expected).norm() / expected.norm().clamp_min(1e-300))


def check_lattice(points: int, d: int, dtype: torch.dtype, batched: bool) -> tuple[str, float, float]:
    """The same keys at every corner, the same weights, the same neighbors."""
    features = torch.randn(points, d, dtype=dtype, device="cuda") * 4
    batch = torch.randint(0, 5, (points,), dtype=torch.int32, device="cuda") if batched else None
    keys, vertices, barycentric, table = backend.index_points(features, batch)
    expected_keys, expected_vertices, expected_barycentric, nothing = reference.index_points(features, batch)
    name = f"index_points d={d} {dtype} batched={batched}"
    same = (keys[vertices.long()] == expected_keys[expected_vertices.long()]).flatten(1).all(dim=1)
    # float32 rounding may put a point that lies near a face on its other side
    error = 1.0 - same.double().mean().item() if len(keys) == len(torch.unique(keys, dim=0)) else 1.0
    error += relative_error(barycentric[same], expected_barycentric[same])
    if d <= 6:
        offsets = Neighborhood(d, 1).offsets("cuda")
        found = backend.find_neighbors(keys, table, keys, offsets)
        error += float((found != reference.find_neighbors(keys, nothing, keys, offsets)).sum())
        error += float((found != backend.find_neighbors(keys, nothing, keys, offsets)).sum())
        opposite = Neighborhood(d, 1).opposite("cuda")
        error += float((backend.transpose_neighbors(found, opposite, len(keys)) != found).sum())
    unique_keys, inverse, _ = backend.index_keys(keys[vertices.flatten().long()])
    error += float((unique_keys[inverse.long()] != keys[vertices.flatten().long()]).sum())
    error += abs(len(unique_keys) - len(keys))
    return name, error, 1e-3 if dtype == torch.float32 else 1e-9


def check_filtering(dtype: torch.dtype, channels: int) -> Iterator[tuple[str, float, float]]:
    features = torch.randn(5000, 3, dtype=torch.float64, device="cuda") * 3
    keys, vertices, barycentric, table = backend.index_points(features, None)
    if dtype != torch.float64:
        barycentric = barycentric.float()
    values = torch.randn(5000, channels, device="cuda").to(dtype)
    lattice_values = torch.randn(len(keys), channels, device="cuda").to(dtype)
    axes = backend.find_neighbors(keys, table, keys, axis_offsets(3, "cuda"))
    exact = values.double(), lattice_values.double(), barycentric.double()
    pairs = {
        "splat": (
            backend.splat(values, vertices, barycentric, len(keys)),
            reference.splat(exact[0], vertices, exact[2], len(keys)),
        ),
        "slice": (backend.slice(lattice_values, vertices, barycentric), reference.slice(exact[1], vertices, exact[2])),
        "barycentric_gradient": (
            backend.barycentric_gradient(values, lattice_values, vertices),
            reference.barycentric_gradient(exact[0], exact[1], vertices),
        ),
        "blur": (backend.blur(lattice_values, axes, False), reference.blur(exact[1], axes, False)),
        "blur reversed": (backend.blur(lattice_values, axes, True), reference.blur(exact[1], axes, True)),
    }
    with_mass = torch.cat([exact[0], torch.ones_like(exact[0][:, :1])], dim=1)
    blurred = reference.blur(reference.splat(with_mass, vertices, exact[2], len(keys)), axes, False)
    filtered = reference.slice(blurred / blur_gain(3), vertices, exact[2])
    tables = vertices, barycentric, axes, vertices, barycentric
    fused = backend.filter_gaussian(values, *tables, 1e-6)
    pairs["filter_gaussian"] = (fused, filtered[:, :-1] / (filtered[:, -1:] + 1e-6))
    for name, (result, expected) in pairs.items():
        yield f"{name} {dtype} channels={channels}", relative_error(result, expected), TOLERANCE[dtype]


def check_convolution(dtype: torch.dtype, sizes: tuple[int, int, int]) -> Iterator[tuple[str, float, float]]:
    in_channels, out_channels, groups = sizes
    neighbors = torch.randint(-1, 3000, (15, 2500), dtype=torch.int32, device="cuda")
    values = torch.randn(3000, in_channels, device="cuda").to(dtype)
    weight = torch.randn(15, in_channels // groups, out_channels, device="cuda").to(dtype)
    gradient = torch.randn(2500, out_channels, device="cuda").to(dtype)
    result = backend.convolve(values, weight, neighbors, groups)
    expected = reference.convolve(values.double(), weight.double(), neighbors, groups)
    yield f"convolve {dtype} {sizes}", relative_error(result, expected), TOLERANCE[dtype]
    result = backend.convolve_weight_gradient(values, gradient, neighbors, groups)
    expected = reference.convolve_weight_gradient(values.double(), gradient.double(), neighbors, groups)
    yield f"convolve_weight_gradient {dtype} {sizes}", relative_error(result, expected), TOLERANCE[dtype]


def check_derivatives(d: int, dtype: torch.dtype) -> Iterator[tuple[str, float, float]]:
    features = torch.randn(3000, d, dtype=dtype, device="cuda") * 4
    gradient = torch.randn(3000, d + 1, dtype=dtype, device="cuda")
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    result = backend.embed_gradient(features, gradient)
    yield (
        f"embed_gradient d={d} {dtype}",
        relative_error(result, reference.embed_gradient(features, gradient)),
        tolerance,
    )
    change = torch.randn(3000, d, dtype=dtype, device="cuda")
    result = backend.embed_differential(features, change)
    expected = reference.embed_differential(features, change)
    yield f"embed_differential d={d} {dtype}", relative_error(result, expected), tolerance


def check_determinism() -> Iterator[tuple[str, float, float]]:
    """Deterministic mode repeats to the last bit."""
    features = torch.rand(200_000, 3, device="cuda") * 20
    values = torch.randn(200_000, 8, device="cuda")
    torch.use_deterministic_algorithms(True)
    runs = []
    for _ in range(2):
        keys, vertices, barycentric, _ = backend.index_points(features, None)
        runs.append((keys, vertices, backend.splat(values, vertices, barycentric, len(keys))))
    torch.use_deterministic_algorithms(False)
    equal = all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
    yield "deterministic mode", float(not equal), 0.5


def check_graph() -> Iterator[tuple[str, float, float]]:
    """A captured graph of splat, convolve, slice gives what the calls give."""
    features = torch.randn(20_000, 3, device="cuda") * 4
    keys, vertices, barycentric, table = backend.index_points(features, None)
    neighbors = backend.find_neighbors(keys, table, keys, Neighborhood(3, 1).offsets("cuda"))
    values, weight = torch.randn(20_000, 32, device="cuda"), torch.randn(15, 32, 32, device="cuda")

    def layer() -> Tensor:
        splatted = backend.splat(values, vertices, barycentric, len(keys))
        return backend.slice(backend.convolve(splatted, weight, neighbors, 1), vertices, barycentric)

    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    values.normal_()
    graph.replay()
    yield "CUDA graph", relative_error(captured, layer()), 2e-6


def all_checks() -> Iterator[tuple[str, float, float]]:
    for d in [1, 2, 3, 5, 6, 8, 12, 16, 20]:
        for dtype in (torch.float32, torch.float64):
            yield check_lattice(3000, d, dtype, batched=d % 2 == 1)
            yield from check_derivatives(d, dtype)
    yield check_lattice(200_000, 3, torch.float32, batched=True)
    for dtype in DTYPES:
        for channels in (1, 3, 4, 32, 100):
            yield from check_filtering(dtype, channels)
        for sizes in CHANNELS:
            yield from check_convolution(dtype, sizes)
    yield from check_determinism()
    yield from check_graph()


def run_checks() -> list[dict[str, object]]:
    """Run all checks; each with its error, its tolerance, and whether it holds."""
    torch.manual_seed(0)
    return [
        {"check": name, "error": error, "tolerance": tolerance, "holds": bool(error <= tolerance)}
        for name, error, tolerance in all_checks()
    ]
