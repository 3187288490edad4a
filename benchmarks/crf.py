"""Workloads of mean fields, lattices included, next to pydensecrf2."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from benchmarks import peers
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload

WEIGHTS, SIGMA, SIGMA_BILATERAL, SIGMA_COLOR = (3.0, 10.0), 3.0, 80.0, 13.0
_VARIANTS = 3

# extents, labels, iterations; bandwidths are those of many programs
CASES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((375, 500), 21, 5),
    ((375, 500), 21, 10),
    ((375, 500), 2, 5),
    ((375, 500), 81, 10),
    ((1024, 1024), 21, 10),
    ((1024, 1024), 2, 10),
    ((99, 117, 95), 4, 5),
)


def _make(space: tuple[int, ...], labels: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return energies `[labels, pixels]` and the features of both kernels, x before y as in pydensecrf."""
    random = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.arange(extent, dtype=np.float32) for extent in space), indexing="ij")
    positions = np.stack([axis.ravel() for axis in reversed(axes)], axis=1)
    waves = [np.sin(sum(axes) / 61), np.sin(axes[-1] / 37) + np.cos(axes[-2] / 53), np.cos((axes[-1] - axes[-2]) / 80)]
    colors = np.stack([wave.ravel() for wave in (waves if len(space) == 2 else waves[:1])], axis=1) * 60 + 128
    colors = np.clip(colors + random.normal(size=colors.shape) * 8, 0, 255).astype(np.uint8).astype(np.float32)
    truth = (colors[:, 0] // (256 / labels)).astype(np.int64)
    logits = random.normal(size=(labels, len(truth))).astype(np.float32)
    logits[truth, np.arange(len(truth))] += 1.5
    both = np.concatenate([positions / SIGMA_BILATERAL, colors / SIGMA_COLOR], axis=1)
    energies = -torch.log_softmax(torch.from_numpy(logits), dim=0)
    return energies, torch.from_numpy(positions / SIGMA), torch.from_numpy(both)


def _ours(
    space: tuple[int, ...], iterations: int, weights: Any, energies: Tensor, *features: Tensor, logarithms: bool = False
) -> Tensor:
    kernels = [ph.crf.Kernel(each, weight, space=space) for each, weight in zip(features, weights, strict=True)]
    planes = energies.reshape(-1, *space)
    return ph.crf.mean_field(planes, kernels, num_iterations=iterations, logarithms=logarithms).flatten(1)


def _pydensecrf(iterations: int, energies: Tensor, *features: Tensor) -> Tensor:
    import pydensecrf.densecrf as dcrf

    field = dcrf.DenseCRF(energies.shape[1], energies.shape[0])
    field.setUnaryEnergy(energies.numpy())
    for each, weight in zip(features, WEIGHTS, strict=True):
        field.addPairwiseEnergy(np.ascontiguousarray(each.numpy().T), compat=weight)
    return torch.from_numpy(np.array(field.inference(iterations)))


def _prepare(inputs: Inputs, space: tuple[int, ...], labels: int, iterations: int) -> Prepared:
    """Infer the marginals from energies and features."""
    given = [tuple(each.to(inputs.device) for each in _make(space, labels, seed)) for seed in range(_VARIANTS)]
    infer = partial(_ours, space, iterations, WEIGHTS)

    def error(marginals: Tensor) -> float:
        """Return the largest difference to the marginals in float64."""
        exact = infer(*(each.double() for each in given[0]))
        return float((marginals.to(exact.device) - exact).abs().max())

    theirs: Contender | Absent = Absent(peers.DENSECRF)
    if inputs.device.type == "cuda":
        theirs = Absent(peers.DENSECRF, "runs on the CPU only")
    elif peers.version_of(peers.DENSECRF) is not None:
        theirs = Contender(
            peers.DENSECRF,
            lambda number: _pydensecrf(iterations, *given[number % _VARIANTS]),
            error=error,
            note="one thread",
            version=peers.version_of(peers.DENSECRF),
        )
    ours = Contender(OURS, lambda number: infer(*given[number % _VARIANTS]), error=error)
    return Prepared(ours, [theirs], num_inputs=_VARIANTS)


def _prepare_training(inputs: Inputs, space: tuple[int, ...], labels: int, iterations: int) -> Prepared:
    """Differentiate the log-marginals with respect to energies and kernel weights, next to inference alone."""
    given = [tuple(each.to(inputs.device) for each in _make(space, labels, seed)) for seed in range(_VARIANTS)]
    learned = [torch.tensor(weight, device=inputs.device, requires_grad=True) for weight in WEIGHTS]

    def run(number: int, gradients: bool) -> None:
        energies, *features = given[number % _VARIANTS]
        energies = energies.clone().requires_grad_(gradients)
        found = _ours(space, iterations, learned if gradients else WEIGHTS, energies, *features, logarithms=True)
        if gradients:
            found[0].sum().backward()

    forward = Contender("forward only", partial(run, gradients=False), same_task=False)
    return Prepared(Contender(OURS, partial(run, gradients=True)), [forward], num_inputs=_VARIANTS)


def _prepare_batch(inputs: Inputs, images: int, space: tuple[int, ...], labels: int, iterations: int) -> Prepared:
    """Infer the marginals of images in one call, features included."""
    layer = ph.nn.DenseCRF(
        labels,
        kernel_weights=WEIGHTS,
        sigma_smoothness=SIGMA,
        sigma_space=SIGMA_BILATERAL,
        sigma_color=SIGMA_COLOR / 255,
        num_iterations=iterations,
    ).to(inputs.device)
    batches = []
    for variant in range(_VARIANTS):
        each = [_make(space, labels, images * variant + number) for number in range(images)]
        colors = [both[:, len(space) :].T.reshape(-1, *space) * SIGMA_COLOR / 255 for _, _, both in each]
        energies = torch.stack([energy.reshape(-1, *space) for energy, _, _ in each])
        batches.append((energies.to(inputs.device), torch.stack(colors).to(inputs.device)))

    def run(number: int) -> Tensor:
        with torch.no_grad():
            marginals: Tensor = layer(*batches[number % _VARIANTS])
        return marginals

    return Prepared(Contender(OURS, run), num_inputs=_VARIANTS)


def _workloads() -> list[Workload]:
    found = []
    for space, labels, iterations in CASES:
        size = "x".join(map(str, space))
        name, summary = f"{size}-{labels}-{iterations}", f"{size}, {labels} labels, {iterations} iterations"
        options: dict[str, Any] = {"space": space, "labels": labels, "iterations": iterations}
        found.append(Workload(f"crf-{name}", f"mean field, {summary}", "any", partial(_prepare, **options)))
        if len(space) == 2:
            training = partial(_prepare_training, **options)
            found.append(Workload(f"crf-training-{name}", f"mean field and gradients, {summary}", "any", training))
    return found


WORKLOADS = (
    *_workloads(),
    Workload(
        "crf-batch",
        "mean fields of 8 images in one call, 375x500, 81 labels, 10 iterations, features included",
        "cuda",
        partial(_prepare_batch, images=8, space=(375, 500), labels=81, iterations=10),
    ),
)
