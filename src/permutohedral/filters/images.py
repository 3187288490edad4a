"""Images as users have them: tensors or NumPy arrays, channels first or last, floating or uint8."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_tensor
from permutohedral.ops.contract import accumulation_dtype

# all data of a call are tensors, or all are arrays
Data = TypeVar("Data", Tensor, NDArray[Any])
_WHITE = 255


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


def is_uint8(data: object) -> bool:
    """Return whether data are a tensor or an array of uint8, whose white is 255."""
    return getattr(data, "dtype", None) in (torch.uint8, np.uint8)


@dataclass(frozen=True)
class ImageFormat:
    """How images of a call are passed, and how its result is returned.

    Attributes:
        spatial_dims: number of axes of space.
        channels_last: the channels are the last axis, not the axis before space.

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

    def read(self, name: str, data: Tensor | NDArray[Any], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return an image as a tensor `[..., channels, *space]`; uint8 is scaled to [0, 1] in `dtype`."""
        if not isinstance(data, (Tensor, np.ndarray)):
            advice = "pass a Pillow image as numpy.asarray(image) with channels_last=True"
            if isinstance(data, (str, PathLike)):
                advice = "permutohedral.apps has functions for files"
            elif type(data).__module__.partition(".")[0] in ("dask", "xarray", "zarr"):
                advice = "permutohedral.dask has functions for Dask arrays, permutohedral.apps for Zarr"
            raise InputError(f"{name} must be a torch.Tensor or a NumPy array, got {type(data).__name__}; {advice}")
        image = to_tensor(data)
        if image.dtype == torch.uint8:
            image = image.to(dtype) / _WHITE
        if not image.is_floating_point():
            advice = f"convert it with {name}." + ("float()" if data is image else "astype(numpy.float32)")
            if name in ("image", "guide") and image.dtype != torch.bool:
                advice = "divide it by its largest value, such as 65535, and state sigma_color in the same units"
            raise InputError(f"{name} must be floating or uint8, got {data.dtype}; {advice}")
        check_tensor(name, image)
        if not self.channels_last:
            return image
        if image.dim() <= self.spatial_dims:
            raise InputError(f"{name} has no axis of channels, got {tuple(data.shape)}; add one with {name}[..., None]")
        return image.movedim(-1, -self.spatial_dims - 1)

    def read_both(
        self, image: Tensor | NDArray[Any], guide: Tensor | NDArray[Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return an image and its guide; one of uint8 gets the dtype of the other."""
        if guide is None:
            return self.read("image", image), None
        if is_uint8(image):
            edges = self.read("guide", guide)
            return self.read("image", image, accumulation_dtype(edges.dtype)), edges
        pixels = self.read("image", image)
        return pixels, self.read("guide", guide, accumulation_dtype(pixels.dtype))

    def write(self, result: Tensor, data: Data) -> Data:
        """Return a result as `data` was passed: array or tensor, place of the channels, floating or uint8."""
        if is_uint8(data):
            result = (result * _WHITE).round().clamp(0, _WHITE).to(torch.uint8)
        if self.channels_last:
            result = result.movedim(-self.spatial_dims - 1, -1)
        return as_given(result, data)
