"""Label maps (images in which each color is a label), and files of probabilities."""

from __future__ import annotations

import colorsys
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from permutohedral.apps.io.atomic import write_bytes
from permutohedral.apps.io.image import ImageData, format_of, read_image, read_texts, write_image
from permutohedral.apps.io.maps import load_array
from permutohedral.apps.io.metadata import Metadata, save_options
from permutohedral.apps.io.settings import STREAM
from permutohedral.errors import InputError, PermutohedralError

# a map with more colors was blurred, or is a photo
MAX_LABELS = 256
UNKNOWN = -1
# name of the text of a PNG file that holds the settings of its segmentation
_SETTINGS = "permutohedral"
# formats that keep every color exactly
_EXACT_FORMATS = ("BMP", "PNG", "PPM", "TGA", "TIFF", "WEBP")


@dataclass(frozen=True)
class LabelMap:
    """Labels of pixels.

    Attributes:
        labels: int64 `[height, width]`, indices of colors, or `UNKNOWN`.
        colors: float32 `[labels, 3]` in 0 to 1.
        levels: integer of the file that 1.0 stands for, 255 or 65535.
        channels: of the file, 1 (gray) or 3.
        palette: colors of an indexed file, 3 bytes each; empty for other files.
    """

    labels: Tensor
    colors: Tensor
    levels: int = 255
    channels: int = 3
    palette: bytes = b""

    def paint(self) -> ImageData:
        """Return the map as an image with the channels of its file; unknown pixels are black."""
        painted = torch.cat([self.colors, torch.zeros(1, 3)])[self.labels].permute(2, 0, 1)
        return ImageData(painted[: self.channels].contiguous(), levels=self.levels, format="PNG")


def read_label_map(path: Path, black_is_a_label: bool) -> LabelMap:
    """Read an image whose colors are labels; transparent pixels are unknown, and black ones by default."""
    image = read_image(path)
    levels = (image.pixels * image.levels).round().long()
    red, green, blue = levels if len(levels) == 3 else levels.expand(3, -1, -1)
    numbers = (red << 32) + (green << 16) + blue
    known = torch.ones_like(numbers, dtype=torch.bool) if image.alpha is None else image.alpha[0] > 0
    if not black_is_a_label:
        known &= numbers != 0
    found, label = numbers[known].unique(return_inverse=True)
    if len(found) > MAX_LABELS:
        raise InputError(
            f"{path} has {len(found)} colors, so it is not a label map; use one color per label, without blurred "
            "edges, in a lossless format such as .png"
        )
    if len(found) < 2:
        hint = "" if black_is_a_label or bool(known.all()) else "; --black-is-a-label also counts black"
        raise InputError(f"{path} has {len(found)} labels, and at least two are needed{hint}")
    # in the order of their first pixels, so that ties between labels do not depend on colors
    first = torch.full_like(found, len(label)).scatter_reduce(0, label, torch.arange(len(label)), "amin")
    order = first.argsort()
    found = found[order]
    labels = torch.full(numbers.shape, UNKNOWN)
    labels[known] = order.argsort()[label]
    colors = torch.stack([found >> 32, (found >> 16) & 0xFFFF, found & 0xFFFF], dim=1)
    return LabelMap(labels, colors / image.levels, image.levels, len(image.pixels), image.palette)


def write_label_map(labels: LabelMap, path: Path, settings: Mapping[str, Any]) -> None:
    """Write a label map atomically, in the channels of its file.

    PNG keeps the palette of an indexed file, and the settings for `read_settings`.
    """
    metadata = Metadata(text={_SETTINGS: json.dumps(settings)})
    if not labels.palette or format_of(path) != "PNG":
        write_image(replace(labels.paint(), metadata=metadata), path)
        return
    places = [labels.palette[first : first + 3] for first in range(0, len(labels.palette), 3)]
    indices = [places.index(bytes(color)) for color in (255 * labels.colors).round().byte().tolist()]
    image = Image.fromarray(torch.tensor(indices, dtype=torch.uint8)[labels.labels].numpy())
    image.putpalette(labels.palette)
    content = io.BytesIO()
    image.save(content, "PNG", **save_options(metadata, "PNG"))
    write_bytes(path, content.getvalue())


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings that `write_label_map` stored, None if there is no such file or it has none."""
    try:
        settings = json.loads(read_texts(path)[_SETTINGS])
    except (PermutohedralError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return settings if isinstance(settings, dict) else None


def palette(labels: int) -> Tensor:
    """Return distinct colors `[labels, 3]`; the first is black.

    >>> palette(3).shape
    torch.Size([3, 3])
    """
    # multiples of the golden angle never coincide; every other color is darker
    hues = [(number * 0.618034) % 1 for number in range(labels - 1)]
    bright = [colorsys.hsv_to_rgb(hue, 0.85, 0.95 if number % 2 == 0 else 0.65) for number, hue in enumerate(hues)]
    return (torch.tensor([(0.0, 0.0, 0.0), *bright]) * 255).round() / 255


def blend_labels(photo: Tensor, labels: LabelMap) -> Tensor:
    """Blend labels over a photo `[1 or 3, height, width]` and draw their borders.

    Labels of a gray map, often indices near black, are shown in distinct colors.
    """
    gray = photo.mean(dim=0, keepdim=True).expand(3, -1, -1)
    colors = labels.colors if labels.channels == 3 else palette(len(labels.colors) + 1)[1:]
    mixed = 0.5 * gray + 0.5 * torch.cat([colors, torch.zeros(1, 3)])[labels.labels].permute(2, 0, 1)
    border = torch.zeros_like(labels.labels, dtype=torch.bool)
    border[1:] |= labels.labels[1:] != labels.labels[:-1]
    border[:, 1:] |= labels.labels[:, 1:] != labels.labels[:, :-1]
    mixed[:, border] = 1.0
    return mixed


def read_probabilities(path: Path, height: int, width: int) -> Tensor:
    """Read probabilities of labels, float32 `[labels, height, width]`, from a .npy file."""
    array = load_array(path)
    if array.dtype.kind != "f":
        raise InputError(f"{path} must hold probabilities, of floats, got {array.dtype} of shape {list(array.shape)}")
    if array.ndim != 3 or array.shape[1:] != (height, width) or array.shape[0] < 2:
        raise InputError(
            f"{path} must have the shape [labels, {height}, {width}], got {list(array.shape)}"
            f"{_shape_hint(array.shape, height, width)}"
        )
    probabilities = torch.from_numpy(array.astype(np.float32))
    if bool(probabilities.isnan().any()):
        raise InputError(f"{path} holds NaN; give every label of such a pixel the same probability")
    if float(probabilities.min()) < 0 or float(probabilities.max()) > 1 + 1e-3:
        raise InputError(f"{path} holds numbers outside of 0 to 1; apply a softmax to the scores of a network")
    return probabilities


def _shape_hint(shape: tuple[int, ...], height: int, width: int) -> str:
    """Return how to make probabilities of a common wrong shape fit, "" for other shapes."""
    if shape in ((height, width), (1, height, width)):
        of_label = "p[0]" if len(shape) == 3 else "p"
        return f"; at least two labels are needed: save a sigmoid output p as np.stack([1 - {of_label}, {of_label}])"
    if shape[:1] == (1,) and shape[2:] == (height, width):
        return "; save p[0], without the batch"
    if len(shape) == 3 and shape[:2] == (height, width):
        return "; transpose it: np.moveaxis(p, -1, 0)"
    if len(shape) == 3 and shape[1] < height and shape[2] < width:
        return (
            "; enlarge it with torch.nn.functional.interpolate(p[None], size, mode='bilinear')[0], or scale the photo"
        )
    return ""


def check_exact(path: Path) -> None:
    """Raise `InputError` for a format that changes colors."""
    if path != STREAM and format_of(path) not in _EXACT_FORMATS:
        raise InputError(f"cannot write {path}: labels need a format that keeps colors exactly; try .png")
