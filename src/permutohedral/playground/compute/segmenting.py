"""Labels that spread from strokes to the pixels of like color."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image, ImageDraw
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.pictures.field_settings import FieldSettings
from permutohedral.pictures.label_maps import UNKNOWN, LabelMap, overlay
from permutohedral.pictures.segment import follow_edges
from permutohedral.playground.compute.layers import Layer, make_layer
from permutohedral.playground.compute.measure import measured
from permutohedral.playground.compute.photos import Photo
from permutohedral.playground.compute.result import Result
from permutohedral.playground.settings import BRUSHES, Stroke


def draw_strokes(strokes: Sequence[Stroke], size: Sequence[int], factor: int = 1) -> LabelMap:
    """The strokes as a label map of this height and width, those of the photo divided by `factor`.

    Raises:
        InputError: fewer than two labels are drawn.
    """
    height, width = size
    image = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(image)
    for stroke in strokes:
        points = [(x / factor, y / factor) for x, y in stroke.points]
        radius = stroke.radius / factor
        draw.line(points, fill=stroke.label + 1, width=max(1, round(2 * radius)))
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=stroke.label + 1)
    drawn = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width).long()
    used = drawn[drawn > 0].unique()
    if len(used) < 2:
        raise InputError("draw over two regions or more, each with a brush of its own")
    # numbers without gaps, as a file of the map would give them
    labels = torch.where(drawn > 0, torch.searchsorted(used, drawn), UNKNOWN)
    return LabelMap(labels, torch.tensor(BRUSHES)[used - 1] / 255)


@dataclass(frozen=True)
class Segments:
    """Labels of all pixels.

    Attributes:
        given: the strokes.
        found: what they spread to.
        doubt: share of the pixels that are wrong, if the field is right about how probable its labels are.
        result: the labels over the photo.
    """

    given: LabelMap
    found: LabelMap
    doubt: float
    result: Result


def segment_photo(
    photo: Photo, strokes: Sequence[Stroke], settings: FieldSettings, progress: Callable[[float], None]
) -> Segments:
    """The whole photo; `progress` is called now and then with the share that is done."""
    given = draw_strokes(strokes, photo.pixels.shape[1:])
    with measured() as cost:
        marginals = _spread(photo.visible, given, settings, progress)
    most, labels = marginals.max(dim=0)
    found = LabelMap(labels, given.colors)
    drawn = overlay(photo.visible, found)
    return Segments(given, found, 1 - float(most.mean()), Result(drawn, make_layer(drawn), cost))


def preview(photo: Photo, strokes: Sequence[Stroke], settings: FieldSettings) -> Layer:
    """The small photo."""
    given = draw_strokes(strokes, photo.small.shape[1:], photo.factor)
    field = replace(settings, sigma_space=settings.sigma_space / photo.factor)
    found = LabelMap(_spread(photo.small, given, field, None).argmax(dim=0), given.colors)
    return make_layer(overlay(photo.small, found), photo.factor)


def shares(segments: Segments) -> list[tuple[tuple[int, int, int], float]]:
    """The color of each label, of 255, and the share of the photo that it has."""
    labels, count = segments.found.labels, len(segments.found.colors)
    parts = labels.flatten().bincount(minlength=count) / labels.numel()
    colors = (255 * segments.found.colors).round().int().tolist()
    return [((red, green, blue), float(part)) for (red, green, blue), part in zip(colors, parts, strict=True)]


def _spread(
    pixels: Tensor, given: LabelMap, settings: FieldSettings, progress: Callable[[float], None] | None
) -> Tensor:
    """The marginals `[labels, height, width]` of the field over `[channels, height, width]`."""
    energies = ph.crf.energies_from_labels(given.labels, len(given.colors), settings.certainty, unknown=UNKNOWN)
    return follow_edges(energies, pixels, settings, progress)
