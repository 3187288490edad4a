"""Filters and layers on a GPU against the reference in float64 on the CPU, on inputs that change from call to call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu.exactness import DTYPES, L2_TOLERANCE, assert_near, exact, l2_error
from support import DETERMINISTIC, INTERPRETED
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.filters.normalization import Normalization

pytestmark = pytest.mark.skipif(INTERPRETED, reason="tests/interpreted has these for the interpreter")

# channels of a filter, and whether it is between different points
FILTERS = [((1, 20), True), ((3, 8), False), ((32, 32), True), ((16, 24), False)]


def grid_points(points: int, scale: float, dtype: torch.dtype) -> Tensor:
    """`[4, points, 2]` off the faces of the simplices, so that float32 and float64 agree about them."""
    drawn = torch.randint(0, 1 << 10, (4, points, 2), device="cuda") * (scale / 1024) + 1 / 4096
    return drawn.to(dtype)


def layers(
    channels: tuple[int, int], dtype: torch.dtype, normalization: Normalization = "density"
) -> tuple[ph.nn.PermutohedralConv, ph.nn.PermutohedralConv]:
    """One on the GPU, and the same in float64 on the CPU."""
    layer = ph.nn.PermutohedralConv(*channels, 2, 2, normalization=normalization, device="cuda", dtype=dtype)
    truth = ph.nn.PermutohedralConv(*channels, 2, 2, normalization=normalization, dtype=torch.float64)
    truth.load_state_dict(layer.state_dict())
    return layer, truth


def run(layer: torch.nn.Module, values: Tensor, points: tuple[Tensor | None, ...], upstream: Tensor) -> list[Tensor]:
    """The output, and the gradients of values and parameters."""
    values = values.detach().requires_grad_()
    output = layer(values, *points)
    return [output.detach(), *torch.autograd.grad(output, [values, *layer.parameters()], upstream)]


@pytest.mark.parametrize("sigma", [3.0, 0.1, 0.7])
def test_features_round_as_on_cpu(sigma: float) -> None:
    """By the kernel, by torch's operators, and on the CPU: what rounds otherwise may lie in another simplex."""
    images = torch.rand(2, 3, 40, 50, device="cuda")
    expected = ph.features.bilateral(images.cpu(), sigma_space=sigma, sigma_color=sigma)
    assert torch.equal(ph.features.bilateral(images, sigma_space=sigma, sigma_color=sigma).cpu(), expected)
    transformed = torch.vmap(lambda image: ph.features.bilateral(image, sigma_space=sigma, sigma_color=sigma))(images)
    assert torch.equal(transformed.cpu(), expected)
    assert torch.equal(
        ph.features.positions((40, 50), sigma, device="cuda").cpu(), ph.features.positions((40, 50), sigma)
    )


@pytest.mark.parametrize("normalization", ["density", "none"])
@pytest.mark.parametrize(("channels", "targets"), FILTERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_from_features(
    dtype: torch.dtype, channels: tuple[int, int], targets: bool, normalization: Normalization
) -> None:
    """Of points drawn once and used again, of others, of other numbers of points and lattice points."""
    coordinates = torch.float64 if dtype == torch.float64 else torch.float32
    layer, truth = layers(channels, dtype, normalization)
    for scale, points in ((20, 900), (20, 900), (60, 900), (20, 700), (20, 900)):
        features = grid_points(points, scale, coordinates)
        at = grid_points(500, scale, coordinates) if targets else None
        for _ in range(2):
            values = torch.randn(4, points, channels[0], device="cuda").to(dtype)
            upstream = torch.randn(4, 500 if targets else points, channels[1], device="cuda").to(dtype)
            found = run(layer, values, (features, at), upstream)
            with ph.backends.use("reference"):
                on_cpu = exact(features), None if at is None else exact(at)
                expected = run(truth, exact(values), on_cpu, exact(upstream))
            for ours, theirs in zip(found, expected, strict=True):
                # sums of products whose factors were rounded before
                assert_near(ours, theirs, 4 * L2_TOLERANCE[dtype])


def test_window_of_more_images_than_a_grid_has_layers() -> None:
    """An axis of a grid but the first has at most 65,535 programs."""
    images = torch.rand(70_000, 1, 2, 3, device="cuda")
    found = ph.bilateral_filter(images, sigma_space=1.0, sigma_color=0.5, method="exact")
    for part in (slice(0, 5), slice(69_995, 70_000)):
        assert_near(
            found[part], ph.bilateral_filter(images[part], sigma_space=1.0, sigma_color=0.5, method="exact"), 1e-6
        )


@pytest.mark.parametrize(("d", "dtype"), [(3, torch.float64), (5, torch.float32)])
def test_gaussians_of_changing_points(d: int, dtype: torch.dtype) -> None:
    features = torch.randn(120_000, d, dtype=dtype, device="cuda")
    # positive: the mean of many that cancel would have no digits to compare
    values = torch.rand(120_000, 3, dtype=dtype, device="cuda")
    for scale, points in (
        (1.0, 120_000),
        (1.0, 120_000),
        (1.01, 120_000),
        (0.5, 90_000),
        (4.0, 120_000),
        (4.0, 120_000),
    ):
        some, at = values[:points], (scale * features)[:points]
        found = ph.gaussian_filter(some, at)
        # on the lattice of this dtype: points near a face may lie on its other side in float64
        lattice = ph.build_lattice(at, neighborhood_size=0, separable=True).source
        with ph.backends.use("reference"):
            expected = gaussian_on(lattice, exact(some), lattice.num_lattice_points, d)
        assert_near(found, expected, L2_TOLERANCE[dtype])


def gaussian_on(points: ph.lattice.Simplices, values: Tensor, num_lattice_points: int, d: int) -> Tensor:
    """The normalized Gaussian on given simplices, of primitives in float64 on the CPU."""
    from permutohedral.ops import reference
    from permutohedral.ops.constants import axis_offsets
    from permutohedral.ops.contract import blur_gain

    keys, vertices, barycentric = points.keys.cpu(), points.vertices.cpu(), exact(points.barycentric)
    axes = reference.find_neighbors(keys, torch.empty(0, dtype=torch.int64), keys, axis_offsets(d))
    with_mass = torch.cat([values, torch.ones(len(values), 1, dtype=torch.float64)], dim=1)
    blurred = reference.blur(reference.splat(with_mass, vertices, barycentric, num_lattice_points), axes, False)
    filtered = reference.slice(blurred / blur_gain(d), vertices, barycentric)
    return filtered[:, :-1] / filtered[:, -1:]


def test_two_streams() -> None:
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
    assert max(map(l2_error, found, expected)) <= L2_TOLERANCE[torch.float64]


def test_sixteen_threads_on_sixteen_streams() -> None:
    """Gaussian and layer, forward and backward, as from one thread."""
    inputs = [
        (torch.rand(20_000 + 500 * n, 3, device="cuda") * 20, torch.randn(20_000 + 500 * n, 4, device="cuda"))
        for n in range(32)
    ]
    layer = ph.nn.PermutohedralConv(4, 8, 3, device="cuda")

    def work(given: tuple[Tensor, Tensor]) -> list[Tensor]:
        features, values = given
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            output = layer(values, features)
            gradients = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
            results = [ph.gaussian_filter(values, features), output.detach(), *gradients]
        stream.synchronize()
        return results

    expected = [work(each) for each in inputs]
    torch.cuda.synchronize()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, inputs))
    for ours, alone in zip(found, expected, strict=True):
        for left, right in zip(ours, alone, strict=True):
            assert l2_error(left, right) <= 6e-7


def test_more_values_than_int32() -> None:
    """A constant along one dimension stays that constant, at every end and around 2^31 numbers."""
    points, channels = 34_000_000, 64
    free, _ = torch.cuda.mem_get_info()
    needed = 5 * points * channels * 4
    if free < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB of free memory on the GPU, there are {free / 1e9:.0f}")
    # some fifty points to a lattice point, so that their sums are exact enough
    features = (torch.arange(points, device="cuda") % 1_000_000)[:, None].float()
    values = torch.full((1, 1), 3.0, device="cuda").expand(points, channels)
    filtered = ph.gaussian_filter(values, features)
    assert filtered.shape == (points, channels)
    assert filtered.numel() > 2**31
    for part in filtered.split(1_000_000):
        assert float((part - 3.0).abs().max()) <= 1e-5 * 3.0


def test_more_corners_than_int32() -> None:
    """450 million points in 5 dimensions have 2.7 billion corners: a constant stays that constant."""
    points, needed = 450_000_000, 80e9
    free, _ = torch.cuda.mem_get_info()
    if free < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB of free memory on the GPU, there are {free / 1e9:.0f}")
    features, values = torch.rand(points, 5, device="cuda").mul_(10), torch.full((1, 1), 2.0, device="cuda")
    if DETERMINISTIC:
        with pytest.raises(InputError, match="fewer than 2,147,483,647 corners"):
            ph.gaussian_filter(values.expand(points, 1), features)
        return
    filtered = ph.gaussian_filter(values.expand(points, 1), features)
    for part in filtered.split(50_000_000):
        assert float((part - 2.0).abs().max()) <= 2e-4
