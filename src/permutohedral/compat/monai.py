"""Drop-in for the compiled layers of MONAI, with correct gradients: bilateral and permutohedral filters, and the CRF.

Tensors are `[batch, channels, *space]` with one to three axes of space, and stay on their device. docs/guide/monai.md
lists the differences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from permutohedral.errors import InputError
from permutohedral.filters.gaussian import gaussian_filter
from permutohedral.lattice.features import positions, positive_numbers
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.tensors import check_count, check_tensor

__all__ = ["CRF", "BilateralFilter", "PHLFilter", "TrainableBilateralFilter", "TrainableJointBilateralFilter"]

_MOST_AXES = 3
# standard deviation along axes that the input does not have
_UNUSED_SIGMA = 0.01


class BilateralFilter:
    """Bilateral filter; call `BilateralFilter.apply`.

    >>> import torch
    >>> from permutohedral.compat.monai import BilateralFilter
    >>> BilateralFilter.apply(torch.rand(1, 3, 8, 8), 5, 0.5, True).shape
    torch.Size([1, 3, 8, 8])
    """

    @staticmethod
    def apply(input: Tensor, spatial_sigma: float = 5, color_sigma: float = 0.5, fast_approx: bool = True) -> Tensor:
        """Filter `input`.

        Args:
            input: `[batch, channels, *space]`.
            spatial_sigma: standard deviation over positions, in pixels.
            color_sigma: standard deviation over values, in units of the input.
            fast_approx: use the permutohedral lattice; else sum over windows of ceil(5 spatial_sigma) pixels, where the
                border is repeated.
        """
        axes = _check_image("input", input)
        positive_numbers(spatial_sigma, "spatial_sigma", 1)
        positive_numbers(color_sigma, "color_sigma", 1)
        if fast_approx:
            features = torch.cat([input / color_sigma, _coordinates(input) / spatial_sigma], dim=1)
            return _to_maps(gaussian_filter(_to_rows(input), _to_rows(features)), input)
        half = _half_window(spatial_sigma)
        padded = pad(input, (half, half) * axes, mode="replicate")
        sigmas = input.new_tensor([spatial_sigma] * axes)
        return _sum_windows(padded, padded, None, (half,) * axes, sigmas, input.new_tensor(color_sigma))


class PHLFilter:
    """Gaussian filter over any features; call `PHLFilter.apply`.

    >>> import torch
    >>> from permutohedral.compat.monai import PHLFilter
    >>> PHLFilter.apply(torch.rand(1, 2, 8, 8), torch.rand(1, 5, 8, 8), [0.1] * 5).shape
    torch.Size([1, 2, 8, 8])
    """

    @staticmethod
    def apply(input: Tensor, features: Tensor, sigmas: Sequence[float] | Tensor | None = None) -> Tensor:
        """Filter `input [batch, channels, *space]` by `features [batch, features, *space]`, which stay unchanged.

        `sigmas` has the standard deviation of each feature; default: ones.
        """
        axes = _check_image("input", input)
        _check_image("features", features)
        if input.shape[0] != features.shape[0] or input.shape[-axes:] != features.shape[2:]:
            raise InputError(
                "input and features must have the same batch and space, got the shapes "
                f"{tuple(input.shape)} and {tuple(features.shape)}"
            )
        if sigmas is not None:
            # more than there are features are ignored, as in MONAI
            deviations = torch.as_tensor(sigmas).to(features)[: features.shape[1]]
            if deviations.shape != features.shape[1:2]:
                raise InputError(f"sigmas must have {features.shape[1]} numbers, got {len(sigmas)}")
            features = features / deviations.reshape(-1, *[1] * axes)
        return _to_maps(gaussian_filter(_to_rows(input), _to_rows(features)), input)


class _TrainableFilter(nn.Module):
    """Bilateral filter with learned standard deviations."""

    def __init__(self, spatial_sigma: float | Sequence[float], color_sigma: float) -> None:
        super().__init__()
        numbers = [spatial_sigma] * _MOST_AXES if isinstance(spatial_sigma, (int, float)) else list(spatial_sigma)
        if not 1 <= len(numbers) <= _MOST_AXES:
            raise InputError(f"spatial_sigma must have a number for each of 1 to 3 axes, got {len(numbers)}")
        self.len_spatial_sigma = len(numbers)
        numbers += [_UNUSED_SIGMA] * (_MOST_AXES - len(numbers))
        self.sigma_x, self.sigma_y, self.sigma_z = (nn.Parameter(torch.tensor(float(number))) for number in numbers)
        self.sigma_color = nn.Parameter(torch.tensor(float(color_sigma)))

    def _filter(self, image: Tensor, guide: Tensor) -> Tensor:
        axes = _check_image("input_tensor", image)
        if image.shape[1] != 1:
            raise InputError(f"input_tensor must have 1 channel, got {image.shape[1]}; use one layer for each channel")
        if image.shape != guide.shape:
            raise InputError(
                "guidance_tensor must have the shape of input_tensor, got "
                f"{tuple(guide.shape)} and {tuple(image.shape)}"
            )
        if axes != self.len_spatial_sigma:
            raise InputError(f"input_tensor must have {self.len_spatial_sigma} axes of space, got {axes}")
        sigmas = torch.stack((self.sigma_x, self.sigma_y, self.sigma_z)[:axes]).to(image)
        halves = tuple(max(_half_window(sigma), 2) for sigma in sigmas.tolist())
        borders = [border for half in reversed(halves) for border in (half, half)]
        inside = pad(image.new_ones(1, 1, *image.shape[2:]), borders)
        return _sum_windows(
            pad(image, borders), pad(guide, borders), inside, halves, sigmas, self.sigma_color.to(image)
        )


class TrainableBilateralFilter(_TrainableFilter):
    """Bilateral filter with learned standard deviations, for one channel.

    Args:
        spatial_sigma: standard deviation in pixels for each axis of space; a number is for volumes.
        color_sigma: standard deviation over values.

    >>> import torch
    >>> from permutohedral.compat.monai import TrainableBilateralFilter
    >>> TrainableBilateralFilter([1.0, 1.0], 0.5)(torch.rand(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """

    def forward(self, input_tensor: Tensor) -> Tensor:
        """Filter `[batch, 1, *space]`."""
        return self._filter(input_tensor, input_tensor)


class TrainableJointBilateralFilter(_TrainableFilter):
    """Bilateral filter along the edges of a guide, with learned standard deviations, for one channel.

    Args:
        spatial_sigma: standard deviation in pixels for each axis of space; a number is for volumes.
        color_sigma: standard deviation over values of the guide.

    >>> import torch
    >>> from permutohedral.compat.monai import TrainableJointBilateralFilter
    >>> TrainableJointBilateralFilter([1.0, 1.0], 0.5)(torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """

    def forward(self, input_tensor: Tensor, guidance_tensor: Tensor) -> Tensor:
        """Filter `input_tensor` by `guidance_tensor`, both `[batch, 1, *space]`."""
        return self._filter(input_tensor, guidance_tensor)


class CRF(nn.Module):
    """Dense CRF as a layer: mean-field iterations with a bilateral and a Gaussian kernel, both normalized.

    Args:
        iterations: number of iterations.
        bilateral_weight: weight of the bilateral kernel.
        gaussian_weight: weight of the Gaussian kernel.
        bilateral_spatial_sigma: standard deviation over positions, in pixels.
        bilateral_color_sigma: standard deviation over the values of the reference.
        gaussian_spatial_sigma: standard deviation over positions of the Gaussian kernel.
        update_factor: weight of the messages against the logits.
        compatibility_matrix: `[classes, classes]`, or None.

    >>> import torch
    >>> from permutohedral.compat.monai import CRF
    >>> CRF()(torch.rand(1, 2, 8, 8), torch.rand(1, 3, 8, 8)).shape
    torch.Size([1, 2, 8, 8])
    """

    def __init__(
        self,
        iterations: int = 5,
        bilateral_weight: float = 1.0,
        gaussian_weight: float = 1.0,
        bilateral_spatial_sigma: float = 5.0,
        bilateral_color_sigma: float = 0.5,
        gaussian_spatial_sigma: float = 5.0,
        update_factor: float = 3.0,
        compatibility_matrix: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_count("iterations", iterations)
        self.iterations, self.update_factor = iterations, update_factor
        self.bilateral_weight, self.gaussian_weight = bilateral_weight, gaussian_weight
        self.bilateral_spatial_sigma, self.bilateral_color_sigma = bilateral_spatial_sigma, bilateral_color_sigma
        self.gaussian_spatial_sigma = gaussian_spatial_sigma
        self.compatibility_matrix = compatibility_matrix

    def forward(self, input_tensor: Tensor, reference_tensor: Tensor) -> Tensor:
        """Return class probabilities of logits `[batch, classes, *space]`, along the edges of a reference."""
        _check_image("input_tensor", input_tensor)
        _check_image("reference_tensor", reference_tensor)
        if input_tensor.shape[:1] + input_tensor.shape[2:] != reference_tensor.shape[:1] + reference_tensor.shape[2:]:
            raise InputError(
                "input_tensor and reference_tensor must have the same batch and space, got the shapes "
                f"{tuple(input_tensor.shape)} and {tuple(reference_tensor.shape)}"
            )
        places = _coordinates(reference_tensor)
        bilateral = [places / self.bilateral_spatial_sigma, reference_tensor / self.bilateral_color_sigma]
        kernels: list[tuple[float, Lattice]] = [
            (self.bilateral_weight, _lattice(torch.cat(bilateral, dim=1))),
            (self.gaussian_weight, _lattice(places / self.gaussian_spatial_sigma)),
        ]
        logits = _to_rows(input_tensor)
        probabilities = logits.softmax(dim=-1)
        for _ in range(self.iterations):
            messages = sum(
                (weight * gaussian_filter(probabilities, None, lattice=lattice) for weight, lattice in kernels),
                start=torch.zeros_like(logits),
            )
            if self.compatibility_matrix is not None:
                messages = messages @ self.compatibility_matrix.to(messages)
            probabilities = (logits + self.update_factor * messages).softmax(dim=-1)
        return _to_maps(probabilities, input_tensor)


def _check_image(name: str, image: Tensor) -> int:
    """Return the number of axes of space."""
    check_tensor(name, image)
    if not 3 <= image.dim() <= 2 + _MOST_AXES or image.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} must be float32 or float64 [batch, channels, *space] with 1 to 3 axes of space, got "
            f"{image.dtype} of shape {tuple(image.shape)}"
        )
    if 0 in image.shape:
        raise InputError(f"{name} must not be empty, got the shape {tuple(image.shape)}")
    return image.dim() - 2


def _to_rows(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)


def _to_maps(rows: Tensor, like: Tensor) -> Tensor:
    return rows.transpose(1, 2).reshape(like.shape)


def _lattice(features: Tensor) -> Lattice:
    return build_lattice(_to_rows(features), neighborhood_size=0, separable=True)


def _coordinates(image: Tensor) -> Tensor:
    """Return positions in pixels, `[batch, axes, *space]`."""
    places = positions(image.shape[2:], device=image.device, dtype=image.dtype)
    return places.T.reshape(1, -1, *image.shape[2:]).expand(len(image), *[-1] * (image.dim() - 1))


def _half_window(sigma: float) -> int:
    """Return the reach of MONAI's windows, which have ceil(5 sigma) pixels, or one more."""
    return (math.ceil(5 * sigma) | 1) // 2


def _sum_windows(
    padded: Tensor, guide: Tensor, inside: Tensor | None, halves: Sequence[int], sigmas: Tensor, color_sigma: Tensor
) -> Tensor:
    """Return the bilateral filter over windows, of an image and its guide padded by half a window.

    The last axis is summed in one step; steps are computed again in the backward pass, so they keep no memory.
    """
    half, extents = halves[-1], [extent - 2 * reach for extent, reach in zip(padded.shape[2:], halves, strict=True)]
    along = torch.arange(-half, half + 1, device=padded.device, dtype=padded.dtype)

    def crop(maps: Tensor, starts: Sequence[int]) -> Tensor:
        for axis, start in enumerate(starts):
            maps = maps.narrow(2 + axis, start, extents[axis])
        return maps

    def step(starts: tuple[int, ...], *tensors: Tensor) -> tuple[Tensor, Tensor]:
        image, edges, middle, deviations, color_deviation = tensors[:5]
        windows, neighbors, *mask = (
            crop(maps, starts).unfold(-1, 2 * half + 1, 1) for maps in (image, edges, *tensors[5:])
        )
        distance = ((neighbors - middle[..., None]) / color_deviation).square().sum(dim=1, keepdim=True)
        distance = distance + (along / deviations[-1]).square()
        for start, reach, deviation in zip(starts, halves[:-1], deviations[:-1], strict=True):
            distance = distance + ((start - reach) / deviation).square()
        weight = torch.exp(-distance / 2)
        weight = weight * mask[0] if mask else weight
        return (weight * windows).sum(dim=-1), weight.sum(dim=-1)

    center = crop(guide, halves)
    tensors = (padded, guide, center, sigmas, color_sigma, *([] if inside is None else [inside]))
    values, mass = torch.zeros_like(center), center.new_zeros(())
    for starts in itertools.product(*(range(2 * reach + 1) for reach in halves[:-1])):
        part, weight = checkpoint(step, starts, *tensors, use_reentrant=False)
        values, mass = values + part, mass + weight
    return values / mass
