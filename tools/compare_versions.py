"""Compare results and speed of two installations of the package on the CPU.

`python tools/compare_versions.py BASE/.venv/bin/python NEW/.venv/bin/python` calls public functions and layers on the
same inputs, each version with its own interpreter and compiled core. It prints the results that differ in a bit, with
their largest relative difference; then the exit code is 1. With `--speed` it prints processor times instead: medians of
calls that alternate between both versions, with inputs that change from call to call.

A name or an option that one of the versions lacks is replaced by the name it has there (`RENAMED`).
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# names in ac218fe, and those that replace them
RENAMED = {
    "PermutohedralConvolution": "PermutohedralConv",
    "BilateralConvolution2d": "BilateralConv2d",
    "learn_scale": "learn_sigma",
    "sigma_range": "sigma_color",
    "steps": "num_iterations",
    "separable": "lattice",
}
NORMALIZATIONS = ("none", "homogeneous", "symmetric", "density", "coverage")
DTYPES = (torch.float32, torch.float64)
# inputs that the calls of a row take in turn
VARIANTS = 4
Found = Iterator[tuple[str, list[Tensor]]]
Call = Callable[[int], object]


def package() -> Any:
    """Import the package of this interpreter; not typed, since versions differ."""
    import permutohedral

    return permutohedral


def home_of_levels() -> Any:
    """Return the module of pyramids: the package itself in ac218fe."""
    ph = package()
    return ph if hasattr(ph, "build_pyramid") else ph.levels


def named(holder: Any, name: str) -> Any:
    """Return an attribute, or the one that replaces it."""
    return getattr(holder, name, None) or getattr(holder, RENAMED[name])


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function with the options that it knows by these names, or by those that replace them."""
    known = inspect.signature(function).parameters
    return function(*arguments, **{name if name in known else RENAMED[name]: each for name, each in options.items()})


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Draw normally distributed numbers that depend on the arguments alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def draw_image(height: int, width: int, seed: int = 0) -> Tensor:
    """Draw a smooth color image with noise, `[3, height, width]`."""
    smooth = torch.nn.functional.interpolate(draw(1, 3, 16, 16, seed=seed), (height, width), mode="bicubic")[0]
    return (smooth + 0.1 * draw(3, height, width, seed=seed + 1)).sigmoid()


def with_gradients(output: Tensor, *leaves: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of its weighted sum."""
    upstream = draw(*output.shape, dtype=output.dtype, seed=9)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


def functions() -> Found:
    """Filter in every dimension, dtype and normalization, with gradients of values, weight and features."""
    ph = package()
    for d in range(1, 7):
        for dtype in DTYPES:
            features, targets = draw(300, d, dtype=dtype, seed=d), draw(120, d, dtype=dtype, seed=d + 50)
            values, taps = draw(300, 4, dtype=dtype, seed=1), 2 ** (d + 1) - 1
            weight = draw(taps, 4, 3, dtype=dtype, seed=2)
            lattice = ph.build_lattice(2 * features, targets, separable=True)
            tables = [lattice.source.keys, lattice.source.vertices, lattice.source.barycentric, lattice.neighbors]
            yield f"build_lattice d={d} {dtype}", [*tables, lattice.target.vertices]
            splatted = ph.splat(values, lattice)
            convolved = ph.convolve(splatted, weight, lattice)
            yield f"splat, convolve, slice d={d} {dtype}", [splatted, convolved, ph.slice(convolved, lattice)]
            for normalization in NORMALIZATIONS:
                leaves = first, at, taps_of = [each.clone().requires_grad_() for each in (values, features, weight)]
                filtered = ph.permutohedral_filter(first, at, taps_of, targets, normalization=normalization)
                yield f"permutohedral_filter {normalization} d={d} {dtype}", with_gradients(filtered, *leaves)
                filtered = ph.gaussian_filter(first, at, normalization=normalization)
                yield f"gaussian_filter {normalization} d={d} {dtype}", with_gradients(filtered, first, at)
            yield f"gaussian_filter without gradient d={d} {dtype}", [ph.gaussian_filter(values, features)]
            for method in ("dense", "exact") if d <= 3 else ():
                filtered = ph.gaussian_filter(values, features, method=method)
                yield f"gaussian_filter {method} d={d} {dtype}", [filtered]
            yield f"gaussian_filter halo d={d} {dtype}", [ph.gaussian_filter(values, features, halo=1)]


def batches() -> Found:
    """Filter batches of all kinds, 16 bits, and points enough for several threads."""
    ph = package()
    features, values, weight = draw(3, 80, 2), draw(3, 80, 4, seed=1), draw(7, 4, 6, seed=2)
    yield "own points", [ph.permutohedral_filter(values, features, weight)]
    yield "shared points", [ph.permutohedral_filter(values, features[0], weight)]
    batch = torch.arange(240) % 3
    lattice = ph.build_lattice(features.reshape(-1, 2), batch=batch)
    yield "ragged", [ph.permutohedral_filter(values.reshape(-1, 4), None, weight, lattice=lattice)]
    yield "groups", [ph.permutohedral_filter(values, features, draw(7, 2, 6, seed=3))]
    for dtype in (torch.float16, torch.bfloat16):
        narrow = ph.permutohedral_filter(values.to(dtype), features, weight.to(dtype), normalization="density")
        yield f"{dtype}", [narrow, ph.gaussian_filter(values.to(dtype), features)]
    many, of_many = 3 * draw(40_000, 3, seed=4), draw(40_000, 8, seed=5)
    leaves = [of_many.requires_grad_(), draw(15, 8, 8, seed=6).requires_grad_()]
    filtered = ph.permutohedral_filter(leaves[0], many, leaves[1], normalization="density")
    yield "many points", [*with_gradients(filtered, *leaves), ph.gaussian_filter(of_many.detach(), many)]


def images() -> Found:
    """Filter images with all methods whose algorithms did not change."""
    ph = package()
    image = draw(2, 3, 20, 24).sigmoid()
    for each in (image, image.double()):
        yield f"bilateral_filter {each.dtype}", [call(ph.bilateral_filter, each, sigma_space=4.0, sigma_range=0.2)]
    for method in ("dense", "exact"):
        filtered = call(ph.bilateral_filter, image[:, :1], sigma_space=4.0, method=method, sigma_range=0.2)
        yield f"bilateral_filter {method}", [filtered]
    filtered = call(ph.bilateral_filter, image[:, :1], guide=image, sigma_space=4.0, halo=1, sigma_range=0.2)
    yield "bilateral_filter guide, halo", [filtered]
    large = draw_image(200, 300)
    yield "bilateral_filter large", [call(ph.bilateral_filter, large, sigma_space=8.0, sigma_range=0.1)]


def levels() -> Found:
    """Build pyramids and move values between their levels, with gradients."""
    home = home_of_levels()
    for d in range(1, 6):
        pyramid = home.build_pyramid(4 * draw(200, d, seed=d), 3)
        for number, (level, tables) in enumerate(zip(pyramid.levels[1:], pyramid.tables, strict=True)):
            simplices = level.source
            found = [simplices.keys, simplices.vertices, simplices.barycentric, level.neighbors]
            yield f"build_pyramid d={d} level {number + 1}", [*found, tables.parents, tables.down, tables.up]
        fine = draw(pyramid.levels[0].num_lattice_points, 4, seed=1).requires_grad_()
        coarse = draw(pyramid.levels[1].num_lattice_points, 4, seed=2).requires_grad_()
        yield f"coarsen d={d}", with_gradients(home.coarsen(fine, pyramid, 0), fine)
        yield f"refine d={d}", with_gradients(home.refine(coarse, pyramid, 0), coarse)
        yield f"pool d={d}", with_gradients(home.pool(fine, pyramid, 0), fine)
        weight = draw(2 ** (d + 1) - 1, 4, 4, seed=3).requires_grad_()
        yield f"convolve_down d={d}", with_gradients(home.convolve_down(fine, weight, pyramid, 0), fine, weight)
        yield f"convolve_up d={d}", with_gradients(home.convolve_up(coarse, weight, pyramid, 0), coarse, weight)


def fields() -> Found:
    """Compute mean fields and their gradients."""
    ph = package()
    for labels in (2, 5):
        for dtype in DTYPES:
            points = draw(90, 2, dtype=dtype), draw(90, 5, dtype=dtype, seed=1)
            for costs in (2.0, draw(labels, labels, dtype=dtype, seed=2).abs()):
                kernels = [ph.crf.Kernel(points[0], 1.5), ph.crf.Kernel(points[1], costs, "before")]
                energies = draw(90, labels, dtype=dtype, seed=3).requires_grad_()
                name = f"mean_field {labels} labels {dtype} {'costs' if isinstance(costs, Tensor) else 'Potts'}"
                plain = call(ph.crf.mean_field, energies.detach(), kernels, steps=3)
                yield name, [plain]
                output = call(ph.crf.mean_field, energies, kernels, steps=3)
                yield f"{name}, gradient", with_gradients(output, energies)


def layers() -> Found:
    """Run layers and their gradients, on features and on a lattice."""
    ph = package()
    features, targets, values = draw(2, 90, 3), draw(2, 40, 3, seed=1), draw(2, 90, 4, seed=2)
    convolution = named(ph.nn, "PermutohedralConvolution")
    for normalization in NORMALIZATIONS:
        for scaled in (False, True):
            torch.manual_seed(0)
            layer = call(convolution, 4, 6, 3, groups=2, normalization=normalization, learn_scale=scaled)
            found = with_gradients(layer(values, features, targets), *layer.parameters())
            yield f"PermutohedralConvolution {normalization} learn_scale={scaled}", found
    layer = convolution(4, 6, 3, init="gaussian")
    yield "PermutohedralConvolution on a lattice", [layer(values, lattice=layer.build_lattice(features)).detach()]
    image = draw(2, 3, 12, 14).sigmoid()
    torch.manual_seed(0)
    for name, module, arguments in (
        ("GaussianFilter", ph.nn.GaussianFilter(3), (values, features)),
        ("BilateralFilter", call(ph.nn.BilateralFilter, sigma_space=4.0, sigma_range=0.2), (image,)),
        ("BilateralConv2d", named(ph.nn, "BilateralConvolution2d")(3, 5), (image,)),
    ):
        output = module(*arguments)
        parameters = [each for each in module.parameters() if each.requires_grad]
        yield name, with_gradients(output, *parameters) if parameters else [output]


def compute(path: Path) -> None:
    """Save all results of the installed package."""
    ph = package()
    results: dict[str, list[Tensor]] = {}
    for backend, threads in (("native", 1), ("native", 2), ("reference", 1)):
        torch.set_num_threads(threads)
        with ph.use_backend(backend) if hasattr(ph, "use_backend") else ph.backends.use(backend):
            for part in (functions, batches, images, levels, fields, layers):
                for name, found in part():
                    results[f"{backend}, {threads} threads: {name}"] = [each.contiguous() for each in found]
    torch.save(results, path)


def difference(left: Tensor, right: Tensor) -> str | None:
    """Return how two results differ, None if all their bits are equal."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{tuple(left.shape)} {left.dtype} and {tuple(right.shape)} {right.dtype}"
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    if torch.equal(left.view(bits), right.view(bits)):
        return None
    error, scale = (left.double() - right.double()).abs().max(), left.double().abs().max()
    return f"{float(error / scale):.1e} of the largest number"


def compare_results(base: Path, new: Path) -> int:
    """Print the results that differ; return their number."""
    left, right = torch.load(base), torch.load(new)
    count = 0
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            found: list[str | None] = [f"only in {'new' if name in right else 'base'}"]
        else:
            found = [difference(*pair) for pair in zip(left[name], right[name], strict=True)]
        if any(found):
            count += 1
            several = len(found) > 1
            parts = (f"[{place}] {each}" if several else f"{each}" for place, each in enumerate(found) if each)
            print(f"{name}: {', '.join(parts)}")
    print(f"{len(left.keys() | right.keys())} results compared, {count} differ")
    return count


def speed_rows() -> dict[str, Callable[[], Call]]:
    """Return, by name, functions that prepare the inputs of a row and return its call."""
    ph = package()

    def bilateral() -> Call:
        inputs = [draw_image(1024, 1024, seed=2 * each) for each in range(VARIANTS)]
        return lambda number: call(ph.bilateral_filter, inputs[number % VARIANTS], sigma_space=8.0, sigma_range=0.1)

    def channels() -> Call:
        points = [10 * draw(1_000_000, 3, seed=each) for each in range(2)]
        values = draw(1_000_000, 32)
        return lambda number: ph.gaussian_filter(values, points[number % 2])

    def learned() -> Call:
        points = [5 * draw(100_000, 3, seed=each) for each in range(VARIANTS)]
        values, weight = draw(100_000, 32), draw(15, 32, 32)
        return lambda number: ph.permutohedral_filter(values, points[number % VARIANTS], weight)

    def field() -> Call:
        pictures = [draw_image(188, 250, seed=2 * each) for each in range(VARIANTS)]
        energies = draw(21, 188, 250)

        def run(number: int) -> Any:
            picture = pictures[number % VARIANTS]
            options = {"sigma_space": 60.0, "sigma_range": 0.1, "compatibility": 10.0}
            kernels = [ph.crf.spatial_kernel((188, 250), 3.0), call(ph.crf.bilateral_kernel, picture, **options)]
            return call(ph.crf.mean_field, energies, kernels, steps=5)

        return run

    def step() -> Call:
        points = [2 * draw(500, 2, seed=each) for each in range(VARIANTS)]
        layer, values = named(ph.nn, "PermutohedralConvolution")(8, 8, 2), draw(500, 8)
        return lambda number: layer(values, points[number % VARIANTS]).sum().backward()

    def pyramid() -> Call:
        points = [
            25 * torch.rand(100_000, 3, generator=torch.Generator().manual_seed(each)) for each in range(VARIANTS)
        ]
        return lambda number: home_of_levels().build_pyramid(points[number % VARIANTS], 4)

    return {
        "bilateral filter, 1024 x 1024, d = 5": bilateral,
        "Gaussian, 1 million points, d = 3, 32 channels": channels,
        "learned filter, 100,000 points, d = 3, 32 to 32 channels": learned,
        "mean field, 188 x 250, 21 labels, 5 steps": field,
        "training step of a layer, 500 points, 8 to 8 channels": step,
        "pyramid of 4 levels, 100,000 points, d = 3": pyramid,
    }


def serve() -> None:
    """Answer each line `row number` with the processor time of that call, on one thread."""
    torch.set_num_threads(1)
    rows, calls = speed_rows(), dict[str, Call]()
    for line in sys.stdin:
        row, number = line.rstrip("\n").split("\t")
        if row not in calls:
            calls.clear()
            calls[row] = rows[row]()
            calls[row](0)
        start = time.process_time()
        calls[row](int(number))
        print(time.process_time() - start, flush=True)


def compare_speed(base: Path, new: Path, rounds: int) -> None:
    """Print the median processor times of both versions, and their ratio."""
    workers = [
        subprocess.Popen([each, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for each in (base, new)
    ]
    for row in speed_rows():
        times: list[list[float]] = [[], []]
        for number in range(rounds):
            for worker, found in zip(workers, times, strict=True):
                assert worker.stdin is not None
                assert worker.stdout is not None
                print(f"{row}\t{number}", file=worker.stdin, flush=True)
                found.append(float(worker.stdout.readline()))
        before, now = (1e3 * statistics.median(each) for each in times)
        ratios = statistics.quantiles([b / a for a, b in zip(*times, strict=True)], n=4)
        print(f"{row}: {before:.2f} ms, now {now:.2f} ms, ratio {ratios[1]:.3f} ({ratios[0]:.3f} to {ratios[2]:.3f})")
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()


def main() -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="the interpreter that has the version to compare with")
    parser.add_argument("new", type=Path, help="the interpreter that has the new version")
    parser.add_argument("--speed", action="store_true", help="compare processor times instead of results")
    parser.add_argument("--rounds", type=int, default=25, help="calls of each row, with --speed")
    given = parser.parse_args()
    if given.speed:
        compare_speed(given.base, given.new, given.rounds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("base.pt", "new.pt")]
        for python, path in zip((given.base, given.new), paths, strict=True):
            subprocess.run([python, __file__, "--results", str(path)], check=True)
        return int(compare_results(*paths) > 0)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    elif sys.argv[1] == "--results":
        compute(Path(sys.argv[2]))
    else:
        sys.exit(main())
