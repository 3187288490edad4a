"""Results and previews of the tabs, without the page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

import permutohedral as ph
from permutohedral.apps.io.image import ImageData, read_image, write_image
from permutohedral.apps.io.maps import read_map
from permutohedral.apps.io.settings import SegmentationSettings
from permutohedral.apps.jobs.segment_image import follow_edges
from permutohedral.apps.models.denoiser import Denoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.photos import (
    MAX_PIXELS,
    Layer,
    Photo,
    blend_with_white,
    encode_png,
    make_layer,
    user_name,
)  # fmt: skip
from permutohedral.apps.playground.strokes import BRUSHES, Stroke, draw_strokes
from permutohedral.errors import InputError

# the exact methods run in tiles of this extent, so that they stop soon when they are dropped; the bits are the same
_TILE = 512
# extent of the preview of denoising: a smaller copy of the photo would have less noise
_MIDDLE = 96
# noise that hardly shows; white is 255
_LITTLE_NOISE = 3.0


@dataclass(frozen=True)
class Result:
    """What a tab shows: an image, None for none, and more for a full result.

    Attributes:
        layer: the image.
        kind: "before", "preview", "full", or "details" for a result that only updates the status line.
        seconds: wall time with files.
        details: HTML for the status line.
        files: downloads by name, functions that return their content.
    """

    layer: Layer | None
    kind: str = "full"
    seconds: float = 0.0
    details: tuple[str, ...] = ()
    files: dict[str, Callable[[], bytes]] = field(default_factory=dict)


def psnr(found: Tensor, truth: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB; white is 1."""
    return -10 * math.log10(max(float((found - truth).square().mean()), 1e-12))


def _run(job: Job, progress: Callable[[float], None], **more: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = job.run(progress, **more)
    return result, time.perf_counter() - started


def filter_photo(photo: Photo, job: Job, progress: Callable[[float], None], check: bool = False) -> Result:
    """Run `filter_image`; `check` also estimates the error."""
    slow = job.options["method"] in ("dense", "exact") or job.options["halo"] > 0
    more: dict[str, Any] = {"tile": _TILE} if slow else {}
    found, seconds = _run(job, progress, check=check, **more)
    pixels = read_image(Path(job.files[-1])).pixels
    details = ["estimating the error"]
    if check:
        relative, worst = 100 * found.relative_error, 255 * found.worst_error
        details = [f"mean error about <b>{relative:.2g} %</b>, the largest of the samples <b>{worst:.2g}</b> of 255"]
    layer = make_layer(pixels, photo.image.alpha)
    files = {"smooth.png": lambda: encode_png(photo.image.with_pixels(pixels))}
    return Result(layer, "full", seconds, tuple(details), files)


def preview_filter(photo: Photo, options: dict[str, Any]) -> Layer:
    """Filter the small photo by the fastest method."""
    alpha = None if photo.small_alpha is None else photo.small_alpha[0]
    filtered = ph.bilateral_filter(
        photo.small,
        sigma_space=options["sigma_space"] / photo.factor,
        sigma_color=options["sigma_color"],
        sample_weight=alpha,
    )
    return make_layer(filtered, photo.small_alpha, photo.factor)


def add_noise(photo: Photo, sigma: float, path: Path) -> ImageData:
    """Write the photo with noise to a file; white is 255 for `sigma`. The noise is the same each time."""
    image = photo.image
    noise = torch.randn(image.pixels.shape, generator=torch.Generator().manual_seed(0))
    noisy = (image.pixels + sigma / 255 * noise).clamp(0, 1)
    # rounded as in the file
    image = image.with_pixels((noisy * image.levels).round() / image.levels)
    write_image(image, path)
    return image


def denoise_photo(photo: Photo, noisy: ImageData, job: Job, progress: Callable[[float], None]) -> Result:
    """Run `denoise_image` on a photo, or on the photo with added noise."""
    found, seconds = _run(job, progress)
    clean = read_image(Path(job.files[-1])).pixels
    files = {"clean.png": lambda: encode_png(noisy.with_pixels(clean))}
    error = "PSNR unknown: add noise to a clean photo to measure it"
    if found.sigma < _LITTLE_NOISE:
        error = "this photo has almost no noise: <b>add some with the slider</b> to see the effect"
    if noisy is not photo.image:
        seen = torch.ones_like(clean[0], dtype=torch.bool) if noisy.alpha is None else noisy.alpha[0] > 0
        before, after = (psnr(pixels[:, seen], photo.image.pixels[:, seen]) for pixels in (noisy.pixels, clean))
        error = f"PSNR <b>{before:.2f}</b> before, <b>{after:.2f} dB</b> after"
        files["noisy.png"] = lambda: encode_png(noisy)
    details = (f"noise <b>{found.sigma:.1f}</b> of 255", error)
    return Result(make_layer(clean, noisy.alpha), "full", seconds, details, files)


@cache
def _denoiser() -> Denoiser:
    return Denoiser.from_pretrained()


def preview_denoised(noisy: ImageData, options: dict[str, Any]) -> Layer:
    """Denoise the middle of the photo.

    >>> options = {"strength": 1.0, "sigma": 20.0}
    >>> preview_denoised(ImageData(torch.rand(3, 200, 300)), options).region
    (102, 52, 96, 96)
    """
    top, left = (max(0, extent // 2 - _MIDDLE // 2) for extent in noisy.pixels.shape[1:])
    middle = (slice(None), slice(top, top + _MIDDLE), slice(left, left + _MIDDLE))
    level = estimate_noise(noisy.pixels) if options["sigma"] is None else options["sigma"] / 255
    clean = _denoiser()(noisy.pixels[middle], options["strength"] * level)
    return make_layer(clean, None if noisy.alpha is None else noisy.alpha[middle], 1, (left, top))


def segment_photo(job: Job, progress: Callable[[float], None]) -> Result:
    """Run `segment_image` on a photo and strokes, with an overlay."""
    _, seconds = _run(job, progress)
    labels = Image.open(job.files[-1])
    colors = labels.getcolors()
    assert colors is not None, "label maps have at most 256 colors"
    square = '<i style="color: rgb{}">&#9632;</i> <b>{:.0f} %</b>'
    details = tuple(square.format(color, 100 * count / (labels.width * labels.height)) for count, color in colors)
    overlay = make_layer(read_image(Path(job.options["overlay"])).pixels)
    found, drawn = (Path(path).read_bytes() for path in (job.files[-1], job.options["labels"]))
    return Result(overlay, "full", seconds, details, {"out.png": lambda: found, "labels.png": lambda: drawn})


def preview_segments(photo: Photo, strokes: Sequence[Stroke], options: dict[str, Any]) -> Layer:
    """Segment the small photo."""
    height, width = photo.small.shape[1:]
    drawn = torch.from_numpy(draw_strokes(strokes, height, width, photo.factor))
    used = drawn[drawn >= 0].unique()
    given = torch.where(drawn < 0, -1, torch.searchsorted(used, drawn))
    energies = ph.crf.energies_from_labels(given, len(used), certainty=options["certainty"], unknown=-1)
    settings = SegmentationSettings(**{**options, "sigma_space": options["sigma_space"] / photo.factor})
    labels = follow_edges(energies, photo.small, settings).argmax(dim=0)
    colors = (torch.tensor(BRUSHES) / 255)[used][labels].permute(2, 0, 1)
    return make_layer(0.5 * photo.small.mean(dim=0) + 0.5 * colors, factor=photo.factor)


@dataclass(frozen=True)
class Material:
    """A map to upsample: files of the map and its guide, height and width of the guide, the true map if known.

    `low` and `high` are the values that are drawn black and white.
    """

    coarse: Path
    guide: Path
    size: tuple[int, int]
    truth: Tensor | None
    low: float
    high: float

    def draw(self, values: Tensor) -> Tensor:
        """Return values of any range as an image `[1 or 3, height, width]`."""
        shown = values if len(values) == 3 else values[:1]
        return torch.nan_to_num((shown - self.low) / max(self.high - self.low, 1e-12))


def shrink_colors(photo: Photo, factor: int, folder: Path) -> Material:
    """Write the colors of a photo at a fraction of its size, and its gray as the guide; so the truth is known."""
    shown = blend_with_white(photo.image.pixels, photo.image.alpha)
    height, width = (max(1, round(extent / factor)) for extent in photo.size)
    coarse, guide = folder / "coarse.png", folder / "guide.png"
    write_image(ImageData(adaptive_avg_pool2d(shown, (height, width))), coarse)
    write_image(ImageData(shown.mean(dim=0, keepdim=True)), guide)
    return Material(coarse, guide, photo.size, shown, 0.0, 255.0)


def user_map(path: Path, name: str, photo: Photo) -> Material:
    """Read the range of a map of the user, to upsample it along the edges of the photo."""
    with user_name(path, name):
        values = read_map(path, max_pixels=MAX_PIXELS).values
    if any(extent > room for extent, room in zip(values.shape[1:], photo.size, strict=True)):
        raise InputError(
            f"{name} has {values.shape[2]} x {values.shape[1]} pixels and the photo {photo.size[1]} x {photo.size[0]}; "
            "choose a map that is smaller than the photo"
        )
    known = values[values.isfinite()]
    if len(known) == 0:
        raise InputError(f"{name} has no finite values")
    return Material(path, photo.path, photo.size, None, float(known.min()), float(known.max()))


def upsample(material: Material, job: Job, progress: Callable[[float], None]) -> Result:
    """Run `upsample_map`; offer the map and the guide, too, if they were made of a photo."""
    _, seconds = _run(job, progress)
    output = Path(job.files[-1])
    image = material.draw(read_map(output).values)
    paths, details = [output], ["PSNR unknown: the true map is not known"]
    if material.truth is not None:
        paths += [material.coarse, material.guide]
        details = [f"PSNR <b>{psnr(image, material.truth):.2f} dB</b>"]
    contents = {path.name: path.read_bytes() for path in paths}
    files: dict[str, Callable[[], bytes]] = {name: partial(contents.__getitem__, name) for name in contents}
    return Result(make_layer(image), "full", seconds, tuple(details), files)


def coarse_layer(material: Material) -> Layer:
    """Return the map, each value as large as the pixels that it stands for."""
    layer = make_layer(material.draw(read_map(material.coarse).values))
    return replace(layer, region=(0, 0, material.size[1], material.size[0]))
