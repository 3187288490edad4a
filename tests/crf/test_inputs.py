"""Energies from labels and probabilities, and rejected inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from support import DEVICE, assert_raises

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError

CLOUD = torch.rand(6, 2)
ENERGIES = torch.rand(6, 3)
KERNEL = ph.crf.Kernel(CLOUD)
PICTURE = ph.crf.spatial_kernel((2, 3), 1.0)

# typed functions would not accept arguments of wrong types
field: Any = ph.crf.mean_field
energy: Any = ph.crf.free_energy
kernel: Any = ph.crf.Kernel
grid: Any = ph.crf.spatial_kernel
CASES: dict[str, tuple[Any, type[Exception], str]] = {
    "integers": (partial(field, ENERGIES.long(), [KERNEL]), InputError, r"\.float\(\)"),
    "no tensor": (partial(field, [[1.0]], [KERNEL]), InputError, "torch.as_tensor"),
    "axes": (partial(field, torch.rand(6), [KERNEL]), InputError, "points, labels"),
    "points": (partial(field, torch.rand(5, 3), [KERNEL]), InputError, "6 points, but energies 5"),
    "space": (partial(field, torch.rand(3, 3, 2), [PICTURE]), InputError, "labels, 2, 3"),
    "two spaces": (partial(field, ENERGIES, [KERNEL, PICTURE]), InputError, "one space"),
    "no labels": (partial(field, ENERGIES[:, :0], [KERNEL]), InputError, "at least one label"),
    "nan": (partial(field, ENERGIES * float("nan"), [KERNEL]), InputError, "NaN"),
    "steps": (partial(field, ENERGIES, [KERNEL], num_iterations=-1), InputError, "num_iterations"),
    "tolerance": (partial(field, ENERGIES, [KERNEL], tolerance=-1.0), InputError, "tolerance"),
    "damping": (partial(field, ENERGIES, [KERNEL], damping=-1.0), InputError, "not negative"),
    "damping name": (partial(field, ENERGIES, [KERNEL], damping="none"), InputError, "'auto' or a number"),
    "other lattice": (partial(field, ENERGIES, [ph.crf.Kernel(CLOUD[:4]).with_lattice()]), InputError, "4 points"),
    "inseparable lattice": (partial(kernel, ph.build_lattice(CLOUD)), InputError, "separable=True"),
    "weights": (partial(field, ENERGIES, [KERNEL], sample_weight=torch.ones(5)), InputError, "sample_weight must be"),
    "start": (partial(field, ENERGIES, [KERNEL], start=ENERGIES[:3]), InputError, "start must be like energies"),
    "marginals": (partial(energy, ENERGIES[:3], ENERGIES, [KERNEL]), InputError, "marginals must be like"),
    "batch": (partial(field, ENERGIES, [ph.crf.Kernel(torch.rand(2, 6, 2))]), InputError, "both a batch axis"),
    "ragged and batch": (
        partial(field, ENERGIES[None], [ph.crf.Kernel(CLOUD, batch=torch.zeros(6).long())]),
        InputError,
        "ragged batch is flat",
    ),
    "some ragged": (
        partial(field, ENERGIES, [KERNEL, ph.crf.Kernel(CLOUD, batch=torch.arange(6) // 3)]),
        InputError,
        "pass batch to all kernels or to none",
    ),
    "one kernel": (partial(field, ENERGIES, KERNEL), InputError, r"kernels must be a list.*\[kernel\]"),
    "tensor kernel": (partial(energy, ENERGIES, ENERGIES, [CLOUD]), InputError, "kernels must be a list.*Tensor"),
    "labels": (partial(field, ENERGIES, [ph.crf.Kernel(CLOUD, torch.ones(2))]), InputError, "3 labels"),
    "dtypes": (partial(field, ENERGIES, [KERNEL, ph.crf.Kernel(CLOUD.double())]), InputError, "one dtype"),
    "nan feature": (partial(field, ENERGIES, [ph.crf.Kernel(CLOUD * float("nan"))]), FeatureRangeError, "finite"),
    "matrix": (partial(kernel, CLOUD, torch.ones(2, 3)), InputError, r"\[labels, labels\]"),
    "array": (partial(kernel, CLOUD, [1.0]), InputError, "a number or a tensor"),
    "infinite": (partial(kernel, CLOUD, float("inf")), InputError, "finite"),
    "nan cost": (partial(kernel, CLOUD, torch.tensor([1.0, float("nan"), 0.0])), InputError, "finite"),
    "normalization": (partial(kernel, CLOUD, normalization="after"), InputError, "symmetric"),
    "grid": (partial(kernel, CLOUD, space=(2, 2)), InputError, "does not have 6"),
    "features": (partial(kernel, CLOUD[0]), InputError, r"\[points, d\]"),
    "sigma": (partial(ph.crf.spatial_kernel, (2, 3), 0.0), InputError, "positive"),
    "no space": (partial(ph.crf.spatial_kernel, (), 1.0), InputError, "space must be the extents"),
    "one extent": (partial(grid, 20, 1.0), InputError, "space must be the extents.*got 20"),
    "extent": (partial(ph.crf.spatial_kernel, (2, -3), 1.0), InputError, "extent"),
    "long integers": (
        partial(ph.crf.bilateral_kernel, torch.zeros(3, 2, 3).long(), sigma_space=1.0, sigma_color=1.0),
        InputError,
        "guide of int64 has no rule",
    ),
    "guide axes": (
        partial(ph.crf.bilateral_kernel, torch.rand(2, 2, 3, 2, 3), sigma_space=1.0, sigma_color=1.0),
        InputError,
        "as spatial_dims",
    ),
    "guide": (
        partial(ph.crf.bilateral_kernel, torch.rand(2, 3), sigma_space=1.0, sigma_color=1.0),
        InputError,
        r"guide must be.*guide\[None\]",
    ),
    "certainty": (partial(ph.crf.energies_from_labels, CLOUD.long(), 2, certainty=1.0), InputError, "between 0 and 1"),
    "float labels": (partial(ph.crf.energies_from_labels, CLOUD, 2, certainty=0.9), InputError, "integers"),
    "label": (partial(ph.crf.energies_from_labels, CLOUD.long() + 5, 2, certainty=0.9), InputError, "between 0 and 1"),
    "probabilities": (partial(ph.crf.energies_from_probabilities, CLOUD.long()), InputError, "floating"),
    "logits": (partial(ph.crf.energies_from_probabilities, 3 * CLOUD - 2), InputError, "probabilities.*softmax"),
    "nan probability": (partial(ph.crf.energies_from_probabilities, CLOUD * torch.nan), InputError, "probabilities"),
    "smallest": (partial(ph.crf.energies_from_probabilities, CLOUD, smallest=0.0), InputError, "smallest"),
}


@pytest.mark.parametrize("name", CASES)
def test_rejects_mismatched_inputs(name: str) -> None:
    assert_raises(*CASES[name])


def test_energies_of_labels() -> None:
    labels = torch.tensor([[0, 2, 7], [1, 1, 0]], device=DEVICE)
    energies = ph.crf.energies_from_labels(labels, 3, certainty=0.7, unknown=7)
    assert energies.shape == (3, 2, 3)
    probabilities = torch.softmax(-energies, dim=0)
    known = labels != 7
    assert torch.equal(probabilities.argmax(dim=0)[known], labels[known])
    expected = torch.where(known, 0.7, 1 / 3)
    assert torch.allclose(probabilities.amax(dim=0), expected)
    batch = ph.crf.energies_from_labels(labels[None].expand(4, -1, -1), 3, certainty=0.7, unknown=7)
    assert torch.equal(batch[2], energies)


def test_energies_of_probabilities() -> None:
    probabilities = torch.softmax(torch.randn(3, 4, 5, device=DEVICE), dim=0)
    energies = ph.crf.energies_from_probabilities(probabilities)
    assert torch.allclose(torch.softmax(-energies, dim=0), probabilities)
    assert bool(ph.crf.energies_from_probabilities(torch.zeros(2)).isfinite().all())
