"""Maps that follow the edges of photographs: upsampled, solved, and gray pictures colored from strokes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.pictures.batch import Outcome, Progress, Request
from permutohedral.pictures.files import Picture, check_output, read_picture, write_picture
from permutohedral.pictures.maps import Map, find_beside, read_map, write_map
from permutohedral.pictures.metadata import Metadata
from permutohedral.pictures.transparency import hide_colors

# a pixel of strokes without alpha is a stroke if its channels differ by more than this; JPEG leaves gray not quite so
_COLORED = 0.06


@dataclass(frozen=True)
class Followed(Outcome):
    """What became of one file.

    Attributes:
        height: of the result, in pixels.
        width: of the result, in pixels.
        channels: of the result.
        known: share of the samples that were known.
        seconds: that it took, without reading and writing.
    """

    height: int | None = None
    width: int | None = None
    channels: int | None = None
    known: float | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """Size and time, after what every file has."""
        if self.error is not None:
            return super().describe()
        return f"{super().describe()}: {self.width} x {self.height} pixels, in {self.seconds:.2f} s"


@dataclass(frozen=True)
class EdgeSettings:
    """What counts as an edge of the guide.

    Attributes:
        sigma_space: in pixels of the guide; None for what suits the mode.
        sigma_gray: bandwidth in brightness, white being 1.
        sigma_color: bandwidth in color; of gray guides without meaning.
    """

    sigma_space: float | None = None
    sigma_gray: float = 0.12
    sigma_color: float = 0.05

    def guide(self, pixels: Tensor) -> tuple[Tensor, list[float]]:
        """The guide in axes of brightness and color, and a bandwidth for each."""
        if len(pixels) != 3:
            return pixels[:1], [self.sigma_gray]
        # in opponent colors white is at the square root of 3
        return ph.opponent_colors(pixels), [3**0.5 * self.sigma_gray, self.sigma_color, self.sigma_color]


@dataclass(frozen=True)
class Follow(Request):
    """Maps made to follow photographs; guides and confidences are files, or folders of files of the same names.

    Attributes:
        mode: "solve" for maps of the size of the guide, else a mode of `ph.upsample`.
        guide: photographs.
        confidence: pictures, white being certain; None for all alike.
        unknown: the number that stands for nothing.
        edges: what counts as an edge.
        steps: see `ph.upsample`.
        smoothness: see `ph.bilateral_solver`.
    """

    outcome: ClassVar[type[Outcome]] = Followed

    mode: Literal["solve", "gaussian", "affine", "solver"]
    guide: Path
    confidence: Path | None = None
    unknown: float | None = None
    edges: EdgeSettings = EdgeSettings()
    steps: int | None = None
    smoothness: float = 0.3

    def process(self, source: Path, output: Path, progress: Progress) -> Followed:
        """Make one file follow its guide."""
        given = read_map(source, self.unknown)
        photo = read_picture(find_beside(self.guide, source, output))
        guide, sigma_range = self.edges.guide(hide_colors(photo.pixels, photo.alpha))
        confidence = None
        if self.confidence is not None:
            confidence = _read_confidence(find_beside(self.confidence, source, output), source, given)
        started = time.perf_counter()
        if self.mode == "solve":
            if given.values.shape[1:] != guide.shape[1:]:
                raise InputError(
                    f"{source} has {_size(given.values)} pixels but its guide {_size(guide)}; "
                    "use permutohedral upsample for a smaller map"
                )
            sigma_space = self.edges.sigma_space or 8.0
            found = ph.bilateral_solver(given.values, guide, confidence, self.smoothness, sigma_space, sigma_range)
        else:
            # who has changed the order would get a small picture of the photo
            if any(extent > room for extent, room in zip(given.values.shape[1:], guide.shape[1:], strict=True)):
                raise InputError(
                    f"{source} has {_size(given.values)} pixels, more than its guide with {_size(guide)}; the map "
                    "comes first, then the photo"
                )
            found = ph.upsample(
                given.values, guide, self.edges.sigma_space, sigma_range, self.mode,
                confidence=confidence, steps=self.steps, smoothness=self.smoothness,
            )  # fmt: skip
        seconds = time.perf_counter() - started
        lost = tuple(write_map(found, given, output))
        known = given.values.isfinite().all(dim=0).float().mean()
        channels, height, width = found.shape
        return Followed(source, output, None, lost, height, width, channels, round(float(known), 5), round(seconds, 4))


@dataclass(frozen=True)
class Colorize(Request):
    """Gray pictures colored from strokes.

    Attributes:
        strokes: pictures of the same size, or the folder of those of the same names: color where a stroke is, else
            transparent or gray.
        edges: what counts as an edge; a gray picture has no colors.
        smoothness: see `ph.bilateral_solver`.
    """

    outcome: ClassVar[type[Outcome]] = Followed

    strokes: Path
    edges: EdgeSettings = EdgeSettings(8.0, 0.06)
    smoothness: float = 0.1

    def process(self, source: Path, output: Path, progress: Progress) -> Followed:
        """Color one file."""
        picture = read_picture(source)
        path = find_beside(self.strokes, source, output)
        strokes = read_picture(path)
        gray = picture.pixels.mean(dim=0, keepdim=True)
        check_output(output, picture.with_pixels(gray.expand(3, -1, -1)))
        if strokes.pixels.shape[1:] != gray.shape[1:]:
            raise InputError(
                f"the strokes {path} have {_size(strokes.pixels)} pixels and the picture {source} {_size(gray)}; they "
                "must be the same"
            )
        drawn = _drawn(strokes)
        if len(strokes.pixels) != 3 or not bool(drawn.any()):
            raise InputError(f"{path} has no strokes: draw in color, on gray or on a transparent picture")
        chroma = strokes.pixels - strokes.pixels.mean(dim=0, keepdim=True)
        started = time.perf_counter()
        sigma_space = self.edges.sigma_space or 8.0
        # colors travel far from few strokes
        found = ph.bilateral_solver(
            chroma, gray, drawn, self.smoothness, sigma_space, self.edges.sigma_gray, iterations=100
        )
        seconds = time.perf_counter() - started
        colored = replace(picture, pixels=gray + found, metadata=_of_colors(picture))
        lost = tuple(write_picture(colored, output))
        height, width = gray.shape[1:]
        known = round(float(drawn.float().mean()), 5)
        return Followed(source, output, None, lost, height, width, 3, known, round(seconds, 4))


def _of_colors(picture: Picture) -> Metadata:
    """What the file says about the picture, but the profile of gray, which means nothing for colors."""
    metadata = picture.metadata
    if len(picture.pixels) == 3 or metadata.color_profile is None:
        return metadata
    return replace(metadata, color_profile=None, unreadable=(*metadata.unreadable, "color profile"))


def _drawn(strokes: Picture) -> Tensor:
    """Where strokes are, bool `[height, width]`."""
    # an alpha that hides nothing tells nothing: many programs write one into every picture
    if strokes.alpha is not None and not bool((strokes.alpha > 0).all()):
        return strokes.alpha[0] > 0
    return strokes.pixels.amax(dim=0) - strokes.pixels.amin(dim=0) > _COLORED


def _read_confidence(path: Path, source: Path, given: Map) -> Tensor:
    found = read_map(path)
    if found.values.shape[1:] != given.values.shape[1:]:
        raise InputError(
            f"the confidence {path} has {_size(found.values)} pixels and the map {source} {_size(given.values)}; they "
            "must be the same"
        )
    levels = 1 if found.picture is None else found.picture.levels
    return torch.nan_to_num(found.values.mean(dim=0) / levels)


def _size(maps: Tensor) -> str:
    return f"{maps.shape[-1]} x {maps.shape[-2]}"
