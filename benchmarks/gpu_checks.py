"""Check every primitive of the Triton backend on a GPU against the reference in float64.

`python benchmarks/gpu_checks.py` prints one line of JSON for each and fails if one does; `--part 0/4` runs a quarter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.functional import Normalization, filter_with_bias
from permutohedral.neighborhood import Neighborhood, axis_offsets, blur_gain
from permutohedral.ops import reference
from permutohedral.ops import triton as backend
from permutohedral.ops.primitives import transpose_weight

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# relative error of a result, in L2: of rounding for float64 and float32, of the stored result for 16 bits
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
CHANNELS = [(1, 1, 1), (3, 5, 1), (16, 16, 1), (24, 40, 1), (64, 32, 2), (12, 24, 12), (40, 6, 1), (128, 96, 1)]

# channels of a filter of features, and whether between different points
FILTERS = [((1, 20), True), ((3, 8), False), ((32, 32), True), ((16, 24), False)]

# what was checked, its error, the largest error allowed
Figure = tuple[str, float, float]


def relative_error(result: Tensor, expected: Tensor) -> float:
    result, expected = result.double(), expected.double()
    return float((result - expected).norm() / expected.norm().clamp_min(1e-300))


def check_lattice(points: int, d: int, dtype: torch.dtype, batched: bool) -> Iterator[Figure]:
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
    yield name, error, 1e-3 if dtype == torch.float32 else 1e-9


def check_filtering(dtype: torch.dtype, channels: int) -> Iterator[Figure]:
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


def check_convolution(dtype: torch.dtype, sizes: tuple[int, int, int]) -> Iterator[Figure]:
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


def check_derivatives(d: int, dtype: torch.dtype) -> Iterator[Figure]:
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


def check_determinism() -> Iterator[Figure]:
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


def check_graph() -> Iterator[Figure]:
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


def check_learned(dtype: torch.dtype, channels: tuple[int, int], normalization: Normalization) -> Iterator[Figure]:
    """The learned filter in one go and its gradients, between different points of several items."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    features, targets = (torch.rand(4, points, 2, dtype=exact, device="cuda") * 20 for points in (900, 500))
    lattice = ph.build_lattice(features, targets, neighborhood_size=2)
    shapes = ((4, 900, channels[0]), (19, *channels), (channels[1],))
    inputs = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
    upstream = torch.randn(4, 500, channels[1], device="cuda").to(dtype)

    def run(given: torch.dtype, on: ph.Lattice) -> tuple[Tensor, ...]:
        values, weight, bias = (each.to(given).requires_grad_() for each in inputs)
        output = filter_with_bias(values, on, weight, bias, normalization)
        return output.detach(), *torch.autograd.grad(output, (values, weight, bias), upstream.to(given))

    found = run(dtype, lattice)
    source, target = (replace(each, barycentric=each.barycentric.double()) for each in (lattice.source, lattice.target))
    with ph.use_backend("reference"):
        expected = run(torch.float64, replace(lattice, source=source, target=target))
    error = max(map(relative_error, found, expected))
    # sums of products whose factors were rounded before
    yield f"learned filter {dtype} {channels} {normalization}", error, 4 * TOLERANCE[dtype]


def check_features(dtype: torch.dtype, channels: tuple[int, int], targets: bool) -> Iterator[Figure]:
    """The learned filter from features alone: step by step, recorded, repeated; of other points, of another size.

    The features lie off the faces of the simplices, so that float32 and float64 agree about them.
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    layer = ph.nn.PermutohedralConvolution(*channels, 2, 2, device="cuda", dtype=dtype)
    truth = ph.nn.PermutohedralConvolution(*channels, 2, 2, device="cuda", dtype=torch.float64)
    truth.load_state_dict(layer.state_dict())
    error = 0.0
    for scale, drawn in [(20, number < 3) for number in range(7)] + [(60, number < 2) for number in range(5)]:
        if drawn:
            features = torch.randint(0, 1 << 10, (4, 900, 2), device="cuda") * (scale / 1024) + 1 / 4096
            at = torch.randint(0, 1 << 10, (4, 500, 2), device="cuda") * (scale / 1024) + 1 / 4096 if targets else None
        values = torch.randn(4, 900, channels[0], device="cuda").to(dtype)
        upstream = torch.randn(4, 500 if targets else 900, channels[1], device="cuda").to(dtype)
        found = layer(values, features.to(exact), None if at is None else at.to(exact))
        found = [found, *torch.autograd.grad(found, list(layer.parameters()), upstream)]
        with ph.use_backend("reference"):
            expected = truth(values.double(), features.double(), None if at is None else at.double())
            expected = [expected, *torch.autograd.grad(expected, list(truth.parameters()), upstream.double())]
        pairs = zip(found, expected, strict=True)
        error = max(error, *(relative_error(one.detach(), other.detach()) for one, other in pairs))
    yield f"filter of features {dtype} {channels} targets={targets}", error, 4 * TOLERANCE[dtype]


def check_foreseen() -> Iterator[Figure]:
    """Lattices of as many points as the one before, but of far more and of far fewer lattice points."""
    features = torch.randn(50_000, 3, dtype=torch.float64, device="cuda")
    offsets = Neighborhood(3, 1).offsets("cuda")
    wrong = 0.0
    for scale in (1.0, 1.0, 30.0, 30.0, 0.01, 4.0):
        keys, vertices, _, table = backend.index_points(scale * features, None)
        expected_keys, expected_vertices, _, nothing = reference.index_points(scale * features, None)
        wrong += abs(len(keys) - len(expected_keys))
        wrong += float((keys[vertices.long()] != expected_keys[expected_vertices.long()]).sum())
        expected = reference.find_neighbors(keys, nothing, keys, offsets)
        for targets in (keys, keys.clone()):
            wrong += float((backend.find_neighbors(keys, table, targets, offsets) != expected).sum())
    yield "lattices after others", wrong, 0.5


def check_at_once(d: int, dtype: torch.dtype) -> Iterator[Figure]:
    """The Gaussian that does not wait for its lattice: of sizes as foreseen, of other ones, of many points."""
    features = torch.randn(120_000, d, dtype=dtype, device="cuda")
    values = torch.randn(120_000, 3, dtype=dtype, device="cuda")
    ph.gaussian_filter(values, features)
    wrong = 0.0
    for scale in (1.0, 1.01, 0.5, 4.0, 4.0):
        found = ph.gaussian_filter(values, scale * features)
        lattice = ph.build_lattice(scale * features, neighborhood_size=0, separable=True)
        source = replace(lattice.source, barycentric=lattice.source.barycentric.double())
        with ph.use_backend("reference"):
            exact = replace(lattice, source=source, target=source)
            expected = ph.gaussian_filter(values.double(), None, lattice=exact)
        wrong = max(wrong, relative_error(found, expected))
    yield f"Gaussian at once d={d} {dtype}", wrong, TOLERANCE[dtype]


def check_halves() -> Iterator[Figure]:
    """TF32 of channels of very different magnitudes, with its gradients: none loses more than the others."""
    values, gradient = torch.randn(40_000, 64, device="cuda"), torch.randn(40_000, 96, device="cuda")
    range_in, range_out = (torch.exp2(torch.linspace(*ends, device="cuda")) for ends in ((-30, 30, 64), (20, -40, 96)))
    weight = torch.randn(7, 64, 96, device="cuda") / range_in[:, None] / range_out
    values, gradient = values * range_in, gradient * range_out
    neighbors, reverse = (torch.randint(-1, 40_000, (7, 40_000), dtype=torch.int32, device="cuda") for _ in range(2))
    opposite = torch.tensor([0, 2, 1, 4, 3, 6, 5], device="cuda")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    found = {"convolution": backend.convolve(values, weight, neighbors, 1)}
    both = backend.convolve_gradients(values, weight, gradient, neighbors, reverse, opposite)
    assert both is not None
    found["gradient of the values"], found["gradient of the weight"] = both
    torch.backends.cuda.matmul.allow_tf32 = before
    exact = values.double(), weight.double(), gradient.double()
    expected = [
        reference.convolve(exact[0], exact[1], neighbors, 1),
        reference.convolve(exact[2], transpose_weight(exact[1], opposite, 1), reverse, 1),
        reference.convolve_weight_gradient(exact[0], exact[2], neighbors, 1),
    ]
    # sums of 40,000 terms that mostly cancel, each to 11 bits; the others have few
    for (name, result), truth, tolerance in zip(found.items(), expected, (1e-3, 1e-3, 2e-3), strict=True):
        error = (result - truth).norm(dim=0) / truth.norm(dim=0)
        yield f"{name} in TF32", float(error.max()), tolerance


def check_streams() -> Iterator[Figure]:
    """Lattices built and filtered on two streams at once are those of one stream."""
    features = [torch.rand(300_000, 3, device="cuda", dtype=torch.float64) * 20 for _ in range(4)]
    values = torch.randn(300_000, 4, device="cuda", dtype=torch.float64)
    expected = [ph.gaussian_filter(values, each) for each in features]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found: list[Tensor] = []
    for number, each in enumerate(features):
        with torch.cuda.stream(streams[number % 2]):
            found.append(ph.gaussian_filter(values, each))
    torch.cuda.synchronize()
    yield "two streams", max(map(relative_error, found, expected)), TOLERANCE[torch.float64]


def check_threads() -> Iterator[Figure]:
    """The same from several threads of the host, each on a stream of its own."""
    features = [torch.rand(100_000, 3, device="cuda", dtype=torch.float64) * 20 for _ in range(8)]
    values = torch.randn(100_000, 4, device="cuda", dtype=torch.float64)
    expected = [ph.gaussian_filter(values, each) for each in features]
    torch.cuda.synchronize()

    def work(each: Tensor) -> Tensor:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            result = ph.gaussian_filter(values, each)
        stream.synchronize()
        return result

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, features))
    yield "four threads", max(map(relative_error, found, expected)), TOLERANCE[torch.float64]


def all_checks() -> list[Callable[[], Iterator[Figure]]]:
    """Each a function that yields what it found."""
    checks: list[Callable[[], Iterator[Figure]]] = [
        check_streams, check_threads, check_determinism, check_graph, check_foreseen, check_halves,
        partial(check_at_once, 3, torch.float64), partial(check_at_once, 5, torch.float32),
    ]  # fmt: skip
    for d in [1, 2, 3, 5, 6, 8, 12, 16, 20]:
        for dtype in (torch.float32, torch.float64):
            checks.append(partial(check_lattice, 3000, d, dtype, d % 2 == 1))
            checks.append(partial(check_derivatives, d, dtype))
    checks.append(partial(check_lattice, 200_000, 3, torch.float32, True))
    for dtype in DTYPES:
        checks += [partial(check_filtering, dtype, channels) for channels in (1, 3, 4, 32, 100)]
        checks += [partial(check_convolution, dtype, sizes) for sizes in CHANNELS]
        checks += [partial(check_learned, dtype, channels, "density") for channels in ((1, 20), (32, 32))]
        checks += [partial(check_learned, dtype, (8, 16), "none")]
        checks += [partial(check_features, dtype, *which) for which in FILTERS]
    return checks


def run_checks(part: int = 0, parts: int = 1) -> Iterator[dict[str, object]]:
    """Run one of several parts of the checks; each with its error, its tolerance, and whether it holds."""
    for number, check in enumerate(all_checks()):
        if number % parts == part:
            torch.manual_seed(number)
            for name, error, tolerance in check():
                yield {"check": name, "error": error, "tolerance": tolerance, "holds": bool(error <= tolerance)}


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1", help="which part of the checks, such as 2/4: parts 0 to 3 are all")
    part, parts = map(int, parser.parse_args().part.split("/"))
    failed = 0
    for found in run_checks(part, parts):
        failed += not found["holds"]
        print(json.dumps(found), flush=True)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
