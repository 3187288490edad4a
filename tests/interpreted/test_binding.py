"""What `bind` returns with the Triton kernels: limits that are reported, and lookup tables of other backends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.ops.dispatch import use as use_backend

FUSED = "one call of the backend"


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run_mean_field(labels: int, kernels: int) -> Tensor:
    return ph.crf.mean_field(
        draw(9, labels), [ph.crf.Kernel(draw(9, 2, seed=1 + each)) for each in range(kernels)], num_iterations=1
    )


def run_norm(channels: int) -> Tensor:
    lattice = ph.build_lattice(draw(9, 2))
    norm = ph.nn.LatticeGroupNorm(1, channels)
    return norm.forward(draw(lattice.num_lattice_points, channels), lattice)


def run_gaussian(dimension: int) -> Tensor:
    return ph.gaussian_filter(draw(9, 2), draw(9, dimension, seed=1))


@pytest.mark.parametrize(
    ("name", "run", "within", "beyond", "reason"),
    [
        ("mean_field", run_mean_field, (256, 3), (257, 1), "at most 256 labels, got 257"),
        ("normalize_items", run_norm, (128,), (129,), "at most 128 channels, got 129"),
        ("filter_points", run_gaussian, (7,), (8,), "at most 7 dimensions, got 8"),
    ],
)
def test_limits_are_reported(
    name: str, run: Callable[..., Tensor], within: tuple[int, ...], beyond: tuple[int, ...], reason: str
) -> None:
    with use_backend("triton"):
        paths = [
            [
                line.partition(": ")[2]
                for line in ph.backends.explain_call(run, *each).decisions
                if line.startswith(name + ":")
            ]
            for each in (within, beyond)
        ]
    assert all(path == FUSED for path in paths[0])
    assert any(reason in path for path in paths[1])


@pytest.mark.parametrize("names", [("native", "triton"), ("triton", "native"), ("reference", "triton")])
def test_lookup_tables_of_other_backends(names: tuple[str, str]) -> None:
    """The tables of 80 vertices in a hash table of 64 slots, and of many more."""
    maker, user = names
    if maker == "native" or user == "native":
        pytest.importorskip("permutohedral._native", reason="the compiled core is not installed")
    for points in (5, 40, 300):
        features, targets = 4 * draw(points, 2), 4 * draw(7, 2, seed=1)

        def use(lattice: ph.Lattice) -> list[Tensor]:
            neighbors = lattice.between_sources().neighbors
            return [lattice.source.keys[neighbors.clamp_min(0).long()] * (neighbors >= 0)[..., None]]

        with use_backend(maker):
            lattice = ph.build_lattice(features, targets)
            expected = use(lattice)
        with use_backend(user):
            found = use(lattice)
        assert torch.equal(found[0], expected[0])
