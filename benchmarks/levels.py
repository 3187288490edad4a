"""Workloads of pyramids and of filters on two levels, next to one lattice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import permutohedral as ph
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload

POINTS, LEVELS, CHANNELS, TAPS = 100_000, 4, 32, 15
_VARIANTS = 3


def surface(seed: int) -> Tensor:
    """Return points near a sphere, with about two points for each lattice point."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(POINTS, 3, generator=generator), dim=1)
    return direction * (38 + 0.2 * torch.randn(POINTS, 1, generator=generator))


def volume(seed: int) -> Tensor:
    """Return points in a cube, with about five points for each lattice point."""
    return 25 * torch.rand(POINTS, 3, generator=torch.Generator().manual_seed(seed))


class Operands(NamedTuple):
    """Inputs of the filters, and the gradient of their result.

    Attributes:
        values: `[points, channels]`.
        weights: of convolutions on the fine level, on the coarse one, down and up.
        mixes: `[channels, channels]`, down and up.
        upstream: gradient of the result, like values.
    """

    values: Tensor
    weights: list[Tensor]
    mixes: list[Tensor]
    upstream: Tensor

    @staticmethod
    def draw(device: torch.device) -> Operands:
        """Draw random operands."""
        generator = torch.Generator().manual_seed(0)

        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device).requires_grad_()

        weights = [leaf(TAPS, CHANNELS, CHANNELS) for _ in range(4)]
        mixes = [leaf(CHANNELS, CHANNELS) for _ in range(2)]
        return Operands(leaf(POINTS, CHANNELS), weights, mixes, leaf(POINTS, CHANNELS).detach())

    def differentiate(self, result: Tensor, *learned: Tensor) -> None:
        """Run the backward pass, to the values and the learned tensors."""
        torch.autograd.grad(result, [self.values, *learned], self.upstream)


def _run_flat(given: Operands, pyramid: ph.levels.LatticePyramid) -> None:
    """Run forward and backward through one layer: splat, convolve, slice."""
    fine = pyramid.levels[0]
    result = ph.slice(ph.convolve(ph.splat(given.values, fine), given.weights[0], fine), fine)
    given.differentiate(result, given.weights[0])


def _run_interpolated(given: Operands, pyramid: ph.levels.LatticePyramid) -> None:
    """Add a convolution on the coarse level, down by P^T and up by P, with a skip connection."""
    fine, coarse = pyramid.levels[:2]
    skip = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    below = ph.convolve(ph.levels.coarsen(skip, pyramid, 0), given.weights[1], coarse)
    refined = ph.levels.refine(below, pyramid, 0) + skip
    given.differentiate(ph.slice(refined, fine), *given.weights[:2])


def _run_mixed(given: Operands, pyramid: ph.levels.LatticePyramid) -> None:
    """Mix channels on the way down and up, as networks with different widths need."""
    fine, coarse = pyramid.levels[:2]
    skip = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    below = ph.convolve(ph.levels.coarsen(skip, pyramid, 0) @ given.mixes[0], given.weights[1], coarse)
    refined = ph.levels.refine(below @ given.mixes[1], pyramid, 0) + skip
    given.differentiate(ph.slice(refined, fine), *given.weights[:2], *given.mixes)


def _run_learned(given: Operands, pyramid: ph.levels.LatticePyramid) -> None:
    """Convolve from level to level with learned weights."""
    fine, coarse = pyramid.levels[:2]
    skip = ph.convolve(ph.splat(given.values, fine), given.weights[0], fine)
    below = ph.convolve(ph.levels.convolve_down(skip, given.weights[2], pyramid, 0), given.weights[1], coarse)
    refined = ph.levels.convolve_up(below, given.weights[3], pyramid, 0) + skip
    given.differentiate(ph.slice(refined, fine), *given.weights)


def _prepare_build(inputs: Inputs, points: Callable[[int], Tensor]) -> Prepared:
    clouds = [points(seed).to(inputs.device) for seed in range(_VARIANTS)]
    one = Contender("one lattice", lambda number: ph.build_lattice(clouds[number % _VARIANTS]), same_task=False)
    ours = Contender(OURS, lambda number: ph.levels.build_pyramid(clouds[number % _VARIANTS], LEVELS))
    return Prepared(ours, [one], "seeded points", num_inputs=_VARIANTS)


def _prepare_filter(
    inputs: Inputs, points: Callable[[int], Tensor], run: Callable[[Operands, ph.levels.LatticePyramid], None]
) -> Prepared:
    pyramids = [ph.levels.build_pyramid(points(seed).to(inputs.device), 2) for seed in range(_VARIANTS)]
    given = Operands.draw(inputs.device)
    flat = Contender("one level", lambda number: _run_flat(given, pyramids[number % _VARIANTS]), same_task=False)
    ours = Contender(OURS, lambda number: run(given, pyramids[number % _VARIANTS]))
    return Prepared(ours, [flat], "seeded points", num_inputs=_VARIANTS)


WORKLOADS = tuple(
    workload
    for points in (surface, volume)
    for workload in (
        Workload(
            f"levels-{points.__name__}-build",
            f"pyramid of {LEVELS} levels over 100,000 points, {points.__name__}",
            "any",
            partial(_prepare_build, points=points),
        ),
        *(
            Workload(
                f"levels-{points.__name__}-{name}",
                f"two levels of 32 channels, {name}, forward and backward, {points.__name__}",
                "any",
                partial(_prepare_filter, points=points, run=run),
            )
            for name, run in (("interpolated", _run_interpolated), ("mixed", _run_mixed), ("learned", _run_learned))
        ),
    )
)
