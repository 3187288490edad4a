"""Compare the results of two source trees of the package, to the bit.

`python tools/compare_versions.py BASE/src NEW/src` calls the public functions and layers of each on the same inputs, in
a process of its own with that tree's compiled core, and prints a table; the exit code is 1 if anything differs.
`--smoke` also runs `permutohedral reproduce NAME --smoke` of every experiment (data: `PERMUTOHEDRAL_DATA`, else
downloaded) and compares what they write, apart from commit, times and machine. `--base-python` and `--new-python` name
the interpreters; by default both are this one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

EXPERIMENTS = ("denoising", "mnist", "rotation", "scale", "mri", "points")
# what differs between two runs of the same sources
PASSING = {"seconds", "milliseconds", "environment", "hardware", "training_seconds", "command", "commit", "version"}
PASSING_TEXT = re.compile(r"\d+(\.\d+)? ?(s|ms|seconds|minutes|min|h)\b|\b[0-9a-f]{7,40}\b\+?|-modified")

Normalization = Literal["none", "homogeneous", "symmetric", "density", "coverage"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
DTYPES = (torch.float32, torch.float64)
Found = Iterator[tuple[str, list[Tensor]]]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normally distributed numbers that depend on the arguments alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_gradients(output: Tensor, *leaves: Tensor) -> list[Tensor]:
    """The output, and the gradients of its weighted sum."""
    upstream = draw(*output.shape, dtype=output.dtype, seed=9)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


def functions() -> Found:
    """Filters of every dimension, dtype and normalization, with gradients of values, weight and features."""
    import permutohedral as ph

    for d in range(1, 7):
        for dtype in DTYPES:
            features, targets = draw(300, d, dtype=dtype, seed=d), draw(120, d, dtype=dtype, seed=d + 50)
            values, taps = draw(300, 4, dtype=dtype, seed=1), ph.Neighborhood(d, 1).filter_size
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
            if d <= 3:
                yield f"gaussian_filter dense d={d} {dtype}", [ph.gaussian_filter(values, features, method="dense")]
            yield f"gaussian_filter halo d={d} {dtype}", [ph.gaussian_filter(values, features, halo=1)]


def batches() -> Found:
    """Items of their own points, of shared points, ragged ones; 16 bits; points enough for several threads."""
    import permutohedral as ph

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


def pictures() -> Found:
    """Features and filters of images."""
    import permutohedral as ph

    image = draw(2, 3, 20, 24).sigmoid()
    position, color = ph.position_features(20, 24, 3.0), ph.color_features(image[0], 0.2)
    yield "features", [position, color, ph.join_features(position, color)]
    yield "bilateral_features", [ph.bilateral_features(image, 4.0, 0.2)]
    for d in range(1, 7):
        yield f"gaussian_weight d={d}", [ph.gaussian_weight(d, 1), ph.Neighborhood(d, 1).offsets()]
    yield "bilateral_filter", [ph.bilateral_filter(image, 4.0, 0.2), ph.bilateral_filter(image.double(), 4.0, 0.2)]
    yield "bilateral_filter dense", [ph.bilateral_filter(image[:, :1], 4.0, 0.2, method="dense")]
    yield "bilateral_filter guide, halo", [ph.bilateral_filter(image[:, :1], 4.0, 0.2, guide=image, halo=1)]
    forecasts = [float(ph.forecast_memory(10_000, d, 1, 8).total) for d in range(1, 7)]
    yield "forecasts", [torch.tensor(forecasts, dtype=torch.float64)]


def layers() -> Found:
    """Layers with their gradients, on features and on a lattice."""
    import permutohedral as ph

    features, targets, values = draw(2, 90, 3), draw(2, 40, 3, seed=1), draw(2, 90, 4, seed=2)
    for normalization in NORMALIZATIONS:
        for scaled in (False, True):
            torch.manual_seed(0)
            layer = ph.nn.PermutohedralConvolution(4, 6, 3, groups=2, normalization=normalization, learn_scale=scaled)
            found = with_gradients(layer(values, features, targets), *layer.parameters())
            yield f"PermutohedralConvolution {normalization} learn_scale={scaled}", found
    layer = ph.nn.PermutohedralConvolution(4, 6, 3, init="gaussian")
    yield "PermutohedralConvolution on a lattice", [layer(values, lattice=layer.build_lattice(features)).detach()]
    image = draw(2, 3, 12, 14).sigmoid()
    torch.manual_seed(0)
    for module, arguments in (
        (ph.nn.GaussianFilter(3), (values, features)),
        (ph.nn.BilateralFilter(4.0, 0.2), (image,)),
        (ph.nn.BilateralConvolution2d(3, 5), (image,)),
    ):
        output = module(*arguments)
        parameters = [each for each in module.parameters() if each.requires_grad]
        found = with_gradients(output, *parameters) if parameters else [output]
        yield type(module).__name__, found


def use_tree(source: Path) -> None:
    """Import the package from here, even where another tree is installed as editable."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, str(source))
    import permutohedral

    assert Path(permutohedral.__file__).is_relative_to(source), f"{permutohedral.__file__} is not below {source}"


def reproduce(arguments: list[str]) -> None:
    """The command `permutohedral reproduce`."""
    from permutohedral.__main__ import main as command

    sys.argv = ["permutohedral", "reproduce", *arguments]
    command()


def compute(path: Path) -> None:
    """Save all results of the package that is imported here."""
    import permutohedral as ph

    results: dict[str, list[Tensor]] = {"public names": [torch.tensor(list("\n".join(ph.__all__).encode()))]}
    for backend in ph.available_backends():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with ph.use_backend(backend):
                for part in (functions, batches, pictures, layers):
                    for name, found in part():
                        results[f"{backend}, {threads} threads: {name}"] = [each.contiguous() for each in found]
    torch.save(results, path)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal in shape, dtype and every bit, NaN included."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return left.detach().numpy().tobytes() == right.detach().numpy().tobytes() if left.dtype != torch.bfloat16 else (
        torch.equal(left.view(torch.int16), right.view(torch.int16))
    )  # fmt: skip


def compare_results(base: Path, new: Path) -> list[tuple[str, str]]:
    """A line for each result."""
    left, right = torch.load(base), torch.load(new)
    lines = []
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            lines.append((name, f"only in {'new' if name in right else 'base'}"))
            continue
        pairs = list(zip(left[name], right[name], strict=False))
        equal = len(left[name]) == len(right[name]) and all(same_bits(*pair) for pair in pairs)
        lines.append((name, "equal" if equal else "different"))
    return lines


def without_passing(content: Any) -> Any:
    """A result file without commit, times and machine."""
    if isinstance(content, dict):
        return {name: without_passing(part) for name, part in content.items() if name not in PASSING}
    return [without_passing(part) for part in content] if isinstance(content, list) else content


def read_outputs(folder: Path) -> dict[str, Any]:
    """What an experiment wrote, by file: numbers, text, or whether it is there."""
    found: dict[str, Any] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            found[name] = without_passing(json.loads(path.read_text()))
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        else:
            found[name] = PASSING_TEXT.sub("-", path.read_text()) if path.suffix in (".md", ".csv", ".txt") else None
    return found


def compare_outputs(experiment: str, base: Path, new: Path) -> list[tuple[str, str]]:
    """A line for each file that an experiment wrote."""
    left, right = read_outputs(base), read_outputs(new)
    lines = []
    for name in sorted(left.keys() | right.keys()):
        equal = name in left and name in right and left[name] == right[name]
        lines.append((f"reproduce {experiment}: {name}", "equal" if equal else "different"))
    return lines or [(f"reproduce {experiment}", "wrote nothing")]


def run_tree(python: Path, source: Path, folder: Path, *command: str) -> None:
    """Run a part of this script in `folder`, with a source tree in front of everything that is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "2", "NO_COLOR": "1"}
    arguments = [str(python), str(Path(__file__).resolve()), "--tree", str(source.resolve()), *command]
    subprocess.run(arguments, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Compare, print, and tell by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="the folder that holds the package before, such as old/src")
    parser.add_argument("new", type=Path, help="the folder that holds the package now, such as src")
    parser.add_argument("--smoke", action="store_true", help="also the smoke run of every experiment")
    parser.add_argument("--experiments", nargs="*", default=EXPERIMENTS, help="which of them")
    parser.add_argument("--base-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--new-python", type=Path, default=Path(sys.executable))
    given = parser.parse_args()
    trees = {"base": (given.base_python.absolute(), given.base), "new": (given.new_python.absolute(), given.new)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tree, (python, source) in trees.items():
            run_tree(python, source, folder / tree, "compute", "results.pt")
        lines = compare_results(folder / "base" / "results.pt", folder / "new" / "results.pt")
        for experiment in given.experiments if given.smoke else ():
            for tree, (python, source) in trees.items():
                options = [experiment, "--smoke", "--accelerator", "cpu"]
                # reports name the folder, which must be the same for both
                run_tree(python, source, folder / tree, "reproduce", *options, "--output", experiment)
            lines += compare_outputs(experiment, folder / "base" / experiment, folder / "new" / experiment)
    different = [line for line in lines if line[1] != "equal"]
    width = max(len(name) for name, _ in lines)
    for what, outcome in lines:
        print(f"{what:<{width}}  {outcome}")
    print(f"{len(lines)} compared, {len(different)} different")
    return int(bool(different))


if __name__ == "__main__":
    if sys.argv[1:2] != ["--tree"]:
        sys.exit(main())
    use_tree(Path(sys.argv[2]))
    if sys.argv[3] == "compute":
        compute(Path(sys.argv[4]))
    else:
        reproduce(sys.argv[4:])
