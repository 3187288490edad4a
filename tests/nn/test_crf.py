"""The dense CRF layer, compared with the function, and its gradients."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from support import DEVICE, ErrorCase, assert_close, assert_raises
from torch import Tensor

import permutohedral as ph
from permutohedral.nn import DenseCRF

pytestmark = pytest.mark.usefixtures("backend")


def layer(labels: int = 3, dtype: torch.dtype | None = torch.float64, **options: Any) -> DenseCRF:
    given = {"sigma_smoothness": 1.7, "sigma_space": 4.0, "sigma_color": 0.3, "num_iterations": 2}
    return DenseCRF(labels, device=DEVICE, dtype=dtype, **{"kernel_weights": (1.0, 2.0), **given, **options})


def pictures(*shape: int, labels: int = 3) -> tuple[Tensor, Tensor]:
    *leading, height, width = shape
    logits = torch.randn(*leading, labels, height, width, dtype=torch.float64, device=DEVICE)
    return logits, torch.rand(*leading, 2, height, width, dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "matrix"])
def test_matches_mean_field(compatibility: Any, leading: tuple[int, ...]) -> None:
    """All costs begin as the Potts model."""
    logits, guide = pictures(*leading, 6, 5)
    made = layer(compatibility=compatibility)
    ones, eye = torch.ones(3, device=DEVICE).double(), torch.eye(3, device=DEVICE).double()
    costs: Any = {"potts": 1.0, "diagonal": -ones, "matrix": 1 - eye}[compatibility]
    kernels = [
        ph.crf.spatial_kernel((6, 5), 1.7, compatibility=costs, device=DEVICE, dtype=torch.float64),
        ph.crf.bilateral_kernel(guide, sigma_space=4.0, sigma_color=0.3, compatibility=2 * costs),
    ]
    expected = ph.crf.mean_field(-logits, kernels, num_iterations=2)
    assert_close(made(logits, guide).exp(), expected)
    with torch.no_grad():
        assert_close(made(logits, guide).exp(), expected)
        assert_close(made(logits, made.build_lattices(guide)).exp(), expected)


@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "matrix"])
def test_all_inputs_have_gradients(compatibility: Any) -> None:
    made = layer(compatibility=compatibility, learn_sigma=True)
    names, parameters = zip(*made.named_parameters(), strict=True)
    logits, guide = (each.requires_grad_() for each in pictures(4, 3))

    def run(logits: Tensor, guide: Tensor, *values: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(made, dict(zip(names, values, strict=True)), (logits, guide))
        return result

    # a GPU adds in another order each time
    assert torch.autograd.gradcheck(run, (logits, guide, *parameters), atol=1e-6, nondet_tol=1e-10, fast_mode=True)
    run(logits, guide, *parameters).square().sum().backward()
    for each in (logits, guide, *parameters):
        assert each.grad is not None
        assert float(each.grad.abs().max()) > 0


@pytest.mark.parametrize("labels", [2, 3])
def test_fused_gradients_match_unfused(labels: int) -> None:
    """Of a batch, for a given start; and gradients of gradients."""
    energies, guide = pictures(2, 4, 3, labels=labels)
    start = torch.softmax(torch.randn_like(energies), dim=1)
    spatial = ph.features.positions((4, 3), 1.7, dtype=torch.float64, device=DEVICE).expand(2, 12, 2) + 0.1
    weight, costs = torch.tensor(2.0, dtype=torch.float64, device=DEVICE), -torch.rand_like(energies[0, :, 0, 0])
    inputs = [each.requires_grad_() for each in (energies, start, weight, costs)]

    def run(energies: Tensor, start: Tensor, weight: Tensor, costs: Tensor) -> Tensor:
        kernels = [
            ph.crf.Kernel(spatial, weight, "none", space=(4, 3)),
            ph.crf.bilateral_kernel(
                guide,
                sigma_space=4.0,
                sigma_color=0.3,
                compatibility=costs if labels > 2 else weight,
                normalization="homogeneous",
            ),
        ]
        return ph.crf.mean_field(energies, kernels, num_iterations=2, start=start.softmax(dim=1), logarithms=True)

    wanted = torch.randn_like(energies)
    found = torch.autograd.grad(run(*inputs), inputs, wanted, allow_unused=True)
    with ph.backends.use("reference"):
        expected = torch.autograd.grad(run(*inputs), inputs, wanted, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_close(one, other)
    assert torch.autograd.gradgradcheck(run, inputs, atol=1e-6, nondet_tol=1e-10, fast_mode=True)


def test_damping_trains_repulsive_costs() -> None:
    """The damping depends on costs and bandwidths."""
    made = layer(compatibility="matrix", num_iterations=3, learn_sigma=True)
    assert made.costs is not None
    with torch.no_grad():
        made.costs.copy_(torch.eye(3) * 4 + torch.rand(3, 3))
    logits, guide = pictures(4, 3)
    names, parameters = zip(*made.named_parameters(), strict=True)

    def run(logits: Tensor, *values: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(made, dict(zip(names, values, strict=True)), (logits, guide))
        return result

    inputs = (logits.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(run, inputs, atol=1e-6, nondet_tol=1e-10)


def test_training_recovers_a_field() -> None:
    """Weights that were lost are found again, from what the field did."""
    logits, guide = pictures(12, 11)
    teacher, student = layer(kernel_weights=(2.0, 4.0)), layer(kernel_weights=(0.5, 0.5))
    wanted = teacher(logits, guide).detach()
    optimizer = torch.optim.LBFGS(
        student.parameters(), max_iter=60, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        difference: Tensor = (student(logits, guide) - wanted).square().mean()
        difference.backward()
        return difference.detach()

    optimizer.step(loss)
    assert_close(student.kernel_weights, teacher.kernel_weights, torch.float32)


def test_half_precision_volume() -> None:
    made = layer(2, torch.float32, spatial_dims=3)
    logits, guide = torch.randn(1, 2, 3, 4, 5, device=DEVICE), torch.rand(1, 1, 3, 4, 5, device=DEVICE)
    whole = made(logits, guide)
    assert made(logits.half(), guide.half()).dtype == torch.float16
    assert_close(made(logits.half(), guide.half()).float(), whole, torch.bfloat16)


def test_cross_entropy_of_result() -> None:
    """Some of torch's want it contiguous."""
    logits, guide = pictures(2, 5, 4)
    refined = layer(compatibility="diagonal")(logits.requires_grad_(), guide)
    target = torch.zeros(2, 5, 4, dtype=torch.long, device=DEVICE)
    torch.nn.functional.nll_loss(refined, target).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad.abs().max()) > 0


def test_accepts_integer_weights() -> None:
    logits, guide = pictures(4, 3)
    assert_close(layer(kernel_weights=(1, 2))(logits, guide), layer(kernel_weights=(1.0, 2.0))(logits, guide))
    assert layer(kernel_weights=(1, 2), dtype=None).kernel_weights.dtype == torch.float32


def test_state_dict_and_repr() -> None:
    made = layer(compatibility="diagonal")
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
    assert "num_iterations=2, costs=(3,)" in repr(made)
    other = layer(compatibility="diagonal", kernel_weights=(9.0, 9.0))
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.kernel_weights, made.kernel_weights)


def test_images_of_different_sizes() -> None:
    """A list equals the images one by one, a padded batch nearly: lattice points of the padding stay."""
    made = layer(compatibility="matrix")
    logits, guides = zip(*(pictures(*size) for size in ((6, 5), (4, 7), (1, 1))), strict=True)
    alone = [made(each, guide) for each, guide in zip(logits, guides, strict=True)]
    for found, expected in zip(made(logits, guides), alone, strict=True):
        assert_close(found, expected)
    padded, edges = (torch.randn(3, channels, 6, 7, dtype=torch.float64, device=DEVICE) for channels in (3, 2))
    weight = torch.zeros(3, 6, 7, device=DEVICE, dtype=torch.bool)
    for number, (each, guide) in enumerate(zip(logits, guides, strict=True)):
        inside = (number, ..., slice(each.shape[1]), slice(each.shape[2]))
        padded[inside], edges[inside], weight[inside] = each, guide, True
    together = made(padded, edges, sample_weight=weight)
    for number, expected in enumerate(alone):
        inside = together[number, :, : expected.shape[1], : expected.shape[2]]
        assert float((inside.exp() - expected.exp()).detach().abs().max()) < 5e-3
    weights = [torch.rand(each.shape[1:], device=DEVICE).double() for each in logits]
    for found, one, guide, weight in zip(
        made(logits, guides, sample_weight=weights), logits, guides, weights, strict=True
    ):
        assert_close(found, made(one, guide, sample_weight=weight))
    assert made([], []) == []


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device=DEVICE)


ERRORS: dict[str, ErrorCase] = {
    "labels": (lambda: layer(0), ph.errors.InputError, "num_labels"),
    "sigma": (lambda: layer(sigma_color=0.0), ph.errors.InputError, "sigma_color must be positive"),
    "sigma_text": (
        lambda: layer(sigma_space="wide"),
        ph.errors.InputError,
        "sigma_space must be one number, got",
    ),
    "weights": (lambda: layer(kernel_weights=(1.0,)), ph.errors.InputError, "two numbers"),
    "one_weight": (
        lambda: layer(kernel_weights=3.0),
        ph.errors.InputError,
        "kernel_weights must be two numbers.*got 3.0",
    ),
    "guide_integers": (
        lambda: layer()(zeros(3, 4, 5), zeros(3, 4, 5).int()),
        ph.errors.InputError,
        "guide of int32 has no rule",
    ),
    "compatibility": (lambda: layer(compatibility="full"), ph.errors.InputError, "'potts'"),
    "logits": (lambda: layer()(zeros(2, 4, 5), zeros(3, 4, 5)), ph.errors.InputError, r"\[3, \*space\]"),
    "axes": (lambda: layer()(zeros(3, 4), zeros(3, 4, 5)), ph.errors.InputError, "2 axes"),
    "guide": (lambda: layer()(zeros(3, 4, 5), zeros(4, 5)), ph.errors.InputError, "guide must be"),
    "space": (lambda: layer()(zeros(3, 4, 5), zeros(3, 4, 6)), ph.errors.InputError, "guide must have the space of"),
    "items": (lambda: layer()(zeros(2, 3, 4, 5), zeros(1, 3, 4, 5)), ph.errors.InputError, "their batch or none"),
    "short_list": (
        lambda: layer()([zeros(3, 4, 5)], [zeros(3, 4, 5)] * 2),
        ph.errors.InputError,
        "guide must be a list of 1",
    ),
    "batch_in_a_list": (
        lambda: layer()([zeros(1, 3, 4, 5)], [zeros(3, 4, 5)]),
        ph.errors.InputError,
        "no batch axes in a list",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_rejects_mismatched_arguments(name: str) -> None:
    assert_raises(*ERRORS[name])


def test_ensembles_of_layers() -> None:
    """Stacked parameters, of fixed bandwidths too."""
    layers = [layer(sigma_smoothness=sigma, kernel_weights=(sigma, 2.0)) for sigma in (1.5, 2.5)]
    logits, guide = pictures(5, 6)
    stacked, _ = torch.func.stack_module_state([*layers])
    found = torch.vmap(lambda each: torch.func.functional_call(layers[0], each, (logits, guide)))(stacked)
    assert_close(found, torch.stack([each(logits, guide) for each in layers]))
