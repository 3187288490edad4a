"""What the controls of each tab say. No torch here: the page is up before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from permutohedral.pictures.field_settings import FieldSettings

Method = Literal["separable", "dense", "exact", "auto"]
METHODS: tuple[Method, ...] = ("separable", "dense", "exact", "auto")
Mode = Literal["gaussian", "affine", "solver"]
MODES: tuple[Mode, ...] = ("gaussian", "affine", "solver")
MODELS = ("pcnn_cnn", "pcnn", "pcnn_gauss", "cnn", "deep_small", "deep_large", "auto")
# colors of the brushes, of 255, in the order of their numbers as colors: that of a label map
BRUSHES: tuple[tuple[int, int, int], ...] = ((30, 136, 229), (67, 160, 71), (229, 57, 53), (253, 216, 53))
# strokes label few pixels, so the field reaches further than that of `permutohedral segment`
STROKES = FieldSettings(certainty=0.95, sigma_space=40.0, sigma_range=0.04, strength=12.0)


@dataclass(frozen=True)
class FilterSettings:
    """A bilateral filter, see `ph.bilateral_filter`; `guided` takes the edges from another picture."""

    sigma_space: float = 8.0
    sigma_range: float = 0.1
    method: Method = "separable"
    halo: int = 0
    guided: bool = False


@dataclass(frozen=True)
class DenoiseSettings:
    """Removal of noise, see `permutohedral.models.image_denoiser`.

    Attributes:
        model: name of a shipped model.
        strength: that many times the noise is removed.
        sigma: standard deviation of the noise, of 255; None to estimate it.
        added: standard deviation of noise that is added first, of 255, to see how well it is removed.
    """

    model: str = "pcnn_cnn"
    strength: float = 1.0
    sigma: float | None = None
    added: float = 0.0


@dataclass(frozen=True)
class Stroke:
    """A line drawn with the mouse.

    Attributes:
        label: number of a brush.
        radius: in pixels of the photo.
        points: x and y of each corner, in pixels of the photo.
    """

    label: int
    radius: float
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class UpsampleSettings:
    """A small map along the edges of a photo, see `ph.upsample`; `factor` is used where the page makes the map."""

    factor: int = 16
    sigma_gray: float = 0.12
    sigma_color: float = 0.05
    smoothness: float = 0.3
    mode: Mode = "solver"


@dataclass(frozen=True)
class LatticeSettings:
    """A point of the plane, in standard deviations, and the size s of the neighborhood of a learned filter."""

    x: float = 0.35
    y: float = 0.2
    size: int = 1
