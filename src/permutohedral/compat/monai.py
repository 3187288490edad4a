"""Drop-in for the compiled layers of MONAI, with correct gradients: bilateral and permutohedral filters, and the CRF.

Tensors are `[batch, channels, *space]` with one to three axes of space, and stay on their device. Those of 16 bits are
filtered in float32. docs/guide/monai.md lists the differences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from permutohedral.errors import InputError
from permutohedral.features import positions, positive_numbers
from permutohedral.filters.gaussian import gaussian_filter
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.reference import elevation_matrix

__all__ = [
    "CRF",
    "BilateralFilter",
    "PHLFilter",
    "TrainableBilateralFilter",
    "TrainableBilateralFilterFunction",
    "TrainableJointBilateralFilter",
    "TrainableJointBilateralFilterFunction",
]

Sigma = float | Tensor

_MOST_AXES = 3
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# standard deviation along axes that the input does not have
_UNUSED_SIGMA = 0.01
# least reach of the windows of the trained filters
_LEAST_REACH = 2
# far below the rounding of float32 and above that of float64, in units of the lattice
_TIE = 1e-9
# numbers of a step of the filters over windows
_STEP_NUMBERS = 1 << 20


class BilateralFilter(torch.autograd.Function):
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
        image = _read_image("input", input)
        positive_numbers(spatial_sigma, "spatial_sigma", 1)
        positive_numbers(color_sigma, "color_sigma", 1)
        if fast_approx:
            features = torch.cat([image / color_sigma, _coordinates(image) / spatial_sigma], dim=1)
            return _to_maps(_filter_rows(_to_rows(image), _lattice(features)), input)
        sigma, reach = image.new_tensor(spatial_sigma), _half_window(spatial_sigma)
        weights = [_fold(_gaussian(sigma, reach), extent) for extent in image.shape[2:]]
        return _sum_windows(image, image, weights, image.new_tensor(color_sigma), "replicate").to(input.dtype)


class PHLFilter(torch.autograd.Function):
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
        image, features = _read_image("input", input), _read_image("features", features)
        if image.shape[:1] + image.shape[2:] != features.shape[:1] + features.shape[2:]:
            raise InputError(
                "input and features must have the same batch and space, got the shapes "
                f"{tuple(input.shape)} and {tuple(features.shape)}"
            )
        if sigmas is not None:
            # more than there are features are ignored, as in MONAI
            deviations = torch.as_tensor(sigmas).to(features)[: features.shape[1]]
            if deviations.shape != features.shape[1:2]:
                raise InputError(f"sigmas must have {features.shape[1]} numbers, got {len(sigmas)}")
            features = features / deviations.reshape(-1, *[1] * (image.dim() - 2))
        return _to_maps(_filter_rows(_to_rows(image), _lattice(features)), input)


class TrainableBilateralFilterFunction(torch.autograd.Function):
    """Bilateral filter with a standard deviation for each axis; call `TrainableBilateralFilterFunction.apply`.

    >>> import torch
    >>> from permutohedral.compat.monai import TrainableBilateralFilterFunction
    >>> TrainableBilateralFilterFunction.apply(torch.rand(1, 1, 8, 8, 1), 1.0, 1.0, 0.01, 0.5).shape
    torch.Size([1, 1, 8, 8, 1])
    """

    @staticmethod
    def apply(input_img: Tensor, sigma_x: Sigma, sigma_y: Sigma, sigma_z: Sigma, color_sigma: Sigma) -> Tensor:
        """Filter `[batch, 1, *space]`; sigmas of axes that it lacks are ignored."""
        return _filter_windows(input_img, input_img, (sigma_x, sigma_y, sigma_z), color_sigma)


class TrainableJointBilateralFilterFunction(torch.autograd.Function):
    """The same along the edges of a guide; call `TrainableJointBilateralFilterFunction.apply`.

    >>> import torch
    >>> from permutohedral.compat.monai import TrainableJointBilateralFilterFunction
    >>> image, guide = torch.rand(2, 1, 1, 8, 8, 1)
    >>> TrainableJointBilateralFilterFunction.apply(image, guide, 1.0, 1.0, 0.01, 0.5).shape
    torch.Size([1, 1, 8, 8, 1])
    """

    @staticmethod
    def apply(
        input_img: Tensor, guidance_img: Tensor, sigma_x: Sigma, sigma_y: Sigma, sigma_z: Sigma, color_sigma: Sigma
    ) -> Tensor:
        """Filter `input_img` by `guidance_img`, both `[batch, 1, *space]`."""
        return _filter_windows(input_img, guidance_img, (sigma_x, sigma_y, sigma_z), color_sigma)


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
        axes = _read_image("input_tensor", image).dim() - 2
        if axes != self.len_spatial_sigma:
            raise InputError(f"input_tensor must have {self.len_spatial_sigma} axes of space, got {axes}")
        return _filter_windows(image, guide, (self.sigma_x, self.sigma_y, self.sigma_z), self.sigma_color)


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
        image = _read_image("input_tensor", input_tensor)
        # integers are divided by the standard deviation as they are
        is_integer = isinstance(reference_tensor, Tensor) and not reference_tensor.dtype.is_floating_point
        reference = _read_image("reference_tensor", reference_tensor.float() if is_integer else reference_tensor)
        if input_tensor.shape[:1] + input_tensor.shape[2:] != reference_tensor.shape[:1] + reference_tensor.shape[2:]:
            raise InputError(
                "input_tensor and reference_tensor must have the same batch and space, got the shapes "
                f"{tuple(input_tensor.shape)} and {tuple(reference_tensor.shape)}"
            )
        places = _coordinates(reference)
        bilateral = [places / self.bilateral_spatial_sigma, reference / self.bilateral_color_sigma]
        kernels: list[tuple[float, Lattice]] = [
            (self.bilateral_weight, _lattice(torch.cat(bilateral, dim=1))),
            (self.gaussian_weight, _lattice(places / self.gaussian_spatial_sigma)),
        ]
        logits = _to_rows(image)
        probabilities = logits.softmax(dim=-1)
        for _ in range(self.iterations):
            messages = sum(
                (weight * _filter_rows(probabilities, lattice) for weight, lattice in kernels),
                start=torch.zeros_like(logits),
            )
            if self.compatibility_matrix is not None:
                messages = messages @ self.compatibility_matrix.to(messages)
            probabilities = (logits + self.update_factor * messages).softmax(dim=-1)
        return _to_maps(probabilities, input_tensor)


def _read_image(name: str, image: Tensor) -> Tensor:
    """Check a tensor of the caller; return it, in float32 if it has 16 bits."""
    check_tensor(name, image)
    if not 3 <= image.dim() <= 2 + _MOST_AXES or image.dtype not in _DTYPES:
        raise InputError(
            f"{name} must be floating [batch, channels, *space] with 1 to 3 axes of space, got "
            f"{image.dtype} of shape {tuple(image.shape)}"
        )
    if 0 in image.shape:
        raise InputError(f"{name} must not be empty, got the shape {tuple(image.shape)}")
    return image.float() if image.dtype.itemsize == 2 else image


def _to_rows(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)


def _to_maps(rows: Tensor, like: Tensor) -> Tensor:
    return rows.transpose(1, 2).reshape(like.shape).to(like.dtype)


def _coordinates(image: Tensor) -> Tensor:
    """Return positions in pixels, `[batch, axes, *space]`."""
    places = positions(image.shape[2:], device=image.device, dtype=image.dtype)
    return places.T.reshape(1, -1, *image.shape[2:]).expand(len(image), *[-1] * (image.dim() - 1))


def _lattice(features: Tensor) -> Lattice:
    """Build the lattice in float64 from points embedded as in MONAI's C++, whose rounding decides on facets."""
    points, dimension = features.flatten(2).unbind(dim=1), features.shape[1]
    # MONAI computes its factors in float32, in this order
    one, spread = np.float32(1), np.float32(dimension + 1) * np.sqrt(np.float32(2 / 3))
    scales = [float(one / np.sqrt(np.float32(i * (i + 1))) * spread) for i in range(1, dimension + 1)]
    embedded = [-dimension * points[-1] * scales[-1]]
    for i in range(dimension - 1, 0, -1):
        embedded.append(embedded[-1] - i * points[i - 1] * scales[i - 1] + (i + 2) * points[i] * scales[i])
    embedded.append(embedded[-1] + 2 * points[0] * scales[0])
    # exact ties go to the earlier coordinate
    ties = _TIE * torch.arange(dimension + 1, device=features.device)
    rows = _widen(torch.stack(embedded[::-1], dim=-1)) - ties
    matrix = elevation_matrix(dimension, rows.dtype, rows.device)
    return build_lattice(rows @ matrix / matrix[:, 0].square().sum(), neighborhood_size=0, separable=True)


def _widen(rows: Tensor) -> Tensor:
    """Convert to float64, where the device has it."""
    return rows if rows.device.type == "mps" else rows.double()


def _filter_rows(rows: Tensor, lattice: Lattice) -> Tensor:
    return gaussian_filter(_widen(rows), lattice).to(rows.dtype)


def _half_window(sigma: float) -> int:
    """Return the reach of MONAI's windows, which have ceil(5 sigma) pixels, or one more."""
    return (math.ceil(5 * sigma) | 1) // 2


def _gaussian(sigma: Tensor, reach: int) -> Tensor:
    """Return the weights of the offsets -reach..reach."""
    return torch.exp(-(torch.arange(-reach, reach + 1, device=sigma.device) / sigma).square() / 2)


def _fold(weights: Tensor, extent: int) -> Tensor:
    """Sum the weights of all offsets that reach the border from anywhere in an axis, where the border is repeated."""
    reach = len(weights) // 2
    kept = min(reach, extent - 1)
    places = torch.arange(-reach, reach + 1, device=weights.device).clamp(-kept, kept) + kept
    return weights.new_zeros(2 * kept + 1).index_add(0, places, weights)


def _filter_windows(image: Tensor, guide: Tensor, sigmas: Sequence[Sigma], color_sigma: Sigma) -> Tensor:
    """Filter one channel over windows within the image."""
    pixels, edges = _read_image("input_tensor", image), _read_image("guidance_tensor", guide)
    if image.shape[1] != 1:
        raise InputError(f"input_tensor must have 1 channel, got {image.shape[1]}; use one layer for each channel")
    if image.shape != guide.shape:
        raise InputError(
            f"guidance_tensor must have the shape of input_tensor, got {tuple(guide.shape)} and {tuple(image.shape)}"
        )
    weights = []
    for extent, sigma in zip(image.shape[2:], sigmas, strict=False):
        deviation = torch.as_tensor(sigma).to(pixels)
        reach = min(max(_half_window(deviation.item()), _LEAST_REACH), extent - 1)
        weights.append(_gaussian(deviation, reach))
    filtered = _sum_windows(pixels, edges, weights, torch.as_tensor(color_sigma).to(pixels), "constant")
    return filtered.to(image.dtype)


def _sum_windows(image: Tensor, guide: Tensor, weights: Sequence[Tensor], color_sigma: Tensor, border: str) -> Tensor:
    """Return the bilateral filter over windows, with the weights of the offsets along each axis.

    Windows end at the border of the image, or repeat it ("replicate"). The last axes are summed in one step, as far as
    they fit. Steps are computed again in the backward pass, so they keep no memory.
    """
    windows, extents = [len(each) for each in weights], image.shape[2:]
    margins = [window // 2 for window in reversed(windows) for _ in range(2)]
    outer = len(windows) - 1
    while outer > 0 and guide.numel() * math.prod(windows[outer - 1 :]) <= _STEP_NUMBERS:
        outer -= 1
    inner = tuple(range(outer - len(windows), 0))
    tensors = [pad(image, margins, mode=border), pad(guide, margins, mode=border)]
    if border == "constant":
        tensors.append(pad(image.new_ones(1, 1, *extents), margins))
    center = guide.reshape(*guide.shape, *[1] * len(inner))
    spatial = weights[outer]
    for each in weights[outer + 1 :]:
        spatial = spatial[..., None] * each

    def look(maps: Tensor, starts: tuple[int, ...]) -> Tensor:
        """Move the outer axes to a place in their windows, and append the windows of the inner axes."""
        for axis, start in enumerate(starts):
            maps = maps.narrow(2 + axis, start, extents[axis])
        for axis in range(outer, len(windows)):
            maps = maps.unfold(2 + axis, windows[axis], 1)
        return maps

    def step(starts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        values, neighbors, *inside = (look(maps, starts) for maps in tensors)
        weight = torch.exp(-((neighbors - center) / color_sigma).square().sum(dim=1, keepdim=True) / 2) * spatial
        for start, each in zip(starts, weights, strict=False):
            weight = weight * each[start]
        weight = weight * inside[0] if inside else weight
        return (weight * values).sum(dim=inner), weight.sum(dim=inner)

    values, mass = torch.zeros_like(image), image.new_zeros(())
    for starts in itertools.product(*map(range, windows[:outer])):
        part, weight = checkpoint(step, starts, use_reentrant=False)
        values, mass = values + part, mass + weight
    return values / mass
