"""Makes labels of photographs follow their edges."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.models.cutout import CutoutSettings, Trimap, cut_out
from permutohedral.pictures.batch import Outcome, Progress, Request, check_companions, make_folder
from permutohedral.pictures.field_settings import FieldSettings
from permutohedral.pictures.files import Picture, check_output, read_picture, write_picture
from permutohedral.pictures.label_maps import (
    UNKNOWN,
    LabelMap,
    check_exact,
    overlay,
    palette,
    read_label_map,
    read_probabilities,
)
from permutohedral.pictures.transparency import hide_colors


@dataclass(frozen=True)
class Segmented(Outcome):
    """What became of one file.

    Attributes:
        height: in pixels.
        width: in pixels.
        labels: how many there are.
        changed: share of the pixels whose label was known, or most probable, before, and is another now.
        decided: share of the pixels whose label was unknown.
        seconds: that it took, without reading and writing.
    """

    height: int | None = None
    width: int | None = None
    labels: int | None = None
    changed: float | None = None
    decided: float | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """Labels and what became of them, after what every file has."""
        if self.error is not None:
            return super().describe()
        return (
            f"{super().describe()}: {self.labels} labels, {100 * (self.changed or 0):.1f} % of the pixels changed, "
            f"{100 * (self.decided or 0):.1f} % decided, in {self.seconds:.2f} s"
        )


_SIGMA_NEAR = 3.0
# steps between two calls of `progress`; each call of the field costs about one step more
_STEPS_AT_ONCE = 5


@dataclass(frozen=True)
class Segment(Request):
    """Labels, probabilities or a trimap, each a file or a folder of files of the same names, made to follow edges.

    Attributes:
        labels: label maps; None if there are probabilities.
        probabilities: files of NumPy, `[labels, height, width]`.
        trimap: whether `labels` are trimaps: white foreground, black background, unknown between.
        black_is_a_label: else black pixels of a label map are unknown.
        overlay: where to draw the labels over the photograph; None for nowhere.
        settings: of the field; those of a trimap are `CutoutSettings`.
    """

    outcome: ClassVar[type[Outcome]] = Segmented

    labels: Path | None
    probabilities: Path | None = None
    trimap: bool = False
    black_is_a_label: bool = False
    overlay: Path | None = None
    settings: FieldSettings = field(default_factory=FieldSettings)

    def check(self, files: Sequence[tuple[Path, Path]]) -> None:
        """Find out before any work whether labels are found and results can be written.

        Raises:
            InputError: names do not tell the files apart, or an ending names no format that keeps labels.
        """
        for place in (self.labels, self.probabilities, self.overlay):
            check_companions(place, files)
        if len(files) == 1:
            check_exact(files[0][1])
        if self.overlay is not None and len(files) > 1:
            make_folder(self.overlay)
        elif self.overlay is not None and not self.overlay.is_dir():
            check_output(self.overlay)

    def process(self, source: Path, output: Path, progress: Progress) -> Segmented:
        """Segment one file."""
        photo = read_picture(source)
        pixels = hide_colors(photo.pixels, photo.alpha)
        before, marginals, seconds = self._solve(source, pixels, progress)
        after = replace(before, labels=marginals.argmax(dim=0))
        write_picture(after.paint(), output)
        if self.overlay is not None:
            drawn = self.overlay / f"{source.stem}.png" if self.overlay.is_dir() else self.overlay
            write_picture(Picture(overlay(pixels, after)), drawn)
        known = before.labels != UNKNOWN
        changed = float((known & (after.labels != before.labels)).float().mean())
        height, width = known.shape
        return Segmented(
            source, output, None, (), height, width, len(before.colors),
            round(changed, 5), round(1 - float(known.float().mean()), 5), round(seconds, 4),
        )  # fmt: skip

    def _solve(self, source: Path, pixels: Tensor, progress: Progress) -> tuple[LabelMap, Tensor, float]:
        """The labels before, the marginals `[labels, height, width]`, and the seconds they took."""
        height, width = pixels.shape[1:]
        if self.probabilities is not None:
            given = read_probabilities(_find(self.probabilities, source, ".npy"), height, width)
            before = LabelMap(given.argmax(dim=0), palette(len(given)))
            energies = ph.crf.energies_from_probabilities(given)
        else:
            assert self.labels is not None
            path = _find(self.labels, source, None)
            if self.trimap:
                return _solve_trimap(path, pixels)
            before = read_label_map(path, self.black_is_a_label)
            _check_size(path, before.labels, source, pixels)
            energies = ph.crf.energies_from_labels(
                before.labels, len(before.colors), self.settings.certainty, unknown=UNKNOWN
            )
        started = time.perf_counter()
        marginals = follow_edges(energies, pixels, self.settings, progress)
        return before, marginals, time.perf_counter() - started


def follow_edges(
    energies: Tensor, pixels: Tensor, settings: FieldSettings, progress: Callable[[float], None] | None = None
) -> Tensor:
    """The marginals `[labels, height, width]` of energies of this shape over a photograph `[channels, height, width]`.

    `progress` is called with the share that is done.

    >>> follow_edges(torch.rand(3, 20, 30), torch.rand(3, 20, 30), FieldSettings()).shape
    torch.Size([3, 20, 30])
    """
    kernels = [
        ph.crf.spatial_kernel(pixels.shape[1:], _SIGMA_NEAR, settings.smoothness),
        ph.crf.bilateral_kernel(pixels, settings.sigma_space, settings.sigma_range, settings.strength),
    ]
    firsts = range(0, max(1, settings.steps), _STEPS_AT_ONCE)
    done, all_parts = 0, len(kernels) + len(firsts)

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / all_parts)

    lattices = []
    for kernel in kernels:
        lattices.append(kernel.build_lattice())
        tell()
    marginals = None
    for first in firsts:
        steps = min(_STEPS_AT_ONCE, settings.steps - first)
        marginals = ph.crf.mean_field(energies, kernels, steps, lattices=lattices, start=marginals)
        tell()
    assert marginals is not None
    return marginals


def name_results(files: Sequence[tuple[Path, Path]], output: Path) -> list[tuple[Path, Path]]:
    """The same pairs, with results in a folder as PNG: labels need a format that keeps colors exactly.

    >>> name_results([(Path("photo.jpg"), Path("folder/photo.jpg"))], Path("folder"))[0][1].as_posix()
    'folder/photo.png'
    """
    return [(source, result if result == output else result.with_suffix(".png")) for source, result in files]


def _solve_trimap(path: Path, pixels: Tensor) -> tuple[LabelMap, Tensor, float]:
    gray = read_picture(path).pixels.mean(dim=0)
    # JPEG and scaling leave black and white not quite so
    background, foreground = gray < 0.05, gray > 0.95
    labels = torch.full(gray.shape, UNKNOWN)
    labels[background], labels[foreground] = 0, 1
    before = LabelMap(labels, torch.tensor([[0.0] * 3, [1.0] * 3]))
    _check_size(path, labels, path, pixels)
    if not bool(background.any()) or bool((background | foreground).all()):
        raise InputError(f"{path} must have black background and gray pixels to decide about; white is foreground")
    started = time.perf_counter()
    photo = pixels if len(pixels) == 3 else pixels.expand(3, -1, -1)
    # without known foreground its colors are found by and by
    settings = CutoutSettings(rounds=1 if bool(foreground.any()) else 5)
    marginal = cut_out(photo, Trimap(background, foreground, ~background & ~foreground), settings)
    return before, torch.stack([1 - marginal, marginal]), time.perf_counter() - started


def _check_size(path: Path, labels: Tensor, source: Path, pixels: Tensor) -> None:
    if labels.shape != pixels.shape[1:]:
        raise InputError(
            f"{path} has {labels.shape[1]} x {labels.shape[0]} pixels and the photograph {source} "
            f"{pixels.shape[2]} x {pixels.shape[1]}; scale the labels, without interpolation"
        )


def _find(place: Path, source: Path, ending: str | None) -> Path:
    """The file that belongs to `source`: `place` itself, or that of the same name but its ending in that folder."""
    if not place.is_dir():
        return place
    if ending is None and (place / source.name).is_file():
        return place / source.name
    beside = (path for path in sorted(place.iterdir()) if path.stem == source.stem)
    found = [path for path in beside if ending in (None, path.suffix)]
    if len(found) != 1:
        raise InputError(
            f"{place} has {len(found) or 'no'} files for {source}: one of the name {source.stem} is needed"
        )
    return found[0]
