"""A small map brought to the size of a photo, by each mode."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.pictures.files import Picture
from permutohedral.pictures.guided import EdgeSettings
from permutohedral.pictures.maps import Map, read_map, write_map
from permutohedral.playground.compute.layers import Layer, make_layer, on_white
from permutohedral.playground.compute.measure import measured
from permutohedral.playground.compute.photos import Photo
from permutohedral.playground.compute.result import Result
from permutohedral.playground.settings import UpsampleSettings


@dataclass(frozen=True)
class Material:
    """What is upsampled.

    Attributes:
        coarse: the small map.
        guide: `[1 or 3, height, width]`, the picture to follow.
        truth: `[channels, height, width]` in the range of the map, None where it is not known.
    """

    coarse: Map
    guide: Tensor
    truth: Tensor | None


def colors_of(photo: Photo, factor: int) -> Material:
    """The colors of a photo at a fraction of its size, to be brought back along its brightness: so there is a truth."""
    height, width = photo.pixels.shape[1:]
    size = (max(1, round(height / factor)), max(1, round(width / factor)))
    shown = on_white(photo.pixels, photo.picture.alpha)
    values = (255 * adaptive_avg_pool2d(shown, size)).round()
    gray = (255 * shown.mean(dim=0, keepdim=True)).round() / 255
    return Material(Map(values, Picture(values / 255)), gray, 255 * shown)


def own_map(path: Path, name: str, photo: Photo) -> Material:
    """The map of a user, along the edges of the photo.

    Raises:
        InputError: it is no map, or not smaller than the photo.
    """
    try:
        found = read_map(path)
    except InputError as error:
        raise InputError(error.message.replace(str(path), name)) from error
    height, width = found.values.shape[1:]
    if height > photo.pixels.shape[1] or width > photo.pixels.shape[2]:
        raise InputError(
            f"{name} has {width} x {height} pixels and the photo {photo.pixels.shape[2]} x {photo.pixels.shape[1]}: "
            "a map to be upsampled is smaller"
        )
    return Material(found, photo.visible, None)


@dataclass(frozen=True)
class Upsampled:
    """A map in the size of the photo.

    Attributes:
        values: `[channels, height, width]` in the range of the map.
        result: the same as a picture.
        psnr: in dB against the truth; None where there is none.
    """

    values: Tensor
    result: Result
    psnr: float | None


def upsample(material: Material, settings: UpsampleSettings, check: Callable[[], None]) -> Upsampled:
    """By the mode of the settings; `check` is called before the map is looked at."""
    edges = EdgeSettings(sigma_gray=settings.sigma_gray, sigma_color=settings.sigma_color)
    guide, sigma_range = edges.guide(material.guide)
    smoothness = settings.smoothness if settings.mode == "solver" else 0.3

    def compute() -> Tensor:
        values = material.coarse.values
        upsampler = ph.Upsampler(guide, tuple(values.shape[1:]), None, sigma_range, settings.mode)
        check()
        return upsampler(values, smoothness=smoothness)

    return _measure(material, compute)


def enlarge(material: Material) -> Upsampled:
    """Without the guide: each value interpolated between its neighbors."""
    size = tuple(material.guide.shape[1:])
    known = torch.nan_to_num(material.coarse.values)[None]
    return _measure(material, lambda: interpolate(known, size=size, mode="bilinear", align_corners=False)[0])


def coarse_layer(material: Material) -> Layer:
    """The map itself, each value as large as the pixels it stands for."""
    layer = make_layer(_as_picture(material.coarse.values, material))
    height, width = material.guide.shape[1:]
    return replace(layer, region=(0, 0, width, height))


def _measure(material: Material, compute: Callable[[], Tensor]) -> Upsampled:
    with measured() as cost:
        values = compute()
    picture = _as_picture(values, material)
    return Upsampled(values, Result(picture, make_layer(picture), cost), _quality(values, material))


def _quality(found: Tensor, material: Material) -> float | None:
    """PSNR in dB against the truth; None where there is none."""
    if material.truth is None:
        return None
    error = float((found - material.truth).square().mean())
    return math.inf if error == 0 else 20 * math.log10(255) - 10 * math.log10(error)


def _as_picture(values: Tensor, material: Material) -> Tensor:
    """Values of any range as a picture `[1 or 3, height, width]`: from the least of the map to the largest."""
    shown = values if len(values) == 3 else values[:1]
    if material.truth is not None:
        return shown / 255
    known = material.coarse.values[material.coarse.values.isfinite()]
    if len(known) == 0:
        raise InputError("nothing is known of this map")
    low, high = float(known.min()), float(known.max())
    return torch.nan_to_num((shown - low) / max(high - low, 1e-12))


def result_file(found: Tensor, material: Material, name: str) -> bytes:
    """Content of the file of that name that `permutohedral upsample` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_map(found, material.coarse, path)
        return path.read_bytes()
