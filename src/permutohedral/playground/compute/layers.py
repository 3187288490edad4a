"""Pictures as the page draws them: planes of bytes, which need no encoder and show each value as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from permutohedral.pictures.files import Picture, encode_picture

# left, top, width and height in pixels of the photo
Region = tuple[float, float, float, float]


@dataclass(frozen=True)
class Layer:
    """What is drawn over a part of the photo.

    Attributes:
        planes: uint8, one gray plane after which nothing comes, or red, green and blue.
        channels: 1 or 3.
        height: of a plane.
        width: of a plane.
        region: that it covers.
    """

    planes: bytes
    channels: int
    height: int
    width: int
    region: Region


def make_layer(pixels: Tensor, factor: int = 1, corner: tuple[int, int] = (0, 0)) -> Layer:
    """From `[1 or 3, height, width]`, each pixel as large as `factor` of the photo, its first at `corner` (x, y).

    >>> import torch
    >>> make_layer(torch.full((3, 2, 5), 0.5)).planes[:4]
    b'\\x80\\x80\\x80\\x80'
    """
    channels, height, width = pixels.shape
    # rounded as in files
    numbers = pixels.detach().clamp(0, 1).mul_(255).round_().byte()
    region = (corner[0], corner[1], width * factor, height * factor)
    return Layer(numbers.contiguous().numpy().tobytes(), channels, height, width, region)


def on_white(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """`[channels, height, width]` as it is seen on a white page; `alpha [1, height, width]` is None if it is opaque.

    >>> import torch
    >>> on_white(torch.zeros(1, 1, 3), torch.tensor([[[0.0, 0.5, 1.0]]]))
    tensor([[[1.0000, 0.5000, 0.0000]]])
    """
    return pixels if alpha is None else 1 + alpha * (pixels - 1)


def encode_png(picture: Picture) -> bytes:
    """The file that `write_picture` makes of it."""
    return encode_picture(picture, Path("picture.png"))[0]
