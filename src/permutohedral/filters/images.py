"""Images as users have them: tensors or NumPy arrays, channels first or last, floats or integers."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, ValueRange, range_of, unit_values
from permutohedral.filters.units import warn_of_four_channels, warn_of_large_sigma, warn_of_units
from permutohedral.lattice.tensors import check_tensor
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import requires_gradient

# all data of a call are tensors, or all are arrays
Data = TypeVar("Data", Tensor, NDArray[Any])
_INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)


def to_tensor(data: Tensor | NDArray[Any]) -> Tensor:
    """Convert an array to a tensor on the CPU, which shares its memory if possible.

    Raises:
        InputError: the array is masked, or torch does not support its dtype.
    """
    if not isinstance(data, np.ndarray):
        return data
    if np.ma.is_masked(data):
        raise InputError("masked arrays are not supported; pass array.data, and sample_weight from ~array.mask")
    # torch supports neither negative strides nor foreign byte order, and warns about read-only memory
    plain = data.astype(data.dtype.newbyteorder("="), order="C", copy=not data.flags.writeable)
    try:
        return torch.from_numpy(plain)
    except TypeError as error:
        raise InputError(f"torch does not support arrays of {data.dtype}; convert the array to float32") from error


def optional_tensor(data: Tensor | NDArray[Any] | None) -> Tensor | None:
    """Convert an optional array to a tensor; see `to_tensor`."""
    return None if data is None else to_tensor(data)


def as_given(result: Tensor, data: Data) -> Data:
    """Convert the result to an array, without derivatives, if `data` is one.

    >>> as_given(torch.zeros(2), np.zeros(3))
    array([0., 0.], dtype=float32)
    """
    if isinstance(data, np.ndarray):
        return result.detach().numpy()
    return result


@dataclass(frozen=True)
class ImageFormat:
    """How images of a call are passed, and how its result is returned.

    Attributes:
        spatial_dims: number of axes of space.
        channels_last: the channels are the last axis, not the axis before space.
        value_range: the values that count as 0 and 1 in the guide, or in an image without one; see `range_of`.

    >>> photo = np.full((4, 5, 3), 255, np.uint8)
    >>> layout = ImageFormat(2, channels_last=True)
    >>> image = layout.read("image", photo)
    >>> image.shape, float(image.max())
    (torch.Size([3, 4, 5]), 1.0)
    >>> layout.write(image, photo).dtype
    dtype('uint8')
    """

    spatial_dims: int = 2
    channels_last: bool = False
    value_range: ValueRange | None = None

    def read(
        self,
        name: str,
        data: Tensor | NDArray[Any],
        dtype: torch.dtype = torch.float32,
        *,
        is_guide: bool = False,
    ) -> Tensor:
        """Return an image as a floating tensor `[..., channels, *space]`; integers are scaled, in `dtype`."""
        if not isinstance(data, (Tensor, np.ndarray)):
            advice = "pass a Pillow image as numpy.asarray(image) with channels_last=True"
            if isinstance(data, (str, PathLike)):
                advice = "permutohedral.apps has functions for files"
            elif type(data).__module__.partition(".")[0] in ("dask", "xarray", "zarr"):
                advice = "permutohedral.dask has functions for Dask arrays, permutohedral.apps for Zarr"
            raise InputError(f"{name} must be a torch.Tensor or a NumPy array, got {type(data).__name__}; {advice}")
        scale = self.value_range if is_guide else None
        image = unit_values(name, to_tensor(data), scale, dtype, is_guide=is_guide)
        check_tensor(name, image)
        if not self.channels_last:
            return image
        if image.dim() <= self.spatial_dims:
            palette = "; a palette image has indices: pass image.convert('RGB')" if data.dtype == np.uint8 else ""
            raise InputError(
                f"{name} has no axis of channels, got {tuple(data.shape)}; add one with {name}[..., None]{palette}"
            )
        return image.movedim(-1, -self.spatial_dims - 1)

    def read_both(
        self, image: Tensor | NDArray[Any], guide: Tensor | NDArray[Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return an image and its guide; one of integers gets the dtype of the other."""
        if guide is None:
            return self.read("image", image, is_guide=True), None
        if is_integer(image):
            edges = self.read("guide", guide, is_guide=True)
            return self.read("image", image, accumulation_dtype(edges.dtype)), edges
        pixels = self.read("image", image)
        return pixels, self.read("guide", guide, accumulation_dtype(pixels.dtype), is_guide=True)

    def write(self, result: Tensor, data: Data, *, is_guide: bool = False) -> Data:
        """Return a result as `data` was passed: array or tensor, place of the channels, dtype and values."""
        dtype = data.dtype if isinstance(data, Tensor) else to_tensor(np.empty(0, data.dtype)).dtype
        scale = range_of("image", dtype, self.value_range if is_guide else None, is_guide=is_guide)
        if scale is not None:
            result = result * (scale[1] - scale[0]) + scale[0]
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            result = result.round().clamp(limits.min, limits.max).to(dtype)
        if self.channels_last:
            result = result.movedim(-self.spatial_dims - 1, -1)
        return as_given(result, data)

    def warn(
        self,
        image: Tensor | NDArray[Any],
        guide: Tensor | NDArray[Any] | None,
        pixels: Tensor,
        edges: Tensor | None,
        filtered: Tensor,
        sigma_color: Sigma,
    ) -> None:
        """Warn about a guide of alpha or CMYK, and about a `sigma_color` that does not fit its values."""
        name, given, read = ("image", image, pixels) if edges is None else ("guide", guide, edges)
        warn_of_four_channels(name, read.shape[-self.spatial_dims - 1], is_integer(given))
        if is_integer(given) or self.value_range is not None:
            warn_of_large_sigma(sigma_color)
        if not requires_gradient(filtered) and not filtered.is_meta:
            warn_of_units(read, sigma_color, self.spatial_dims, (pixels, filtered))


def is_integer(data: object) -> bool:
    """Return whether data are a tensor or an array of integers."""
    dtype = getattr(data, "dtype", None)
    return np.issubdtype(dtype, np.integer) if isinstance(data, np.ndarray) else dtype in _INTEGERS
