"""Gradients of every layer, and of functions of bandwidths, under torch.compile with its default compiler."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn

import permutohedral as ph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DEVICE.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
    ),
]


def image(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(DEVICE)


def function_of(call: Any) -> nn.Module:
    module = nn.Module()
    module.forward = call
    return module


PYRAMID = ph.levels.build_pyramid(3 * image(20, 2), num_levels=2)
FINE, COARSE = PYRAMID.levels
ON_FINE, ON_COARSE = image(FINE.num_lattice_points, 2), image(COARSE.num_lattice_points, 2)

# layer, inputs with gradients, other arguments; those of a group are compiled together, which takes less time
CASES: dict[str, dict[str, tuple[nn.Module, tuple[Tensor, ...], tuple[Any, ...]]]] = {
    "images": {
        "BilateralFilter": (
            ph.nn.BilateralFilter(sigma_space=2.0, sigma_color=0.5, learn_sigma=True),
            (image(2, 5, 6),),
            (),
        ),
        "BilateralConv1d": (ph.nn.BilateralConv1d(1, 2, learn_sigma=True), (image(2, 1, 9),), ()),
        "BilateralConv2d": (ph.nn.BilateralConv2d(1, 2, learn_sigma=True), (image(2, 1, 4, 5),), ()),
        "BilateralConv3d": (ph.nn.BilateralConv3d(1, 2, learn_sigma=True), (image(1, 1, 2, 3, 4),), ()),
    },
    "points": {
        "GaussianFilter": (ph.nn.GaussianFilter(2, learn_sigma=True), (image(20, 2), 3 * image(20, 2)), ()),
        "PermutohedralConv": (
            ph.nn.PermutohedralConv(2, 3, dimension=2, around="gaussian", learn_sigma=True),
            (image(20, 2), 3 * image(20, 2)),
            (),
        ),
        # the window makes up for a table near zero
        "PermutohedralEncoding": (
            ph.nn.PermutohedralEncoding(2, 2, table_size=50, window=[1e5, 2e5], dtype=torch.float64),
            (image(20, 2),),
            (),
        ),
    },
    "levels": {
        "LatticeConv": (ph.nn.LatticeConv(2, 3, 2), (ON_FINE,), (FINE,)),
        "LatticeGroupNorm": (ph.nn.LatticeGroupNorm(1, 2), (ON_FINE,), (FINE, ph.nn.LatticeItems(FINE))),
        "LatticePool": (ph.nn.LatticePool(), (ON_FINE,), (PYRAMID, 0)),
        "LatticeConvDown": (ph.nn.LatticeConvDown(2, 3, 2), (ON_FINE,), (PYRAMID, 0)),
        "LatticeLinearDown": (ph.nn.LatticeLinearDown(2, 3, 2), (ON_FINE,), (PYRAMID, 0)),
        "LatticeConvUp": (ph.nn.LatticeConvUp(2, 3, 2), (ON_COARSE,), (PYRAMID, 0)),
        "LatticeLinearUp": (ph.nn.LatticeLinearUp(2, 3), (ON_COARSE,), (PYRAMID, 0)),
        "LatticeUNet": (
            ph.nn.LatticeUNet(2, 3, 2, step=1.0, widths=(4, 8)),
            (image(20, 2),),
            (None, None, PYRAMID),
        ),
    },
    "guides": {
        "DenseCRF": (
            ph.nn.DenseCRF(
                3,
                kernel_weights=(1.0, 2.0),
                sigma_smoothness=1.7,
                sigma_space=4.0,
                sigma_color=0.3,
                compatibility="matrix",
                num_iterations=1,
                learn_sigma=True,
            ),
            (image(3, 5, 6), image(2, 5, 6)),
            (),
        ),
        "DenseEnergyLoss": (
            ph.nn.DenseEnergyLoss(sigma_space=2.0, sigma_color=0.5, weight=1.0),
            (image(2, 3, 6, 8), image(2, 2, 6, 8)),
            (),
        ),
        "BilateralUpsample2d": (
            ph.nn.BilateralUpsample2d(1, 1, sigma_color=0.5, learn_sigma=True),
            (image(1, 1, 2, 3), image(1, 1, 6, 9)),
            (),
        ),
    },
    "solver": {
        "BilateralSolver": (
            ph.nn.BilateralSolver(
                sigma_space=2.0, sigma_color=0.4, smoothness=0.5, learn_sigma=True, num_iterations=1, tolerance=0.0
            ),
            (image(1, 5, 6), image(2, 5, 6)),
            (),
        )
    },
    "bandwidths": {
        "positions": (
            function_of(lambda sigma: ph.features.positions((2, 3, 4), sigma, device=DEVICE, dtype=torch.float64)),
            (image(3),),
            (),
        ),
        "colors": (function_of(ph.features.colors), (image(2, 3, 4), image(2)), ()),
        "bilateral": (
            function_of(lambda guide, space, color: ph.features.bilateral(guide, sigma_space=space, sigma_color=color)),
            (image(1, 5, 6), image(2), image(1)),
            (),
        ),
        "bilateral_filter": (
            function_of(lambda image, space, color: ph.bilateral_filter(image, sigma_space=space, sigma_color=color)),
            (image(1, 5, 6), 2 * image(1), image(1)),
            (),
        ),
    },
}


class _Group(nn.Module):
    """Layers that are compiled together."""

    def __init__(self, cases: list[tuple[nn.Module, tuple[Tensor, ...], tuple[Any, ...]]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, _, _ in cases)
        self.num_inputs = [len(inputs) for _, inputs, _ in cases]
        self.others = [others for _, _, others in cases]

    def forward(self, *inputs: Tensor) -> Tensor:
        first, sums = 0, []
        for layer, number, others in zip(self.layers, self.num_inputs, self.others, strict=True):
            sums.append(layer(*inputs[first : first + number], *others).square().sum())
            first += number
        return torch.stack(sums).sum()


def test_every_layer_is_compared() -> None:
    compared = {name for cases in CASES.values() for name in cases}
    names = {name for name, value in vars(ph.nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    assert names & set(ph.nn.__all__) <= compared


@pytest.mark.parametrize("name", CASES)
def test_compiled_gradients_match_eager(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    group = _Group([*CASES[name].values()]).to(DEVICE, torch.float64)
    for parameter in group.parameters():
        # some start at zero, and so do the gradients of others
        parameter.data.add_(0.1 * torch.rand_like(parameter))
    leaves = [each.clone().requires_grad_() for _, inputs, _ in CASES[name].values() for each in inputs]
    named = {**{str(number): leaf for number, leaf in enumerate(leaves)}, **dict(group.named_parameters())}
    named = {name: each for name, each in named.items() if each.requires_grad}
    # one file of C++ for all kernels of a graph
    # cached properties of the solver break its graph
    compiled = torch.compile(group, fullgraph=name != "solver", options={"cpp_wrapper": DEVICE.type == "cpu"})
    expected, found = (
        torch.autograd.grad(run(*leaves), [*named.values()], allow_unused=True) for run in (group, compiled)
    )
    for which, mine, theirs in zip(named, found, expected, strict=True):
        assert (mine is None) == (theirs is None), which
        if mine is not None and theirs is not None:
            assert float(theirs.abs().max()) > 0, which
            assert_close(mine, theirs)


def test_batched_crf_compiles_with_dynamic_sizes() -> None:
    torch.compiler.reset()
    layer = ph.nn.DenseCRF(3, sigma_color=0.1, num_iterations=2).to(DEVICE, torch.float64)
    compiled = torch.compile(layer, dynamic=True, backend="aot_eager")
    for items in (2, 3):
        logits, guide = image(items, 3, 4, 5), image(items, 2, 4, 5)
        assert_close(compiled(logits, guide), layer(logits, guide), torch.float32)
