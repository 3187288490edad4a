"""The mean field against the oracle: compatibilities, normalizations, shapes, batches, dtypes."""

from __future__ import annotations

from typing import Any

import field_oracle
import numpy as np
import pytest
import torch
from field_oracle import DenseKernel
from oracle import Array
from support import DEVICE, TOLERANCE, assert_close, draw, to_numpy, to_tensor, vertices_of
from torch import Tensor

import permutohedral as ph
from permutohedral.crf.kernels import KERNEL_NORMALIZATIONS
from permutohedral.features import FEATURE_SHIFT

pytestmark = pytest.mark.usefixtures("backend")

LABELS = 3
COMPATIBILITIES: dict[str, float | Array] = {
    "number": 2.0,
    "repulsive number": -1.5,
    "diagonal": np.array([-2.0, 0.5, -1.0]),
    "matrix": np.array([[0.0, 2.0, 1.0], [0.5, 0.3, -1.0], [3.0, 1.0, 0.0]]),
}


def as_compatibility(given: float | Array, dtype: torch.dtype) -> float | Tensor:
    return given if isinstance(given, float) else to_tensor(given, dtype)


def dense(features: Tensor, compatibility: float | Array, normalization: str, labels: int = LABELS) -> DenseKernel:
    matrix = field_oracle.filter_matrix(to_numpy(features))
    return DenseKernel(field_oracle.normalized(matrix, normalization), field_oracle.cost_matrix(compatibility, labels))


@pytest.mark.parametrize("normalization", KERNEL_NORMALIZATIONS)
@pytest.mark.parametrize("name", COMPATIBILITIES)
def test_points(name: str, normalization: Any, dtype: torch.dtype, random: np.random.Generator) -> None:
    compatibility = COMPATIBILITIES[name]
    energies = to_tensor(random.normal(size=(40, LABELS)), dtype)
    clouds = [to_tensor(random.normal(size=(40, d)) * 1.5, dtype) for d in (2, 5)]
    kernels = [ph.crf.Kernel(cloud, as_compatibility(compatibility, dtype), normalization) for cloud in clouds]
    expected = [dense(cloud, compatibility, normalization) for cloud in clouds]
    for steps in (0, 1, 4):
        actual = ph.crf.mean_field(energies, kernels, num_iterations=steps, damping=0)
        assert_close(actual, field_oracle.mean_field(to_numpy(energies), expected, steps))
    damped = ph.crf.mean_field(energies, kernels, num_iterations=2, damping=1.5)
    assert_close(damped, field_oracle.mean_field(to_numpy(energies), expected, 2, damping=1.5))


@pytest.mark.parametrize("labels", [1, 2, 4, 5, 8, 9, 17, 21, 40])
def test_any_number_of_labels(labels: int, dtype: torch.dtype, random: np.random.Generator) -> None:
    energies = to_tensor(random.normal(size=(37, labels)), dtype)
    cloud = to_tensor(random.normal(size=(37, 3)), dtype)
    kernels = [ph.crf.Kernel(cloud, 3.0), ph.crf.Kernel(cloud * 2, 1.0, "homogeneous")]
    expected = [dense(cloud, 3.0, "symmetric", labels), dense(cloud * 2, 1.0, "homogeneous", labels)]
    actual = ph.crf.mean_field(energies, kernels, num_iterations=3)
    assert_close(actual, field_oracle.mean_field(to_numpy(energies), expected, 3))


def test_two_labels_with_different_costs(dtype: torch.dtype, random: np.random.Generator) -> None:
    """Two labels that do not mirror each other."""
    energies = to_tensor(random.normal(size=(37, 2)), dtype)
    cloud = to_tensor(random.normal(size=(37, 3)), dtype)
    costs = np.array([[-1.0, 0.5], [0.5, 0.0]])
    actual = ph.crf.mean_field(energies, [ph.crf.Kernel(cloud, to_tensor(costs, dtype))], num_iterations=3, damping=0)
    assert_close(actual, field_oracle.mean_field(to_numpy(energies), [dense(cloud, costs, "symmetric", 2)], 3))


def grid(*extents: int) -> Array:
    """Positions of the pixels `[pixels, axes]`."""
    axes = [np.arange(extent, dtype=np.float64) for extent in extents]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(extents))


def dense_on(kernel: ph.crf.Kernel, features: Array, labels: int) -> DenseKernel:
    """The kernel over features that were computed a second time, on the vertices that count as occupied."""
    keys = kernel.build_lattice().source.keys
    matrix = field_oracle.filter_matrix(features, vertices_of(keys[keys[:, 0] == 0]))
    assert isinstance(kernel.compatibility, float)
    return DenseKernel(
        field_oracle.normalized(matrix, kernel.normalization), field_oracle.cost_matrix(kernel.compatibility, labels)
    )


def test_a_batch_of_pictures(random: np.random.Generator) -> None:
    """A spatial kernel that items share, and a bilateral one for each."""
    guide, energies = to_tensor(random.random((2, 3, 5, 6))), random.normal(size=(2, LABELS, 5, 6))
    spatial = ph.crf.spatial_kernel((5, 6), (2.0, 1.5), compatibility=1.0, device=DEVICE, dtype=torch.float64)
    bilateral = ph.crf.bilateral_kernel(
        guide, sigma_space=4.0, sigma_color=0.4, compatibility=2.0, normalization="transposed"
    )
    actual = ph.crf.mean_field(to_tensor(energies), [spatial, bilateral], num_iterations=3)
    assert actual.shape == energies.shape
    for item in range(2):
        alone = ph.crf.bilateral_kernel(
            guide[item], sigma_space=4.0, sigma_color=0.4, compatibility=2.0, normalization="transposed"
        )
        colors = to_numpy(guide[item]).reshape(3, -1).T
        expected = [
            dense_on(spatial, grid(5, 6) / [2.0, 1.5] + FEATURE_SHIFT, LABELS),
            dense_on(alone, np.concatenate([grid(5, 6) / 4, colors / 0.4], axis=1) + FEATURE_SHIFT, LABELS),
        ]
        rows = field_oracle.mean_field(energies[item].reshape(LABELS, -1).T, expected, 3)
        assert_close(actual[item], rows.T.reshape(LABELS, 5, 6))
        assert_close(ph.crf.mean_field(to_tensor(energies[item]), [spatial, alone], num_iterations=3), actual[item])


def test_a_volume(random: np.random.Generator) -> None:
    guide, energies = to_tensor(random.random((1, 3, 4, 3))), random.normal(size=(2, 3, 4, 3))
    kernel = ph.crf.bilateral_kernel(guide, sigma_space=3.0, sigma_color=0.5, compatibility=2.0, spatial_dims=3)
    both = np.concatenate([grid(3, 4, 3) / 3, to_numpy(guide).reshape(1, -1).T / 0.5], axis=1) + FEATURE_SHIFT
    rows = field_oracle.mean_field(energies.reshape(2, -1).T, [dense_on(kernel, both, 2)], 2)
    actual = ph.crf.mean_field(to_tensor(energies), [kernel], num_iterations=2)
    assert_close(actual, rows.T.reshape(energies.shape))
    again = ph.crf.mean_field(to_tensor(energies[None]), [kernel], num_iterations=2)
    assert_close(again[0], actual.double())


@pytest.mark.parametrize("normalization", KERNEL_NORMALIZATIONS)
@pytest.mark.parametrize("compatibility", [2.0, -1.5])
def test_weights_count_like_repeated_points(
    normalization: Any, compatibility: float, random: np.random.Generator
) -> None:
    energies, cloud = to_tensor(random.normal(size=(18, 4))), to_tensor(random.normal(size=(18, 2)))
    counts = torch.tensor([1, 2, 3] * 6, device=DEVICE)
    again = torch.arange(18, device=DEVICE).repeat_interleave(counts)
    kernels, repeated = (
        [ph.crf.Kernel(each, compatibility, normalization).with_lattice()] for each in (cloud, cloud[again])
    )
    found = ph.crf.mean_field(energies, kernels, num_iterations=3, sample_weight=counts.double())
    expected = ph.crf.mean_field(energies[again], repeated, num_iterations=3)
    assert_close(found[again], expected)
    energy = ph.crf.free_energy(found, energies, kernels, sample_weight=counts.double())
    assert_close(energy, ph.crf.free_energy(expected, energies[again], repeated))


def test_points_of_weight_zero_count_for_no_other(random: np.random.Generator) -> None:
    energies, cloud = to_tensor(random.normal(size=(2, 30, 4))), to_tensor(random.normal(size=(30, 2)))
    mask = torch.arange(30, device=DEVICE) < 18
    kernels = [ph.crf.Kernel(cloud, 2.0)]
    found = ph.crf.mean_field(energies, kernels, sample_weight=mask)
    assert_close(found, ph.crf.mean_field(energies, kernels, sample_weight=mask.expand(2, 30)))
    others = torch.where(mask[:, None], energies, 10 * energies.flip(1))
    assert_close(ph.crf.mean_field(others, kernels, sample_weight=mask)[:, mask], found[:, mask])
    assert not torch.allclose(ph.crf.mean_field(others, kernels)[:, mask], found[:, mask], atol=1e-3)


def test_ragged_batch_equals_its_items(dtype: torch.dtype, random: np.random.Generator) -> None:
    energies, cloud = to_tensor(random.normal(size=(30, 4)), dtype), to_tensor(random.normal(size=(30, 2)), dtype)
    batch = torch.tensor([0] * 12 + [1] * 18, device=DEVICE)
    together = ph.crf.mean_field(energies, [ph.crf.Kernel(cloud, 2.0, batch=batch)], num_iterations=3)
    for part in (slice(0, 12), slice(12, 30)):
        assert_close(
            together[part], ph.crf.mean_field(energies[part], [ph.crf.Kernel(cloud[part], 2.0)], num_iterations=3)
        )


def test_takes_lattices_and_start(dtype: torch.dtype, random: np.random.Generator) -> None:
    energies, cloud = to_tensor(random.normal(size=(2, 30, 4)), dtype), to_tensor(random.normal(size=(30, 2)), dtype)
    kernels = [ph.crf.Kernel(cloud, 2.0), ph.crf.Kernel(torch.stack([cloud, cloud * 2]), 1.0)]
    ready = [kernel.with_lattice() for kernel in kernels]
    marginals = ph.crf.mean_field(energies, ready, num_iterations=0)
    for _ in range(3):
        marginals = ph.crf.mean_field(energies, ready, num_iterations=1, start=marginals)
    assert_close(marginals, ph.crf.mean_field(energies, kernels, num_iterations=3))
    assert_close(ph.crf.mean_field(energies, kernels, num_iterations=0, start=marginals), marginals)


@pytest.mark.parametrize("logarithms", [False, True])
@pytest.mark.parametrize("labels", [2, 3])
def test_infinite_energies(labels: int, logarithms: bool) -> None:
    """Where labels are forbidden, given, or all forbidden; with gradients, too."""
    finite, kernels = torch.randn(20, labels, device=DEVICE), [ph.crf.Kernel(torch.randn(20, 2, device=DEVICE), 2.0)]
    for number, large in ((torch.inf, 1e4), (-torch.inf, -1e4)):
        energies, expected = finite.clone(), finite.clone()
        energies[0, 0], expected[0, 0] = number, large
        expected = ph.crf.mean_field(expected, kernels, num_iterations=2)
        for gradient in (False, True):
            found = ph.crf.mean_field(
                energies.requires_grad_(gradient), kernels, num_iterations=2, logarithms=logarithms
            )
            assert_close(found.detach().exp() if logarithms else found.detach(), expected)
        assert bool(torch.autograd.grad(found[1:].sum(), energies)[0].isfinite().all())
    # the neighbors decide
    alike = finite.clone()
    alike[0] = 7.0
    expected = ph.crf.mean_field(alike, kernels, num_iterations=2)
    energies = finite.clone().index_fill(0, torch.tensor([0], device=DEVICE), torch.inf).requires_grad_()
    for tolerance in (None, 0.0):
        found = ph.crf.mean_field(energies, kernels, num_iterations=2, logarithms=logarithms, tolerance=tolerance)
        assert_close(found.detach().exp() if logarithms else found.detach(), expected)
        assert bool(torch.autograd.grad(found.sum(), energies)[0].isfinite().all())
    assert_close(ph.crf.mean_field(energies.detach(), kernels, num_iterations=2), expected)


def test_gradients_of_forbidden_labels_are_those_of_expensive_ones() -> None:
    """Compatibilities that repel are damped, which takes products with energies; rare marginals underflow."""
    energies, features = draw(20, 3, dtype=torch.float32), draw(20, 2, seed=1, dtype=torch.float32)
    for compatibility in (-0.6, torch.tensor([-0.6, -0.5, 1.0]), 0.6):
        found = []
        for cost in (80.0, 1e3, torch.inf):
            energies[3, 0] = cost
            costs = torch.as_tensor(compatibility, device=DEVICE).requires_grad_()
            inputs = [energies.clone().requires_grad_(), features.clone().requires_grad_(), costs]
            kernels = [ph.crf.Kernel(inputs[1], inputs[2])]
            marginals = ph.crf.mean_field(inputs[0], kernels, num_iterations=2)
            energy = ph.crf.free_energy(marginals, inputs[0], kernels)
            found.append(torch.autograd.grad(energy + marginals[:, 1].sum(), inputs))
        for limit, large, infinite in zip(*found, strict=True):
            assert_close(large, limit)
            assert_close(infinite, limit)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16, torch.float64])
def test_energies_of_any_dtype(half: torch.dtype) -> None:
    energies, kernels = torch.randn(30, 4, device=DEVICE).to(half), [ph.crf.Kernel(torch.randn(30, 2, device=DEVICE))]
    marginals = ph.crf.mean_field(energies, kernels, num_iterations=3)
    assert marginals.dtype == half
    coarser = torch.float32 if half == torch.float64 else half
    assert_close(marginals, ph.crf.mean_field(energies.float(), kernels, num_iterations=3), coarser)


def test_no_kernels_and_no_points() -> None:
    energies = torch.randn(30, 4, device=DEVICE)
    assert_close(ph.crf.mean_field(energies, [], num_iterations=3), torch.softmax(-energies, dim=1))
    none = ph.crf.mean_field(energies[:0], [ph.crf.Kernel(energies[:0, :2])], num_iterations=3)
    assert none.shape == (0, 4)
    kernels = [
        ph.crf.spatial_kernel((2, 3), 1.0, device=DEVICE),
        ph.crf.bilateral_kernel(energies[:0, :1, None, None].expand(0, 1, 2, 3), sigma_space=1.0, sigma_color=1.0),
    ]
    for some in (kernels[:1], kernels):
        assert ph.crf.mean_field(energies.new_empty(0, 4, 2, 3), some, num_iterations=3).shape == (0, 4, 2, 3)
        assert ph.crf.free_energy(energies.new_empty(0, 4, 2, 3), energies.new_empty(0, 4, 2, 3), some).shape == (0,)


def test_items_converge_separately() -> None:
    """With a tolerance, an item's result does not depend on how long its batch goes on."""
    cloud = torch.randn(25, 2, device=DEVICE)
    energies = torch.stack([torch.randn(25, 3, device=DEVICE) * scale for scale in (9.0, 0.1)])
    kernels = [ph.crf.Kernel(cloud, 4.0)]
    together = ph.crf.mean_field(energies, kernels, num_iterations=40, tolerance=1e-3)
    for item in range(2):
        assert_close(ph.crf.mean_field(energies[item], kernels, num_iterations=40, tolerance=1e-3), together[item])
    more = ph.crf.mean_field(energies, kernels, num_iterations=1, start=together)
    assert float((more - together).abs().max()) <= 1e-3
    assert float((ph.crf.mean_field(energies, kernels, num_iterations=1) - together).abs().max()) > 1e-3


def test_free_energy(dtype: torch.dtype, random: np.random.Generator) -> None:
    energies, cloud = random.normal(size=(2, 20, LABELS)), to_tensor(random.normal(size=(20, 2)), dtype)
    marginals = np.stack([field_oracle.softmax(each) for each in random.normal(size=(2, 20, LABELS))])
    for name, compatibility in COMPATIBILITIES.items():
        kernel = ph.crf.Kernel(cloud, as_compatibility(compatibility, dtype), "none")
        actual = ph.crf.free_energy(to_tensor(marginals, dtype), to_tensor(energies, dtype), [kernel])
        expected = [dense(cloud, compatibility, "none")]
        for item in range(2):
            whole = field_oracle.free_energy(marginals[item], energies[item], expected)
            assert abs(float(actual[item]) - whole) <= TOLERANCE[dtype] * 100, name
    batch = torch.zeros(20, dtype=torch.long, device=DEVICE)
    ragged = ph.crf.Kernel(cloud, 2.0, batch=batch)
    flat = ph.crf.free_energy(to_tensor(marginals[0], dtype), to_tensor(energies[0], dtype), [ragged])
    assert flat.shape == (1,)


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_a_start_is_normalized(damping: float) -> None:
    """With damping and without, which take different paths."""
    energies, features = torch.randn(30, 3, device=DEVICE), torch.rand(30, 2, device=DEVICE) * 5
    start = torch.rand(30, 3, device=DEVICE)
    kernels = [ph.crf.Kernel(features, 2.0)]
    plain = torch.softmax(start.log(), dim=1)
    expected = ph.crf.mean_field(energies, kernels, num_iterations=2, damping=damping, start=plain)
    assert_close(ph.crf.mean_field(energies, kernels, num_iterations=2, damping=damping, start=start), expected)
