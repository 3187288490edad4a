"""Workloads of guided upsampling and of the bilateral solver, lattices included."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload
from experiments.data.middlebury import load_scene

SIGMA_COLOR = (0.2, 0.05, 0.05)
# those that are large enough
SCENES = ("art", "books", "moebius")
_VARIANTS = 7

# name, shape of the coarse map, size of the guide, options
CASES: tuple[tuple[str, tuple[int, int, int], tuple[int, int], dict[str, Any], bool], ...] = (
    ("gaussian-uncorrected", (1, 128, 128), (1024, 1024), {"mode": "gaussian", "num_iterations": 0}, False),
    ("gaussian", (1, 128, 128), (1024, 1024), {"mode": "gaussian"}, False),
    ("affine", (1, 128, 128), (1024, 1024), {"mode": "affine"}, False),
    ("solver", (1, 128, 128), (1024, 1024), {"mode": "solver"}, False),
    ("solver-large", (1, 136, 172), (1088, 1376), {"mode": "solver"}, False),
    ("features", (384, 37, 37), (518, 518), {"mode": "gaussian", "num_iterations": 0}, False),
    ("features-channels-last", (384, 37, 37), (518, 518), {"mode": "gaussian", "num_iterations": 0}, True),
    ("features-large", (384, 64, 64), (1024, 1024), {"mode": "gaussian", "num_iterations": 0}, False),
    ("features-large-channels-last", (384, 64, 64), (1024, 1024), {"mode": "gaussian", "num_iterations": 0}, True),
)


def _photograph(photographs: list[Tensor], height: int, width: int, generator: torch.Generator) -> Tensor:
    """Cut a random part of a photograph, half of them mirrored."""
    scene, top, left, mirrored = torch.rand(4, generator=generator).tolist()
    whole = photographs[int(scene * len(photographs))]
    y, x = int(top * (1 + whole.shape[1] - height)), int(left * (1 + whole.shape[2] - width))
    cut = whole[:, y : y + height, x : x + width]
    return (cut.flip(-1) if mirrored < 0.5 else cut).contiguous()


def _prepare(
    inputs: Inputs, coarse: tuple[int, int, int], size: tuple[int, int], options: dict[str, Any], channels_last: bool
) -> Prepared:
    photographs = [ph.features.opponent_colors(load_scene(name).color) for name in SCENES]
    given = []
    for number in range(_VARIANTS):
        generator = torch.Generator().manual_seed(number)
        values = torch.rand(1, *coarse, generator=generator).to(inputs.device)
        if channels_last:
            values = values.contiguous(memory_format=torch.channels_last)
        given.append((values, _photograph(photographs, *size, generator).to(inputs.device)[None]))

    def ours(number: int) -> Tensor:
        values, guide = given[number % _VARIANTS]
        with torch.no_grad():
            found: Tensor = ph.upsample(values, guide, sigma_color=SIGMA_COLOR, **options)
        return found

    def bilinear(number: int) -> Tensor:
        values = given[number % _VARIANTS][0]
        return functional.interpolate(values, size, mode="bilinear", align_corners=False)

    return Prepared(
        Contender(OURS, ours),
        [Contender("torch bilinear", bilinear, note="without the guide", same_task=False)],
        origin="photographs of Middlebury",
        num_inputs=_VARIANTS,
    )


def _prepare_solver(inputs: Inputs, training: bool) -> Prepared:
    """Smooth noisy depths with weights along the edges of a photo; backward to depths and weights."""
    scenes = [load_scene(name) for name in SCENES]
    draw = torch.Generator().manual_seed(0)
    given = []
    for scene in scenes:
        depth = scene.disparity[:, :1024, :1024] / 255
        noisy, weight = depth + 0.1 * torch.randn(depth.shape, generator=draw), torch.rand(depth.shape, generator=draw)
        guide = ph.features.opponent_colors(scene.color)[:, :1024, :1024]
        leaves = (each.to(inputs.device).requires_grad_(training) for each in (noisy, weight[0]))
        given.append((*leaves, guide.contiguous().to(inputs.device)))

    def run(number: int) -> Any:
        target, weight, guide = given[number % len(given)]
        smooth = ph.bilateral_solver(target, guide, sample_weight=weight, sigma_color=SIGMA_COLOR)
        return torch.autograd.grad(smooth.sum(), [target, weight]) if training else smooth

    return Prepared(Contender(OURS, run), origin="scenes of Middlebury", num_inputs=len(given))


WORKLOADS = (
    *(
        Workload(
            f"upsample-{name}",
            f"upsample {' x '.join(map(str, coarse))} to {' x '.join(map(str, size))}, {name.replace('-', ' ')}",
            "any",
            partial(_prepare, coarse=coarse, size=size, options=options, channels_last=channels_last),
        )
        for name, coarse, size, options, channels_last in CASES
    ),
    Workload(
        "bilateral-solver", "bilateral solver, 1024 x 1024 depths", "any", partial(_prepare_solver, training=False)
    ),
    Workload(
        "bilateral-solver-training",
        "the same, forward and backward",
        "any",
        partial(_prepare_solver, training=True),
    ),
)
