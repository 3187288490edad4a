"""Workloads of guided upsampling and of the bilateral solver, lattices included."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload, yardstick
from experiments.data.middlebury import load_scene

SIGMA_COLOR = (0.2, 0.05, 0.05)
# those that are large enough
SCENES = ("art", "books", "moebius")
_VARIANTS = 7

# name, side lengths of the coarse map and of the guide, options, device of the published row
CASES: tuple[tuple[str, tuple[int, int], tuple[int, int], dict[str, Any], str], ...] = (
    ("gaussian-uncorrected", (128, 128), (1024, 1024), {"mode": "gaussian", "num_iterations": 0}, "cuda"),
    ("gaussian", (128, 128), (1024, 1024), {"mode": "gaussian"}, "cuda"),
    ("solver", (128, 128), (1024, 1024), {"mode": "solver"}, "any"),
    ("solver-large", (136, 172), (1088, 1376), {"mode": "solver"}, "cpu"),
)


def _photograph(photographs: list[Tensor], height: int, width: int, generator: torch.Generator) -> Tensor:
    """Cut a random part of a photograph, half of them mirrored."""
    scene, top, left, mirrored = torch.rand(4, generator=generator).tolist()
    whole = photographs[int(scene * len(photographs))]
    y, x = int(top * (1 + whole.shape[1] - height)), int(left * (1 + whole.shape[2] - width))
    cut = whole[:, y : y + height, x : x + width]
    return (cut.flip(-1) if mirrored < 0.5 else cut).contiguous()


def _prepare(inputs: Inputs, coarse: tuple[int, int], size: tuple[int, int], options: dict[str, Any]) -> Prepared:
    photographs = [ph.features.opponent_colors(load_scene(name).color) for name in SCENES]
    given = []
    for number in range(_VARIANTS):
        generator = torch.Generator().manual_seed(number)
        values = torch.rand(1, 1, *coarse, generator=generator).to(inputs.device)
        given.append((values, _photograph(photographs, *size, generator).to(inputs.device)[None]))

    def ours(number: int) -> Tensor:
        values, guide = given[number % _VARIANTS]
        with torch.no_grad():
            found: Tensor = ph.upsample(values, guide, sigma_color=SIGMA_COLOR, **options)
        return found

    def bilinear(number: int) -> Tensor:
        values = given[number % _VARIANTS][0]
        return functional.interpolate(values, size, mode="bilinear", align_corners=False)

    def filtered(number: int) -> Tensor:
        return ph.bilateral_filter(given[number % _VARIANTS][1], sigma_space=8.0, sigma_color=SIGMA_COLOR)

    others = [
        yardstick("torch bilinear", bilinear, "without the guide"),
        yardstick("bilateral filter of the guide", filtered),
    ]
    return Prepared(Contender(OURS, ours), others, "photographs of Middlebury", num_inputs=_VARIANTS)


def _prepare_solver(inputs: Inputs) -> Prepared:
    """Smooth noisy depths with weights along the edges of a photo."""
    draw = torch.Generator().manual_seed(0)
    given = []
    for scene in map(load_scene, SCENES):
        depth = scene.disparity[:, :1024, :1024] / 255
        noisy, weight = depth + 0.1 * torch.randn(depth.shape, generator=draw), torch.rand(depth.shape, generator=draw)
        guide = ph.features.opponent_colors(scene.color)[:, :1024, :1024].contiguous()
        given.append([each.to(inputs.device) for each in (noisy, guide, weight[0])])

    def run(number: int) -> Any:
        target, guide, weight = given[number % len(given)]
        return ph.bilateral_solver(target, guide, sample_weight=weight, sigma_color=SIGMA_COLOR)

    return Prepared(Contender(OURS, run), origin="scenes of Middlebury", num_inputs=len(given))


WORKLOADS = (
    *(
        Workload(
            f"upsample-{name}",
            f"upsample {coarse[0]} x {coarse[1]} to {size[0]} x {size[1]}, {options['mode']}"
            + (", not corrected" if "num_iterations" in options else ""),
            device,
            "upsampling",
            partial(_prepare, coarse=coarse, size=size, options=options),
        )
        for name, coarse, size, options, device in CASES
    ),
    Workload("bilateral-solver", "bilateral solver, 1024 x 1024 depths", "cuda", "upsampling", _prepare_solver),
)
