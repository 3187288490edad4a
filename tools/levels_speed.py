"""How long pyramids and filters on them take beside one lattice: `python tools/levels_speed.py --json FILE`.

Points of every call differ; both sides of a ratio take turns in one run, and it is the median over the turns. Times are
medians of processor time on the CPU, of one thread unless `--threads` says otherwise, and of the clock on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.benchmarks.environment import describe
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.markdown import markdown_table

POINTS, LEVELS, CHANNELS, TAPS = 100_000, 4, 32, 15
WARM_UP, REPEATS = 4, 25
# how values go from one of two levels to the other
WAYS = ("interpolated", "mixed", "learned")


def surface(seed: int) -> Tensor:
    """Points near a sphere: about half as many lattice points."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(POINTS, 3, generator=generator), dim=1)
    return direction * (38 + 0.2 * torch.randn(POINTS, 1, generator=generator))


def volume(seed: int) -> Tensor:
    """Points in a cube: about a fifth as many lattice points."""
    return 25 * torch.rand(POINTS, 3, generator=torch.Generator().manual_seed(seed))


class Operands(NamedTuple):
    """What the filters read, and the gradient of their result.

    Attributes:
        values: `[points, channels]`.
        weights: of convolutions on the fine level, on the coarse one, down and up.
        mixes: `[channels, channels]`, down and up.
        upstream: like values.
    """

    values: Tensor
    weights: list[Tensor]
    mixes: list[Tensor]
    upstream: Tensor

    @staticmethod
    def draw(device: torch.device) -> Operands:
        """Random ones."""

        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, device=device, requires_grad=True)

        weights, mixes = ([leaf(*shape) for _ in range(4)] for shape in ((TAPS, CHANNELS, CHANNELS), (CHANNELS,) * 2))
        return Operands(leaf(POINTS, CHANNELS), weights, mixes[:2], torch.randn(POINTS, CHANNELS, device=device))

    def differentiate(self, result: Tensor, *learned: Tensor) -> None:
        """The backward pass, to the values and what is learned."""
        torch.autograd.grad(result, [self.values, *learned], self.upstream)


def run_flat(given: Operands, pyramid: ph.LatticePyramid) -> None:
    """Forward and backward through one layer, from points to points: splat, convolve, slice."""
    fine = pyramid.levels[0]
    result = ph.slice(ph.convolve(ph.splat(given.values, fine), given.weights[0], fine), fine)
    given.differentiate(result, given.weights[0])


def run_interpolated(given: Operands, pyramid: ph.LatticePyramid) -> None:
    """The same with a second convolution on the coarse level, down by P^T and up by P, and what was kept.

    Channels need no mixing in between: it would be one linear map with the convolution beside it.
    """
    fine, coarse = pyramid.levels[:2]
    kept = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    down, kept = ph.coarsen_and_keep(kept, pyramid, 0)
    refined = ph.refine(ph.convolve(down, given.weights[1], coarse), pyramid, 0, added=kept)
    given.differentiate(ph.slice(refined, fine), *given.weights[:2])


def run_mixed(given: Operands, pyramid: ph.LatticePyramid) -> None:
    """The same with mixed channels on the coarse level, which networks need whose levels have more or fewer of them."""
    fine, coarse = pyramid.levels[:2]
    kept = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    down, kept = ph.coarsen_and_keep(kept, pyramid, 0)
    below = ph.convolve(down @ given.mixes[0], given.weights[1], coarse)
    refined = ph.refine(below @ given.mixes[1], pyramid, 0, added=kept)
    given.differentiate(ph.slice(refined, fine), *given.weights[:2], *given.mixes)


def run_learned(given: Operands, pyramid: ph.LatticePyramid) -> None:
    """The same with learned convolutions from level to level."""
    fine, coarse = pyramid.levels[:2]
    kept = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    below = ph.convolve(ph.convolve_down(kept, given.weights[2], pyramid, 0), given.weights[1], coarse)
    refined = ph.convolve_up(below, given.weights[3], pyramid, 0)
    refined += kept
    given.differentiate(ph.slice(refined, fine), *given.weights)


def in_turn(device: torch.device, *calls: Callable[[int], object]) -> list[list[float]]:
    """Milliseconds of each call in every round, whose number it is given."""
    times: list[list[float]] = [[] for _ in calls]
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for number in range(WARM_UP + REPEATS):
        for call, own in zip(calls, times, strict=True):
            _wait(device)
            started = clock()
            call(number)
            _wait(device)
            own.append(1000 * (clock() - started))
    return [own[WARM_UP:] for own in times]


def compare(times: list[float], others: list[float]) -> float:
    """How much longer something takes than something else."""
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(make: Callable[[int], Tensor], device: torch.device) -> dict[str, Any]:
    """Times of all that is compared, on points of one kind."""
    clouds = [make(seed).to(device) for seed in range(WARM_UP + REPEATS)]
    lattice, pyramid = in_turn(
        device, lambda number: ph.build_lattice(clouds[number]), lambda number: ph.build_pyramid(clouds[number], LEVELS)
    )
    built = [ph.build_pyramid(cloud, LEVELS) for cloud in clouds[:3]]
    given = Operands.draw(device)
    flat, *two_levels = in_turn(
        device,
        lambda number: run_flat(given, built[number % 3]),
        lambda number: run_interpolated(given, built[number % 3]),
        lambda number: run_mixed(given, built[number % 3]),
        lambda number: run_learned(given, built[number % 3]),
    )
    times = {"lattice": lattice, "pyramid": pyramid, "flat": flat, **dict(zip(WAYS, two_levels, strict=True))}
    fine, coarse = built[0].levels[:2]
    # products of rows and matrices of weights: what the convolutions multiply
    on_fine, on_coarse, up = (
        int((table >= 0).sum()) for table in (fine.neighbors, coarse.neighbors, built[0].tables[0].up)
    )
    return {
        "lattice_points": [level.num_lattice_points for level in built[0].levels],
        "milliseconds": {name: statistics.median(own) for name, own in times.items()},
        "ratio": {"pyramid": compare(pyramid, lattice), **{way: compare(times[way], flat) for way in WAYS}},
        "products": {
            "flat": on_fine,
            "interpolated": on_fine + on_coarse,
            "mixed": on_fine + on_coarse + 2 * coarse.num_lattice_points,
            "learned": on_fine + on_coarse + 2 * up,
        },
    }


def main() -> None:
    """Measure, print a table, write the figures."""
    parser = argparse.ArgumentParser(description="Time pyramids and filters on them beside one lattice.")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    found = {make.__name__: measure(make, device) for make in (surface, volume)}
    rows = []
    for name, figures in found.items():
        times, ratio = figures["milliseconds"], figures["ratio"]
        rows.append([name, *(f"{times[each]:.1f}" for each in times), *(f"{each:.2f}" for each in ratio.values())])
    heads = ["points", "lattice, ms", f"{LEVELS} levels, ms", "flat, ms", *(f"{way}, ms" for way in WAYS)]
    heads += ["levels", *WAYS]
    print(markdown_table(heads, rows))
    if arguments.json is not None:
        content = {"points": POINTS, "channels": CHANNELS, "threads": arguments.threads, "rows": found}
        text = json.dumps(content | {"environment": describe(device)}, indent=2, sort_keys=True) + "\n"
        write_bytes(arguments.json, text.encode())


if __name__ == "__main__":
    main()
