"""Squared errors of a denoiser that is linear in its weights, as a quadratic function of them.

With responses r_k(x) at pixel x and the clean image c, the mean of (sum_k w_k r_k - c)^2 over the pixels is
w'Aw - 2 b'w + e. A, b and e are measured once per image. Training needs nothing else; its optimum has a closed form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import permutohedral as ph
from experiments.data.bsds500 import GrayImage, add_noise
from experiments.denoising.models import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser

LinearDenoiser = SpatialDenoiser | PermutohedralDenoiser | CombinedDenoiser


def _layers_of(model: LinearDenoiser) -> list[SpatialDenoiser | ph.nn.PermutohedralConv]:
    if isinstance(model, CombinedDenoiser):
        return [model.permutohedral.convolution, model.spatial]
    return [model if isinstance(model, SpatialDenoiser) else model.convolution]


def weights_of(model: LinearDenoiser) -> Tensor:
    """Return the weights of all filters, `[weights]`."""
    layers = _layers_of(model)
    return torch.cat([(each.weight if isinstance(each, SpatialDenoiser) else each.filter).flatten() for each in layers])


@torch.no_grad()
def set_weights(model: LinearDenoiser, weights: Tensor) -> None:
    """Set the weights of all filters, `[weights]`."""
    layers = _layers_of(model)
    for layer, part in zip(layers, weights.split([each.weight.numel() for each in layers]), strict=True):
        around = None if isinstance(layer, SpatialDenoiser) else layer.gaussian
        layer.weight.copy_(part.view_as(layer.weight) - (0 if around is None else around))


def responses_of(model: LinearDenoiser, noisy: Tensor) -> Tensor:
    """Return the factor of each weight, `[batch, weights, height, width]`."""
    if isinstance(model, CombinedDenoiser):
        return torch.cat([responses_of(part, noisy) for part in (model.permutohedral, model.spatial)], dim=1)
    if isinstance(model, SpatialDenoiser):
        return F.unfold(model.pad(noisy), model.weight.shape[-1]).reshape(len(noisy), -1, *noisy.shape[-2:])
    layer = model.convolution
    each_tap = torch.eye(layer.neighborhood.filter_size, dtype=noisy.dtype, device=noisy.device)[:, None, :]
    lattice = layer.build_lattice(model.features(noisy))
    filtered = ph.permutohedral_filter(noisy.flatten(2).mT, lattice, each_tap, normalization=layer.normalization)
    return filtered.mT.reshape(len(noisy), -1, *noisy.shape[-2:])


@dataclass(frozen=True)
class QuadraticErrors:
    """Mean squared error of each image as a function of the weights.

    Attributes:
        matrix: A, float64 `[images, weights, weights]`.
        vector: b, float64 `[images, weights]`.
        constant: e, float64 `[images]`.
    """

    matrix: Tensor
    vector: Tensor
    constant: Tensor

    def evaluate(self, weights: Tensor) -> Tensor:
        """Return the mean squared error of each image, float64 `[images]`; differentiable."""
        return evaluate_errors(self.matrix, self.vector, self.constant, weights)

    def least_squares(self) -> Tensor:
        """Return the weights of least error over all images, float64 `[weights]`, and of least norm."""
        matrix, vector = self.matrix.mean(dim=0).cpu(), self.vector.mean(dim=0).cpu()
        solution: Tensor = torch.linalg.lstsq(matrix, vector[:, None], driver="gelsd").solution[:, 0]
        return solution


def evaluate_errors(matrix: Tensor, vector: Tensor, constant: Tensor, weights: Tensor) -> Tensor:
    """Return w'Aw - 2 b'w + e for every image of a batch."""
    weights = weights.to(matrix.dtype)
    return ((matrix @ weights - 2 * vector) * weights).sum(dim=1) + constant


@torch.no_grad()
def measure_quadratic_errors(
    model: LinearDenoiser, images: Iterable[GrayImage], sigma: float, seed: int, device: torch.device
) -> QuadraticErrors:
    """Filter every image with each weight alone."""
    matrices, vectors, constants = [], [], []
    for image in images:
        noisy = add_noise(image, sigma, seed).to(device)
        responses = responses_of(model, noisy[None, None])[0].flatten(1).double()
        clean = image.pixels.to(device).flatten().double()
        matrices.append(responses @ responses.T / clean.numel())
        vectors.append(responses @ clean / clean.numel())
        constants.append(clean.square().mean())
    return QuadraticErrors(torch.stack(matrices), torch.stack(vectors), torch.stack(constants))
