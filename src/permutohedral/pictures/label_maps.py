"""Label maps: pictures in which each color is a label."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.pictures.encoding import format_of
from permutohedral.pictures.files import STREAM, Picture, read_picture

# a map with more colors was blurred, or is a photograph
MOST_LABELS = 256
UNKNOWN = -1

# formats that keep every color as it is
_EXACT_FORMATS = ("BMP", "PNG", "PPM", "TGA", "TIFF", "WEBP")


@dataclass(frozen=True)
class LabelMap:
    """Labels of pixels.

    Attributes:
        labels: int64 `[height, width]`, numbers of colors, or `UNKNOWN`.
        colors: float32 `[labels, 3]` between 0 and 1.
        levels: the integer that 1.0 stands for in files: 255 or 65535.
    """

    labels: Tensor
    colors: Tensor
    levels: int = 255

    def paint(self) -> Picture:
        """The picture of the map; black where a pixel is unknown."""
        painted = torch.cat([self.colors, torch.zeros(1, 3)])[self.labels]
        return Picture(painted.permute(2, 0, 1).contiguous(), levels=self.levels, format="PNG")


def read_label_map(path: Path, black_is_a_label: bool) -> LabelMap:
    """Read a picture whose colors are labels, in the order of their numbers; transparent pixels are unknown.

    Args:
        path: of the picture.
        black_is_a_label: else black pixels are unknown, too.

    Raises:
        InputError: it has fewer than two colors, or so many that it cannot be a label map.
    """
    picture = read_picture(path)
    levels = (picture.pixels * picture.levels).round().long()
    red, green, blue = levels if len(levels) == 3 else levels.expand(3, -1, -1)
    numbers = (red << 32) + (green << 16) + blue
    known = torch.ones_like(numbers, dtype=torch.bool) if picture.alpha is None else picture.alpha[0] > 0
    if not black_is_a_label:
        known &= numbers != 0
    found = numbers[known].unique()
    if len(found) > MOST_LABELS:
        raise InputError(
            f"{path} has {len(found)} colors, so it is no label map; each label has one color, without blurred "
            "edges, in a lossless format such as .png"
        )
    if len(found) < 2:
        hint = "" if black_is_a_label or bool(known.all()) else "; --black-is-a-label counts black, too"
        raise InputError(f"{path} has {len(found)} labels, and at least two are needed{hint}")
    labels = torch.where(known, torch.searchsorted(found, numbers), UNKNOWN)
    colors = torch.stack([found >> 32, (found >> 16) & 0xFFFF, found & 0xFFFF], dim=1)
    return LabelMap(labels, colors / picture.levels, picture.levels)


def palette(labels: int) -> Tensor:
    """Colors `[labels, 3]` that one can tell apart; the first is black.

    >>> palette(3).shape
    torch.Size([3, 3])
    """
    # turns of the golden angle never meet; every other turn is darker
    hues = [(number * 0.618034) % 1 for number in range(labels - 1)]
    bright = [colorsys.hsv_to_rgb(hue, 0.85, 0.95 if number % 2 == 0 else 0.65) for number, hue in enumerate(hues)]
    return (torch.tensor([(0.0, 0.0, 0.0), *bright]) * 255).round() / 255


def overlay(photo: Tensor, labels: LabelMap) -> Tensor:
    """The photograph `[1 or 3, height, width]`, half of it in the colors of the labels, with their borders drawn."""
    gray = photo.mean(dim=0, keepdim=True).expand(3, -1, -1)
    mixed = (0.5 * gray + 0.5 * labels.paint().pixels).clone()
    border = torch.zeros_like(labels.labels, dtype=torch.bool)
    border[1:] |= labels.labels[1:] != labels.labels[:-1]
    border[:, 1:] |= labels.labels[:, 1:] != labels.labels[:, :-1]
    mixed[:, border] = 1.0
    return mixed


def read_probabilities(path: Path, height: int, width: int) -> Tensor:
    """Probabilities of labels, float32 `[labels, height, width]`, from a file of NumPy.

    Raises:
        InputError: the file cannot be read, or does not fit a picture of this size.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.ndim != 3:
        raise InputError(f"{path} must hold one array of probabilities, of floats [labels, height, width]")
    if array.shape[1:] != (height, width) or array.shape[0] < 2:
        hint = "; transpose it: np.moveaxis(p, -1, 0)" if array.shape[:2] == (height, width) else ""
        raise InputError(f"{path} must have the shape [labels, {height}, {width}], got {list(array.shape)}{hint}")
    probabilities = torch.from_numpy(array.astype(np.float32))
    if bool(probabilities.isnan().any()) or float(probabilities.min()) < 0 or float(probabilities.max()) > 1 + 1e-3:
        raise InputError(f"{path} holds numbers that are no probabilities; apply a softmax to the scores of a network")
    return probabilities


def check_exact(path: Path) -> None:
    """Raise for a format that would change the colors, which are labels."""
    if path != STREAM and format_of(path) not in _EXACT_FORMATS:
        raise InputError(f"cannot write {path}: labels need a format that keeps colors exactly; try .png")
