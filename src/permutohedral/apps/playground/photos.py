"""Photos of the user, and layers: images as bitmaps, which are fast to write and to draw."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

from permutohedral.apps.io.image import ImageData, encode_image, read_image
from permutohedral.errors import DataError, InputError

# a browser holds before and after at 4 bytes per pixel
MAX_PIXELS = 24_000_000
# size of a preview
PREVIEW_PIXELS = 1 << 16


@dataclass(frozen=True)
class Layer:
    """The BMP file of an image that covers a part of the photo.

    `region` has left, top, width and height in pixels of the photo.
    """

    content: bytes
    region: tuple[float, float, float, float]


def make_layer(
    pixels: Tensor, alpha: Tensor | None = None, factor: float = 1, corner: tuple[int, int] = (0, 0)
) -> Layer:
    """Make a layer of an image `[1 or 3, height, width]` on white.

    `factor` is the extent of a pixel, and `corner` x and y of the first one, in pixels of the photo.

    >>> make_layer(torch.full((3, 2, 5), 0.5), factor=4).region
    (0, 0, 20, 8)
    """
    shown = blend_with_white(pixels.detach(), alpha)
    channels, height, width = shown.shape
    # rounded as in files
    values = shown.clamp(0, 1).mul_(255).round_().byte().movedim(0, -1).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(values[..., 0] if channels == 1 else values).save(file, "BMP")
    return Layer(file.getvalue(), (*corner, width * factor, height * factor))


def blend_with_white(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """Return `pixels [channels, height, width]` on a white page; None for `alpha` means opaque."""
    return pixels if alpha is None else 1 + alpha * (pixels - 1)


@dataclass(frozen=True)
class Photo:
    """A photo with the user's name of the file, its layer, and a small copy for previews.

    `small [channels, height, width]` has means over squares of `factor` pixels, weighted by alpha.
    """

    path: Path
    name: str
    image: ImageData
    small: Tensor
    small_alpha: Tensor | None
    factor: int
    layer: Layer

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.image.pixels.shape[1:]
        return height, width


def read_photo(path: Path, name: str) -> Photo:
    """Read a photo; messages call it `name`."""
    with user_name(path, name):
        image = read_image(path, MAX_PIXELS)
    pixels, alpha = image.pixels.contiguous(), image.alpha
    factor = 1
    while pixels.shape[1] * pixels.shape[2] > PREVIEW_PIXELS * factor * factor:
        factor += 1
    if alpha is None or bool((alpha == 1).all()):
        return Photo(path, name, image, shrink(pixels, factor), None, factor, make_layer(pixels))
    small_alpha = shrink(alpha, factor)
    small = shrink(pixels * alpha, factor) / small_alpha.clamp_min(torch.finfo(pixels.dtype).tiny)
    return Photo(path, name, image, small, small_alpha, factor, make_layer(pixels, alpha))


@contextmanager
def user_name(path: Path, name: str) -> Iterator[None]:
    """Replace the path of an upload in messages by the user's name of it."""
    try:
        yield
    except (DataError, InputError) as error:
        raise type(error)(error.message.replace(str(path), name)) from error


def shrink(pixels: Tensor, factor: int) -> Tensor:
    """Return means over squares of `factor` pixels, which are smaller at the border."""
    return avg_pool2d(pixels[None], factor, ceil_mode=True, count_include_pad=False)[0] if factor > 1 else pixels


def encode_png(image: ImageData) -> bytes:
    """Return the PNG file of an image, the same as the functions of `permutohedral.apps` write."""
    return encode_image(image, Path("image.png"))
