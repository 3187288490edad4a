"""Check the Triton backend on this GPU, then time it: python benchmarks/gpu.py [--output results.json].

Times are medians between CUDA events; `kernels` is the sum over the GPU's own kernels, without the gaps between them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import triton
from gpu_checks import relative_error, run_checks
from torch import Tensor

import permutohedral as ph
from permutohedral.neighborhood import Neighborhood
from permutohedral.ops import reference
from permutohedral.ops import triton as backend

Result = dict[str, object]


def elapsed(run: Callable[[], object], repeats: int = 15, in_a_row: int = 1) -> float:
    """Median milliseconds between events; several runs in a row hide what starting them costs the host."""
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(in_a_row):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / in_a_row)
    return sorted(times)[len(times) // 2]


def captured(run: Callable[[], object], in_a_row: int = 10) -> float:
    """Milliseconds of the GPU alone: the median over replays of a CUDA graph of several runs."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(in_a_row):
            run()
    return elapsed(graph.replay) / in_a_row


def wall(run: Callable[[], object], repeats: int = 30) -> float:
    """Median milliseconds of the host's clock, the device idle before and after."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


def kernels(run: Callable[[], object], repeats: int = 5) -> dict[str, float]:
    """Milliseconds of every kernel per run, and their sum."""
    run()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    table: dict[str, float] = {}
    for event in profile.key_averages():
        if str(event.device_type).endswith("CUDA"):
            table[event.key[:60]] = round(event.self_device_time_total / 1e3 / repeats, 4)
    table = dict(sorted(table.items(), key=lambda item: -item[1]))
    return {"sum": round(sum(table.values()), 4), **table}


def color_image(side: int) -> Tensor:
    """`[3, side, side]`: smooth sums of sinusoids and noise of 0.02."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    y, x = torch.meshgrid(*2 * [torch.linspace(0, 6.28, side, device="cuda")], indexing="ij")
    waves = [torch.sin((c + 2) * x + c) * torch.cos((3 - c) * y) + torch.sin((c + 1) * (x + y)) for c in range(3)]
    image = torch.stack(waves) / 4 + 0.5
    return (image + 0.02 * torch.randn(image.shape, device="cuda", generator=generator)).clamp(0, 1)


def sphere(points: int) -> Tensor:
    """`[points, 3]` near a sphere, scaled so that there are about points / 4 lattice points."""
    torch.manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(points, 3, device="cuda"), dim=1)
    return direction * (1 + 0.005 * torch.randn(points, 1, device="cuda")) * 76.16


def time_bilateral(name: str, side: int) -> Result:
    image = color_image(side)
    features = ph.functional.bilateral_features(image, 16.0, 0.1)
    values = image.flatten(1).T.contiguous()

    def run() -> Tensor:
        return ph.gaussian_filter(values, features)

    lattice = ph.build_lattice(features, neighborhood_size=0, separable=True)
    result: Result = {"workload": name, "ms": elapsed(run), "kernels": kernels(run)}
    return result | {"wall_ms": wall(run), "lattice_points": lattice.num_lattice_points}


def time_sparse() -> Result:
    generator = torch.Generator().manual_seed(0)
    highest = torch.tensor([512, 512, 256, 256, 256, 1])
    features = (torch.rand(196_608, 6, generator=generator) * highest).floor() / torch.tensor([16, 16, 12, 12, 12, 1.0])
    features, values = features.cuda(), torch.rand(196_608, 3, generator=generator).cuda()

    def run() -> Tensor:
        return ph.gaussian_filter(values, features)

    lattice = ph.build_lattice(features, neighborhood_size=0, separable=True)
    result: Result = {"workload": "H1", "ms": elapsed(run), "kernels": kernels(run)}
    return result | {"wall_ms": wall(run), "lattice_points": lattice.num_lattice_points}


def time_building() -> list[Result]:
    results: list[Result] = []
    torch.manual_seed(0)
    for d, features in ((3, sphere(1_000_000)), (5, torch.rand(1_000_000, 5, device="cuda") * 6.2)):

        def run(features: Tensor = features) -> object:
            return backend.index_points(features, None)

        count = len(backend.index_points(features, None)[0])
        results.append({"workload": f"G3 d={d}", "ms": elapsed(run), "kernels": kernels(run), "lattice_points": count})
    return results


def time_convolution() -> list[Result]:
    features = sphere(1_000_000)
    keys, _, _, table = backend.index_points(features, None)
    offsets = Neighborhood(3, 1).offsets("cuda")
    neighbors = backend.find_neighbors(keys, table, keys, offsets)
    taps, num = neighbors.shape
    results: list[Result] = []
    for precision in ("bf16", "tf32", "fp32"):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for channels in (32, 64):
            values = torch.randn(num, channels, device="cuda").to(dtype)
            weight = (torch.randn(taps, channels, channels, device="cuda") / (taps * channels) ** 0.5).to(dtype)
            gradient = torch.randn(num, channels, device="cuda").to(dtype)
            forward = captured(partial(backend.convolve, values, weight, neighbors, 1))
            backward = captured(partial(backend.convolve_weight_gradient, values, gradient, neighbors, 1))
            exact = reference.convolve(values.double(), weight.double(), neighbors, 1)
            error = relative_error(backend.convolve(values, weight, neighbors, 1), exact)
            exact = reference.convolve_weight_gradient(values.double(), gradient.double(), neighbors, 1)
            weight_error = relative_error(backend.convolve_weight_gradient(values, gradient, neighbors, 1), exact)
            unit = 1e6 / (num * taps)
            results.append(
                {
                    "workload": f"G2 {precision} C={channels}",
                    "forward_ns": round(forward * unit, 5),
                    "weight_gradient_ns": round(backward * unit, 5),
                    "both_ns": round((2 * forward + backward) * unit, 5),
                    "error": error,
                    "weight_error": weight_error,
                }
            )
    torch.set_float32_matmul_precision("highest")
    return results


def time_layer() -> list[Result]:
    """32 to 32 channels, d = 2, s = 2, over 8 images of 481 x 321, beside cuDNN's 5 x 5."""
    position = ph.position_features(321, 481, sigma=1.0, device="cuda")
    values = torch.randn(8, 321 * 481, 32, device="cuda")
    image = torch.randn(8, 32, 321, 481, device="cuda")
    results: list[Result] = []
    for precision in ("fp32", "tf32", "bf16"):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        layer = ph.nn.PermutohedralConvolution(32, 32, dimension=2, neighborhood_size=2).to("cuda", dtype)
        conv = torch.nn.Conv2d(32, 32, 5, padding=2).to("cuda", dtype)
        x, y = values.to(dtype).requires_grad_(), image.to(dtype).requires_grad_()
        features = position.expand(8, -1, -1).contiguous()
        lattice = ph.build_lattice(features, neighborhood_size=2)

        def reused(x: Tensor = x, layer: torch.nn.Module = layer, lattice: ph.Lattice = lattice) -> Tensor:
            out: Tensor = layer(x, lattice=lattice)
            return out

        def rebuilt(x: Tensor = x, layer: torch.nn.Module = layer, features: Tensor = features) -> Tensor:
            out: Tensor = layer(x, features)
            return out

        def spatial(y: Tensor = y, conv: torch.nn.Module = conv) -> Tensor:
            out: Tensor = conv(y)
            return out

        def both(forward: Callable[[], Tensor]) -> Callable[[], object]:
            return lambda: forward().sum().backward()

        with torch.no_grad():
            result: Result = {"workload": f"layer {precision}", "forward_ms": elapsed(reused, in_a_row=5)}
            result |= {"rebuilt_ms": elapsed(rebuilt), "cudnn_ms": elapsed(spatial, in_a_row=5)}
            result |= {"kernels": kernels(reused), "rebuilt_kernels": kernels(rebuilt)}
        result |= {"both_ms": elapsed(both(reused), in_a_row=5), "cudnn_both_ms": elapsed(both(spatial), in_a_row=5)}
        result |= {"both_kernels": kernels(both(reused)), "lattice_points": lattice.num_lattice_points}
        results.append(result)
    torch.set_float32_matmul_precision("highest")
    return results


def time_small() -> Result:
    """A batch of 64 images of 28 x 28, lattice included, forward and backward."""
    features = ph.position_features(28, 28, sigma=1.0, device="cuda").expand(64, -1, -1).contiguous()
    values = torch.randn(64, 784, 1, device="cuda", requires_grad=True)
    layer = ph.nn.PermutohedralConvolution(1, 20, dimension=2, neighborhood_size=2).cuda()

    def run() -> None:
        layer(values, features).sum().backward()

    return {"workload": "MNIST batch", "wall_ms": wall(run), "ms": elapsed(run), "kernels": kernels(run)}


def show(result: Result) -> None:
    """One line: the figures, and of the kernels their sum."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in result.items() if not isinstance(v, dict)}
    sums = {k: v["sum"] for k, v in result.items() if isinstance(v, dict)}
    print("  ".join(f"{k}={v}" for k, v in (rounded | sums).items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write the results as JSON")
    parser.add_argument("--skip-checks", action="store_true")
    arguments = parser.parse_args()
    report: dict[str, object] = {
        "gpu": torch.cuda.get_device_properties(0).name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "command": "python benchmarks/gpu.py",
    }
    results: list[Result] = []
    checks: list[Result] = []
    report |= {"results": results, "checks": checks}
    steps: list[Callable[[], Result | list[Result]]] = [
        partial(time_bilateral, "G1", 1024), partial(time_bilateral, "G1L", 4096), time_sparse, time_building,
        time_convolution, time_small, time_layer,
    ]  # fmt: skip
    for step in steps:
        measured = step()
        for result in measured if isinstance(measured, list) else [measured]:
            results.append(result)
            show(result)
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    if not arguments.skip_checks:
        checks.extend(run_checks())
        failed = [check for check in checks if not check["holds"]]
        print(f"{len(checks)} checks, {len(failed)} failed")
        for check in failed:
            print(f"  FAILED {check['check']}: {check['error']:.3g} > {check['tolerance']:.3g}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
