"""Features of images: positions and colors of pixels, in units of standard deviations.

A feature is a point of R^d. One unit of every feature is one standard deviation of the Gaussian, so each
function here divides by a `sigma`. Pixels come in scan order, the last axis of the image fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.pictures import divide_channels, place_samples
from permutohedral.ops.tracing import is_traced

__all__ = ["bilateral", "colors", "join", "opponent_colors", "positions"]

Sigma = float | Sequence[float] | np.ndarray | Tensor
# the values that count as 0 and 1
ValueRange = tuple[float, float]

# integers whose largest number counts as 1, as in skimage.img_as_float
_LARGEST = {"uint8": 255, "uint16": 65535, "int16": 32767}

# added to the features of images: without it, black pixels and positions at whole ratios lie on facets of the lattice,
# where rounding decides which simplex a pixel is in, and backends differ
FEATURE_SHIFT = 0.2360679775


def positions(
    space: Sequence[int],
    sigma: Sigma = 1.0,
    *,
    origin: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the positions of the samples of a signal, image or volume, in the order of its axes.

    Args:
        space: extents of the grid, such as (depth, height, width).
        sigma: samples per feature unit; one number, or one for each axis. A tensor may require gradients.
        origin: position of the first sample, for a part of a larger grid; default: zeros.
        device: where the features live; torch's default if None.
        dtype: floating dtype of the features; torch's default if None.

    Returns:
        `[samples, axes]`, the last axis fastest.

    >>> import permutohedral as ph
    >>> ph.features.positions((1, 2, 2), sigma=2.0).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise InputError(f"dtype must be floating, such as torch.float32, got {dtype}")
    if not isinstance(space, Sequence) or not len(space):
        raise InputError(f"space must be the extents of the axes, such as (height, width), got {space!r}")
    for extent in space:
        check_count("an extent of space", extent)
    first = _first_sample(origin, len(space))
    units = _units(sigma, len(space), "sigma", dtype)
    return torch.cat(place_samples(space, units, first, device, dtype), dim=-1).flatten(0, -2)


def colors(image: Tensor, sigma: Sigma = 1.0) -> Tensor:
    """Return the colors, or any other channels, of the pixels of one image or a batch of images.

    Args:
        image: `[..., channels, height, width]`.
        sigma: image values per feature unit, for integers as in `bilateral_filter`; one number, or one for each
            channel. A tensor may require gradients.

    Returns:
        `[..., height * width, channels]`; gradients flow back to the image.

    >>> import torch, permutohedral as ph
    >>> image = torch.arange(12.0).reshape(3, 2, 2)
    >>> ph.features.colors(image, sigma=2.0)[1].tolist()
    [0.5, 2.5, 4.5]
    """
    image = unit_values("image", image)
    check_image(image)
    return in_units_of(image.flatten(-2).transpose(-1, -2), sigma)


def opponent_colors(image: Tensor) -> Tensor:
    """Rotate RGB to gray, red minus blue, and green minus both; distances are kept.

    Brightness changes with light and shade, so colors separate objects more reliably. A guide of opponent colors with
    `sigma_color=(0.2, 0.05, 0.05)` separates them better, on a smaller lattice, than RGB with 0.1.

    Args:
        image: float `[..., 3, *space]`, with two axes of space.

    Returns:
        The same shape: the orthonormal axes (1, 1, 1), (1, 0, -1) and (1, -2, 1).

    >>> import torch, permutohedral as ph
    >>> ph.features.opponent_colors(torch.ones(3, 1, 1)).square().flatten().round().tolist()
    [3.0, 0.0, 0.0]
    """
    check_tensor("image", image)
    if image.dim() < 3 or image.shape[-3] != 3 or not image.is_floating_point():
        raise InputError(
            f"image must be floating [..., 3, height, width], got {image.dtype} of shape {tuple(image.shape)}"
        )
    # 16 bits are rounded once
    red, green, blue = image.to(accumulation_dtype(image.dtype)).unbind(dim=-3)
    gray = (red + green + blue) / 3**0.5
    axes = torch.stack([gray, (red - blue) / 2**0.5, (red - 2 * green + blue) / 6**0.5], dim=-3)
    return axes.to(image.dtype)


def join(*features: Tensor) -> Tensor:
    """Concatenate features of the same points.

    Args:
        *features: `[..., points, dimension]` each, with the same number of points, dtype and device. Their
            batch axes broadcast, so positions `[points, 2]` join the colors `[batch, points, 3]` of a batch.

    Returns:
        `[..., points, sum of the dimensions]`.

    >>> import torch, permutohedral as ph
    >>> colors = ph.features.colors(torch.rand(8, 3, 4, 5), sigma=0.1)
    >>> ph.features.join(ph.features.positions((4, 5), sigma=2.0), colors).shape
    torch.Size([8, 20, 5])
    """
    if not features:
        raise InputError("join needs at least one tensor [..., points, dimension]")
    first = features[0]
    for part in features:
        check_tensor("features", part)
        if part.dim() < 2:
            raise InputError(f"features must be [..., points, dimension], got the shape {tuple(part.shape)}")
        if part.shape[-2] != first.shape[-2]:
            raise InputError(f"features of different numbers of points, {first.shape[-2]} and {part.shape[-2]}")
        if part.dtype != first.dtype or part.device != first.device:
            raise InputError(
                f"features must share dtype and device, got {first.dtype} on {first.device} and {part.dtype} on "
                f"{part.device}; convert one of them with .to()"
            )
    try:
        # torch.broadcast_shapes imports sympy, which takes about a second
        batch_shape = torch.broadcast_tensors(*(part[..., :0, :0] for part in features))[0].shape[:-2]
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(part.shape)) for part in features)
        raise InputError(f"the batch axes of the features do not broadcast: {shapes}") from error
    return torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in features], dim=-1)


def bilateral(
    guide: Tensor,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    spatial_dims: int = 2,
    origin: Sequence[int] | None = None,
    value_range: ValueRange | None = None,
) -> Tensor:
    """Return position and color of every pixel or voxel, in standard deviations.

    Args:
        guide: `[..., channels, *space]`.
        sigma_space: standard deviation over positions, in pixels; one number, or one for each axis.
        sigma_color: standard deviation over colors, in units of the guide's values, for integers as in
            `bilateral_filter`; one, or one for each channel.
        spatial_dims: how many axes follow the channels: 1 for signals, 2 for pictures, 3 for volumes.
        origin: position of the first pixel, for a part of a larger picture; default: zeros.
        value_range: the values that count as 0 and 1, see `bilateral_filter`.

    Returns:
        float32 or float64 `[..., points, spatial_dims + channels]`: positions in the order of the axes, (y, x) for
        pictures, then the channels, plus a constant. Without it, black pixels and positions at whole ratios lie on
        facets of the lattice. To filter between these pixels and other points, `join` `positions` and `colors` instead.

    >>> import torch, permutohedral as ph
    >>> ph.features.bilateral(torch.rand(3, 4, 5), sigma_space=2.0, sigma_color=0.1).shape
    torch.Size([20, 5])
    >>> ph.features.bilateral(torch.rand(1, 2, 4, 5), sigma_space=2.0, sigma_color=0.1, spatial_dims=3).shape
    torch.Size([40, 4])
    """
    guide = unit_values("guide", guide, value_range)
    check_image(guide, spatial_dims, "guide")
    check_channels_first(guide, spatial_dims, "guide")
    first = _first_sample(origin, spatial_dims)
    dtype, channels = accumulation_dtype(guide.dtype), guide.shape[-spatial_dims - 1]
    units = _units(sigma_space, spatial_dims, "sigma_space", dtype)
    color_units = _channel_units(sigma_color, channels, "sigma_color", dtype)
    learned = [each for each in (sigma_space, sigma_color) if isinstance(each, Tensor)]
    return bind(guide, *learned).picture_features(guide, units, color_units, first, FEATURE_SHIFT)


def _first_sample(origin: Sequence[int] | None, axes: int) -> Sequence[int]:
    """Return the position of the first sample, a number for each axis."""
    if origin is None:
        return (0,) * axes
    if len(origin) != axes:
        raise InputError(f"origin must have a number for each of {axes} axes, got {len(origin)}")
    try:
        return tuple(map(index, origin))
    except TypeError as error:
        raise InputError(f"origin must be whole numbers of samples, got {origin!r}") from error


def _units(sigma: Sigma, axes: int, name: str, dtype: torch.dtype) -> Sequence[float | Tensor]:
    """Return `sigma` of each axis; those of a tensor keep their derivatives."""
    if not isinstance(sigma, Tensor):
        return numbers_of(sigma, axes, name)
    units = _positive_tensor(sigma, axes, name).to(dtype)
    # torch.compile sums the gradients of expand() and unbind() wrongly
    return [units.reshape(())] * axes if units.numel() == 1 else units.unbind()


def range_of(
    name: str, dtype: object, value_range: ValueRange | None = None, *, is_guide: bool = True
) -> ValueRange | None:
    """Return the values of a dtype of torch or NumPy that count as 0 and 1; None for floats as they are.

    Integers without a rule need a range in a guide, whose units are those of `sigma_color`; else they stay.

    >>> range_of("image", torch.uint16), range_of("image", np.dtype("float32")), range_of("image", "int32", (0, 4095))
    ((0.0, 65535.0), None, (0.0, 4095.0))

    Raises:
        InputError: integers of a dtype without a rule, and no range.
    """
    if value_range is not None:
        pair = read_numbers(value_range, "value_range", 2)
        if len(pair) != 2 or not -math.inf < pair[0] < pair[1] < math.inf:
            raise InputError(f"value_range must be (low, high), two finite numbers, got {value_range!r}")
        return pair[0], pair[1]
    # NumPy's string has the byte order
    kind = getattr(dtype, "name", str(dtype)).removeprefix("torch.")
    if "int" not in kind:
        return None
    if kind not in _LARGEST and not is_guide:
        return 0.0, 1.0
    if kind not in _LARGEST:
        raise InputError(
            f"{name} of {kind} has no rule for sigma_color: pass value_range=(low, high) where the function has it, or "
            f"floats, such as ({name} - low) / (high - low)"
        )
    return 0.0, float(_LARGEST[kind])


def unit_values(
    name: str,
    image: Tensor,
    value_range: ValueRange | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    is_guide: bool = True,
) -> Tensor:
    """Return an image whose values are in units of `range_of`, in `dtype` if they are integers.

    >>> unit_values("image", torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    [0.0, 1.0]
    """
    if not isinstance(image, Tensor) or (value_range is None and image.is_floating_point()):
        return image
    scale = range_of(name, image.dtype, value_range, is_guide=is_guide)
    if scale is None or image.dtype == torch.bool:
        return image
    low, high = scale
    if not image.is_floating_point():
        # integers of 32 bits are exact in float64
        image = image.to(dtype if image.dtype.itemsize <= 2 else torch.float64)
        return ((image - low) / (high - low) if low else image / high).to(dtype)
    return (image - low) / (high - low)


def check_image(image: Tensor, spatial_dims: int = 2, name: str = "image") -> None:
    """Raise unless `image` is floating and `[..., channels, *space]`, with `spatial_dims` axes of space.

    >>> check_image(torch.rand(3, 480, 640))
    """
    check_tensor(name, image)
    check_count("spatial_dims", spatial_dims, least=1)
    if image.dim() <= spatial_dims:
        raise InputError(
            f"{name} must be [..., channels, {space_in_words(spatial_dims)}], got the shape {tuple(image.shape)}; "
            f"give a gray image one channel with {name}[None]"
        )
    if not image.dtype.is_floating_point:
        scale = "" if image.dtype == torch.bool else " / 255"
        raise InputError(
            f"{name} must be floating, got {image.dtype}; convert it, for instance with {name}.float(){scale}, "
            "and state sigma in the same units"
        )


def check_channels_first(image: Tensor, spatial_dims: int = 2, name: str = "image") -> None:
    """Raise for an image `[height, width, channels]`, whose rows would be taken for channels.

    >>> check_channels_first(torch.rand(3, 480, 640))
    """
    many, few = 32, 4
    channels = -spatial_dims - 1
    if spatial_dims > 1 and image.dim() > spatial_dims and image.shape[channels] > many and image.shape[-1] <= few:
        space = space_in_words(spatial_dims)
        raise InputError(
            f"{name} must be [..., channels, {space}], got {tuple(image.shape)}, which looks like [{space}, "
            f"channels]; bring the channels forward with {name}.movedim(-1, {channels}), or pass channels_last=True to "
            "a function of images"
        )


def check_guide(guide: Tensor, image: Tensor, spatial_dims: int = 2) -> None:
    """Raise unless `guide` belongs to `image`, both `[..., channels, *space]`.

    >>> check_guide(torch.rand(1, 480, 640), torch.rand(2, 3, 480, 640))
    """
    check_image(guide, spatial_dims, "guide")
    if guide.shape[-spatial_dims:] != image.shape[-spatial_dims:]:
        raise InputError(
            f"guide and image must have one {space_in_words(spatial_dims, ' and ')}, got {tuple(guide.shape)} "
            f"and {tuple(image.shape)}; in both the channels are first, or last with channels_last=True"
        )
    items = guide.shape[: -spatial_dims - 1]
    if items and items != image.shape[: -spatial_dims - 1]:
        raise InputError(
            f"guide must have the batch axes of the image, or none, got {tuple(items)} and "
            f"{tuple(image.shape[: -spatial_dims - 1])}"
        )
    if guide.device != image.device or accumulation_dtype(guide.dtype) != accumulation_dtype(image.dtype):
        raise InputError(
            f"guide is {guide.dtype} on {guide.device}, but the image {image.dtype} on {image.device}; convert one, "
            "for instance with guide.to(image)"
        )


def space_in_words(axes: int, last: str = ", ") -> str:
    """Return the names of the axes of space, with `last` before the last one.

    >>> space_in_words(3, " and ")
    'depth, height and width'
    """
    if axes not in (2, 3):
        return "length" if axes == 1 else "*space"
    return ("depth, " if axes == 3 else "") + f"height{last}width"


def in_units_of(features: Tensor, sigma: Sigma, name: str = "sigma") -> Tensor:
    """Divide `features [..., dimension]` by `sigma`, which is one number or `[dimension]`.

    >>> in_units_of(torch.tensor([[2.0, 3.0]]), (2.0, 1.0)).tolist()
    [[1.0, 3.0]]
    """
    return divide_channels(features, _channel_units(sigma, features.shape[-1], name, features.dtype))


def _channel_units(sigma: Sigma, channels: int, name: str, dtype: torch.dtype) -> Sequence[float] | Tensor:
    """Return `sigma` of each channel as numbers, or a tensor with its derivatives."""
    if isinstance(sigma, Tensor):
        return _positive_tensor(sigma, channels, name).to(dtype)
    return numbers_of(sigma, channels, name)


def numbers_of(sigma: Sigma, dimension: int, name: str = "sigma") -> list[float]:
    """Return `sigma` as a positive number for each of `dimension` axes; a tensor is read.

    >>> numbers_of(2.0, 3)
    [2.0, 2.0, 2.0]
    """
    numbers = positive_numbers(sigma, name, dimension)
    return numbers * dimension if len(numbers) == 1 else numbers


def positive_numbers(sigma: Sigma, name: str = "sigma", count: int | None = None) -> list[float]:
    """Return the positive numbers that were given: one, or `count` of them; None for any number of them.

    >>> positive_numbers((1, 2.5))
    [1.0, 2.5]
    """
    numbers = read_numbers(sigma, name, count)
    # not math.isfinite, which torch.compile does not trace for a dynamic number
    if not all(0 < number < math.inf for number in numbers):
        raise InputError(f"{name} must be positive and finite, got {sigma}")
    return numbers


def read_numbers(given: Sigma, name: str, count: int | None = None) -> list[float]:
    """Return the numbers that were given: one, or `count` of them; None for any number of them.

    >>> read_numbers((-1, 2.5), "weights")
    [-1.0, 2.5]
    """
    several: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    # torch.compile does not trace NumPy's conversion
    if all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in several):
        numbers = [float(number) for number in several]
    else:
        try:
            array = np.asarray(given.tolist() if isinstance(given, Tensor) else given)
            # NumPy also reads texts and truth values, and drops imaginary parts
            if array.ndim > 1 or array.dtype.kind in "USbc":
                raise ValueError("no number")
            numbers = [float(number) for number in array.astype(np.float64).reshape(-1)]
        except (TypeError, ValueError) as error:
            raise _count_error(given, name, count) from error
    if not numbers or (count is not None and len(numbers) not in (1, count)):
        raise _count_error(given, name, count)
    return numbers


def _positive_tensor(sigma: Tensor, count: int, name: str) -> Tensor:
    """Return the tensor of one number or `count` of them, which are positive and finite."""
    if sigma.dim() > 1 or sigma.numel() not in (1, count):
        raise _count_error(sigma, name, count)
    fits = (sigma > 0) & (sigma < torch.inf)
    if is_traced() or sigma.device.type != "cpu":
        # it stays unread: a learned sigma must not stop compilation or wait for a GPU; no lattice takes NaN
        return torch.where(fits, sigma, torch.nan)
    if not bool(fits.all()):
        raise InputError(f"{name} must be positive and finite, got {sigma.tolist()}")
    return sigma


def _count_error(given: Sigma, name: str, count: int | None) -> InputError:
    each = "" if count == 1 else " or one for each dimension" if count is None else f" or one for each of {count}"
    found = f"the shape {tuple(given.shape)}" if isinstance(given, (Tensor, np.ndarray)) else repr(given)
    return InputError(f"{name} must be one number{each}, got {found}")
