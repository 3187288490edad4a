"""`permutohedral image segment`: labels that follow the edges of photos."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io import labels as label_maps
from permutohedral.apps.io.image import ImageData, check_output, read_image, write_image
from permutohedral.apps.io.partial import check_settings
from permutohedral.apps.io.settings import (
    PathLike,
    Progress,
    SegmentationSettings,
    check_count,
    check_outputs,
    choose_device,
    optional_path,
    warn_of_large_sigma,
)
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs, check_same_size
from permutohedral.apps.jobs.cutout import CutoutSettings, Trimap, cut_out
from permutohedral.apps.jobs.transparency import hide_colors
from permutohedral.errors import InputError

_DEFAULTS = SegmentationSettings()
_SIGMA_NEAR = 3.0
_SCALE_LABELS = "scale the labels, without interpolation"
# gray levels of the trimaps of the GrabCut database: background far away and near, unknown, foreground
_GRABCUT_LEVELS, _GRABCUT_BACKGROUND = {0, 64, 128, 255}, 64
# iterations between two reports; each call of the field costs about one iteration more
_ITERATIONS_PER_REPORT = 5
_GPU_BATCH_SIZE = 8
# a gray map with more labels may be a photo
_MANY_LABELS = 64
# largest difference of a channel from gray in a trimap
_MOST_COLOR = 0.1


@dataclass(frozen=True)
class _Item:
    """A photo `[channels, height, width]`, its labels, and energies `[labels, height, width]` or a trimap."""

    pixels: Tensor
    before: label_maps.LabelMap
    energies: Tensor
    trimap: Trimap | None = None


@dataclass(frozen=True)
class SegmentedImage(batch.ImageResult):
    """Result of `segment_image`.

    Attributes:
        labels: number of labels.
        changed: share of the pixels whose label was known, or most probable, and changed.
        decided: share of the pixels whose label was unknown.
        colors: color of each label in the result, such as "#f22424"; those of probabilities in their order.
        resumed: whether the result was there before the call.
    """

    labels: int | None = None
    changed: float | None = None
    decided: float | None = None
    colors: tuple[str, ...] = ()
    resumed: bool = False

    def describe(self) -> str:
        """Return one line of text."""
        return f"kept {self.output}" if self.resumed else super().describe()

    def _details(self) -> str:
        return (
            f": {self.labels} labels, {100 * (self.changed or 0):.1f} % of the pixels changed, "
            f"{100 * (self.decided or 0):.1f} % decided, in {self.seconds:.2f} s"
        )


def segment_image(
    inputs: Inputs,
    output: PathLike,
    *,
    labels: PathLike | None = None,
    probabilities: PathLike | None = None,
    trimap: PathLike | None = None,
    black_is_a_label: bool = False,
    overlay: PathLike | None = None,
    certainty: float = _DEFAULTS.certainty,
    sigma_space: float = _DEFAULTS.sigma_space,
    sigma_color: float = _DEFAULTS.sigma_color,
    strength: float = _DEFAULTS.strength,
    smoothness: float = _DEFAULTS.smoothness,
    num_iterations: int = _DEFAULTS.num_iterations,
    device: str = "auto",
    batch_size: int | None = None,
    resume: bool = False,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[SegmentedImage]:
    """Make rough labels follow the edges of photos with a dense CRF.

    Pass exactly one of `labels`, `probabilities` and `trimap`: a file, or a folder of files with the names of the
    photos. Results in a folder are PNG files. The next photos are read and results are written during the computation.

    Args:
        inputs: photos; see `filter_image`.
        output: label map, or a folder for several photos.
        labels: image with one color per label; black and transparent pixels are unknown.
        probabilities: .npy file of floats `[labels, height, width]`; conflicts with `certainty`.
        trimap: image with white foreground, black background and gray between, or one of the GrabCut database (0, 64,
            128, 255); conflicts with `black_is_a_label`, and with `certainty` to `num_iterations`.
        black_is_a_label: whether black is a label.
        overlay: image of the labels over the photo, or a folder for several photos.
        certainty: probability of a given label.
        sigma_space: bandwidth of the bilateral kernel in pixels.
        sigma_color: bandwidth of the bilateral kernel in color; white is 1.
        strength: weight of the bilateral kernel.
        smoothness: weight of the spatial kernel.
        num_iterations: mean-field iterations.
        device: see `filter_image`.
        batch_size: number of photos of equal size that are computed in one call; default 1 on a CPU, else 8.
        resume: skip photos whose result, a PNG file, and overlay exist. Results of other settings raise. Changes of the
            input files are not noticed.
        recursive, errors, progress: see `filter_image`.

    Returns:
        One result per photo.

    Raises:
        DataError: a file is missing or damaged.
        InputError: an argument or a file does not fit, or the format of the output changes colors.
        StorageError: an output cannot be written.
    """
    places = {"labels": labels, "probabilities": probabilities, "trimap": trimap}
    given = [optional_path(name, place) for name, place in places.items()]
    if sum(place is not None for place in given) != 1:
        raise InputError("labels, probabilities, trimap: pass exactly one of them")
    drawn = optional_path("overlay", overlay)
    where = choose_device(device)
    size = (1 if where.type == "cpu" else _GPU_BATCH_SIZE) if batch_size is None else batch_size
    check_count("batch_size", size, least=1)
    check_count("num_iterations", num_iterations)
    warn_of_large_sigma(sigma_color)
    settings = SegmentationSettings(certainty, sigma_space, sigma_color, strength, smoothness, num_iterations)
    kind = next(name for name, place in places.items() if place is not None)
    ignored = [name for name, value in asdict(settings).items() if value != getattr(_DEFAULTS, name)]
    if kind == "probabilities":
        ignored = [name for name in ignored if name == "certainty"]
    if kind != "labels" and (ignored or black_is_a_label):
        names = ", ".join((*ignored, *["black_is_a_label"] * black_is_a_label))
        raise InputError(f"{kind} conflicts with {names}, which would have no effect; leave them out")
    stored: dict[str, object] = {**{name: name == kind for name in places}, "black_is_a_label": black_is_a_label}
    stored |= {name: float(value) for name, value in asdict(settings).items()}
    # in a folder results are PNG, since labels need exact colors
    files = batch.plan_files(inputs, output, recursive, *given, suffix=".png")
    if len(files) == 1:
        label_maps.check_exact(files[0][1])
    if drawn is not None and len(files) > 1:
        batch.make_folder(drawn)
    elif drawn is not None and not drawn.is_dir():
        check_output(drawn)

    def overlay_of(source: Path) -> Path | None:
        return drawn / f"{source.stem}.png" if drawn is not None and drawn.is_dir() else drawn

    written = [*(result for _, result in files), *filter(None, (overlay_of(source) for source, _ in files))]
    check_outputs(batch.input_files(files, given), written)

    def read(source: Path) -> tuple[_Item, object]:
        photo = read_image(source)
        pixels = hide_colors(photo.pixels, photo.alpha)
        label_place, probability_place, trimap_place = given
        if trimap_place is not None:
            path = batch.find_companion(trimap_place, source)
            # each trimap has colors of its own to fit
            return _read_trimap(path, source, pixels), source
        if probability_place is not None:
            before, energies = _read_probabilities(probability_place, source, pixels)
        else:
            assert label_place is not None
            path = batch.find_companion(label_place, source)
            if path.suffix.lower() in (".npy", ".npz"):
                raise InputError(
                    f"{path} is not an image; pass a .npy file of probabilities with --probabilities, in Python "
                    "probabilities="
                )
            before = label_maps.read_label_map(path, black_is_a_label)
            _warn_of_other_images(path, before)
            check_same_size(path, before.labels, source, pixels, _SCALE_LABELS)
            energies = ph.crf.energies_from_labels(
                before.labels, len(before.colors), certainty=certainty, unknown=label_maps.UNKNOWN
            )
        return _Item(pixels, before, energies), (pixels.shape, energies.shape)

    def compute(items: list[_Item], report: Callable[[float], None]) -> list[tuple[Tensor, float]]:
        started = time.perf_counter()
        if items[0].trimap is not None:
            found = [_cut_out(item.pixels, item.trimap, where) for item in items if item.trimap is not None]
        elif len(items) == 1:
            found = [follow_edges(items[0].energies.to(where), items[0].pixels.to(where), settings, report)]
        else:
            parts = ([item.energies for item in items], [item.pixels for item in items])
            energies, pixels = (torch.stack(part).to(where) for part in parts)
            found = list(follow_edges(energies, pixels, settings, report))
        labels = [marginals.argmax(dim=0).cpu() for marginals in found]
        seconds = (time.perf_counter() - started) / len(items)
        return [(each, seconds) for each in labels]

    def write(source: Path, output: Path, item: _Item, computed: tuple[Tensor, float]) -> SegmentedImage:
        before, (labels, seconds) = item.before, computed
        after = replace(before, labels=labels)
        # the overlay first: resume looks for the label map
        path = overlay_of(source)
        if path is not None:
            write_image(ImageData(label_maps.blend_labels(item.pixels, after)), path)
        label_maps.write_label_map(after, output, stored)
        known = before.labels != label_maps.UNKNOWN
        changed = float((known & (labels != before.labels)).float().mean())
        shares = round(changed, 5), round(1 - float(known.float().mean()), 5)
        height, width = known.shape
        digits = 2 if before.levels == 255 else 4
        colors = tuple(
            "#" + "".join(f"{level:0{digits}x}" for level in color)
            for color in (before.colors * before.levels).round().int().tolist()
        )
        return SegmentedImage(source, output, round(seconds, 4), None, height, width, len(colors), *shares, colors)

    done = set()
    for source, result in files if resume else ():
        begun, path = label_maps.read_settings(result), overlay_of(source)
        if begun is not None:
            check_settings(result, begun, stored)
            if path is None or path.is_file():
                done.add(result)
    todo = [pair for pair in files if pair[1] not in done]
    results = iter(
        batch.process_in_stages(read, compute, write, SegmentedImage, todo, errors, progress, batch_size=size)
    )
    return [
        SegmentedImage(source, output, resumed=True) if output in done else next(results) for source, output in files
    ]


def _read_probabilities(place: Path, source: Path, pixels: Tensor) -> tuple[label_maps.LabelMap, Tensor]:
    """Return the most probable labels, and the unary energies `[labels, height, width]`."""
    height, width = pixels.shape[1:]
    given = label_maps.read_probabilities(batch.find_companion(place, source, suffix=".npy"), height, width)
    return label_maps.LabelMap(given.argmax(dim=0), label_maps.palette(len(given))), ph.crf.energies_from_probabilities(
        given
    )


def _warn_of_other_images(path: Path, given: label_maps.LabelMap) -> None:
    """Warn if a label map has the gray levels of a trimap, or as many as a photo."""
    if len(given.colors) > _MANY_LABELS and given.channels == 1 and not given.palette:
        warnings.warn(
            f"{path} has {len(given.colors)} gray levels, each used as a label; pass a label map if it is a photo",
            stacklevel=2,
        )
    levels = set((given.colors * given.levels).round().int().flatten().tolist())
    if len(given.colors) == 3 and levels == _GRABCUT_LEVELS - {0} and bool((given.labels == label_maps.UNKNOWN).any()):
        warnings.warn(
            f"{path} has the gray levels of a GrabCut trimap, but is used as a label map; pass --trimap, in Python "
            "trimap=, to find the foreground",
            stacklevel=2,
        )


def _read_trimap(path: Path, source: Path, pixels: Tensor) -> _Item:
    image = read_image(path)
    gray = image.pixels.mean(dim=0)
    # JPEG changes gray a little
    if float((image.pixels - gray).abs().max()) > _MOST_COLOR:
        raise InputError(f"{path} must be gray, but has colors; pass colored strokes as labels, without --trimap")
    # JPEG and scaling change black and white a little
    background, foreground = gray < 0.05, gray > 0.95
    unknown = ~background & ~foreground
    levels = set((255 * gray).round().int().unique().tolist())
    if _GRABCUT_BACKGROUND in levels and levels <= _GRABCUT_LEVELS:
        # black is background outside of the region whose colors are fitted
        background = (255 * gray).round() == _GRABCUT_BACKGROUND
        unknown &= ~background
    labels = torch.full(gray.shape, label_maps.UNKNOWN)
    labels[~unknown], labels[foreground] = 0, 1
    check_same_size(path, labels, source, pixels, _SCALE_LABELS)
    if not bool(background.any()) or not bool(unknown.any()):
        raise InputError(f"{path} must have black background and gray, undecided pixels; white is foreground")
    before = label_maps.LabelMap(labels, torch.tensor([[0.0] * 3, [1.0] * 3]), channels=len(image.pixels))
    return _Item(pixels, before, torch.empty(0), Trimap(background, foreground, unknown))


def _cut_out(pixels: Tensor, trimap: Trimap, device: torch.device) -> Tensor:
    """Return the marginals of background and foreground, `[2, height, width]`."""
    photo = (pixels if len(pixels) == 3 else pixels.expand(3, -1, -1)).to(device)
    parts = (part.to(device) for part in (trimap.background, trimap.foreground, trimap.unknown))
    # without known foreground its colors are estimated in several rounds
    settings = CutoutSettings(rounds=1 if bool(trimap.foreground.any()) else 5)
    marginal = cut_out(photo, Trimap(*parts), settings)
    return torch.stack([1 - marginal, marginal])


def follow_edges(
    energies: Tensor,
    pixels: Tensor,
    settings: SegmentationSettings,
    report: Callable[[float], None] | None = None,
) -> Tensor:
    """Return the marginals of a dense CRF over a photo, `[labels, height, width]`, or over a batch of photos.

    >>> follow_edges(torch.rand(3, 20, 30), torch.rand(3, 20, 30), SegmentationSettings()).shape
    torch.Size([3, 20, 30])
    """
    kernels = [
        ph.crf.spatial_kernel(pixels.shape[-2:], _SIGMA_NEAR, compatibility=settings.smoothness, device=pixels.device),
        ph.crf.bilateral_kernel(
            pixels, sigma_space=settings.sigma_space, sigma_color=settings.sigma_color, compatibility=settings.strength
        ),
    ]
    firsts = range(0, max(1, settings.num_iterations), _ITERATIONS_PER_REPORT)
    done, total = 0, len(kernels) + len(firsts)

    def advance() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done / total)

    for number, kernel in enumerate(kernels):
        kernels[number] = kernel.with_lattice()
        advance()
    marginals = None
    for first in firsts:
        iterations = min(_ITERATIONS_PER_REPORT, settings.num_iterations - first)
        marginals = ph.crf.mean_field(energies, kernels, num_iterations=iterations, start=marginals)
        advance()
    assert marginals is not None
    return marginals
