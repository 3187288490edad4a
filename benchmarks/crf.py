"""Workloads of mean fields, lattices included, next to pydensecrf2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from benchmarks import peers
from benchmarks.inputs import Inputs, synthetic_image
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload, yardstick

WEIGHTS, SIGMA, SIGMA_BILATERAL, SIGMA_COLOR = (3.0, 10.0), 3.0, 80.0, 13.0
_VARIANTS = 3


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

    forward = yardstick("forward only", partial(run, gradients=False))
    return Prepared(Contender(OURS, partial(run, gradients=True)), [forward], num_inputs=_VARIANTS)


def _prepare_images(inputs: Inputs, images: int, space: tuple[int, ...], labels: int, iterations: int) -> Prepared:
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


def _prepare_loss(inputs: Inputs) -> Prepared:
    """Differentiate the loss of weakly supervised segmentation: 8 images of 224 x 224, 21 classes."""
    given = []
    for seed in range(_VARIANTS):
        photo = synthetic_image(224, 224).roll(50 * seed, dims=-2)
        photos = torch.stack([photo.roll(16 * number, dims=-1) for number in range(8)])
        scores = torch.randn(8, 21, 224, 224, generator=torch.Generator().manual_seed(seed))
        given.append(((255 * photos).to(inputs.device), scores.softmax(dim=1).to(inputs.device)))
    layer = ph.nn.DenseEnergyLoss(sigma_space=100.0, sigma_color=15.0, weight=1e-7, scale_factor=0.5)

    def run(number: int) -> None:
        images, probabilities = given[number % _VARIANTS]
        layer(images, probabilities.detach().requires_grad_()).backward()

    return Prepared(Contender(OURS, run), num_inputs=_VARIANTS)


_SMALL: dict[str, Any] = {"space": (375, 500), "labels": 21, "iterations": 5}
_ROWS: tuple[tuple[str, str, str, Callable[[Inputs], Prepared]], ...] = (
    ("mean-field-375x500", "mean field, 375 x 500, 21 labels, 5 iterations", "any", partial(_prepare, **_SMALL)),
    (
        "mean-field-375x500-training",
        "mean field and gradients, 375 x 500, 21 labels, 5 iterations",
        "any",
        partial(_prepare_training, **_SMALL),
    ),
    (
        "mean-field-1024x1024",
        "mean field, 1024 x 1024, 21 labels, 10 iterations",
        "any",
        partial(_prepare, space=(1024, 1024), labels=21, iterations=10),
    ),
    *(
        (
            f"mean-field-image-{labels}",
            f"mean field from the image, 375 x 500, {labels} labels, 5 iterations",
            "cuda",
            partial(_prepare_images, images=1, space=(375, 500), labels=labels, iterations=5),
        )
        for labels in (21, 81, 171)
    ),
    (
        "mean-field-batch",
        "mean fields of 8 images in one call, 375 x 500, 81 labels, 10 iterations, features included",
        "cuda",
        partial(_prepare_images, images=8, space=(375, 500), labels=81, iterations=10),
    ),
    ("energy-loss", "DenseEnergyLoss and gradient, 8 images of 224 x 224, 21 classes", "cuda", _prepare_loss),
)
WORKLOADS = tuple(Workload(name, summary, device, "fields", prepare) for name, summary, device, prepare in _ROWS)
