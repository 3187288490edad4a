"""Pictures that users give to the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from permutohedral.errors import InputError
from permutohedral.pictures.files import Picture, read_picture
from permutohedral.pictures.transparency import hide_colors
from permutohedral.playground.compute.layers import Layer, make_layer, on_white

# a browser holds before and after at 4 bytes a pixel
MOST_PIXELS = 24_000_000
# of a preview: the filter takes some 20 ms for them
PREVIEW_PIXELS = 1 << 16


@dataclass(frozen=True)
class Photo:
    """A picture, and a small one of it for previews.

    Attributes:
        picture: as it was read.
        name: in the code that the page shows.
        visible: `[channels, height, width]`, its pixels, black where nobody sees them.
        small: `[channels, height, width]`, means of squares of `factor` pixels, as far as these are seen.
        small_alpha: `[1, height, width]`, how much is seen of them; None if the picture is opaque.
        factor: 1 if the picture itself is small.
        layer: the picture for the page.
    """

    picture: Picture
    name: str
    visible: Tensor
    small: Tensor
    small_alpha: Tensor | None
    factor: int
    layer: Layer

    @property
    def pixels(self) -> Tensor:
        """`[channels, height, width]`, white being 1."""
        return self.picture.pixels

    @property
    def num_pixels(self) -> int:
        """Height times width."""
        return self.pixels.shape[1] * self.pixels.shape[2]

    @property
    def is_transparent(self) -> bool:
        """Whether some of it is not seen."""
        return self.small_alpha is not None


def read_photo(path: Path, name: str) -> Photo:
    """Read a picture, and call it `name` in messages and code.

    Raises:
        InputError: it is no picture, too large, or damaged.
    """
    try:
        picture = read_picture(path, MOST_PIXELS)
    except InputError as error:
        raise InputError(error.message.replace(str(path), name)) from error
    return make_photo(picture, name)


def make_photo(picture: Picture, name: str) -> Photo:
    """With the small one."""
    pixels, alpha = picture.pixels.contiguous(), picture.alpha
    factor = 1
    while pixels.shape[1] * pixels.shape[2] > PREVIEW_PIXELS * factor * factor:
        factor += 1
    picture = picture.with_pixels(pixels)
    if alpha is None or bool((alpha == 1).all()):
        return Photo(picture, name, pixels, shrink(pixels, factor), None, factor, make_layer(pixels))
    visible = hide_colors(pixels, alpha)
    mass = shrink(alpha, factor)
    small = shrink(visible * alpha, factor) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return Photo(picture, name, visible, small, mass, factor, make_layer(on_white(pixels, alpha)))


def shrink(pixels: Tensor, factor: int) -> Tensor:
    """Means of squares of `factor` pixels, of what there is of them at the border.

    >>> import torch
    >>> shrink(torch.rand(3, 5, 7), 2).shape
    torch.Size([3, 3, 4])
    """
    return avg_pool2d(pixels[None], factor, ceil_mode=True, count_include_pad=False)[0] if factor > 1 else pixels
