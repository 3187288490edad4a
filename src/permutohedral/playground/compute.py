"""Results and previews of the tabs, without the page."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.files.formats.image import ImageData, read_image, write_image
from permutohedral.files.formats.maps import read_map
from permutohedral.lattice.geometry import lattice_positions, tap_positions
from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.playground.jobs import Job
from permutohedral.playground.photos import Layer, Photo, blend_with_white, encode_png, make_layer, user_name
from permutohedral.playground.strokes import BRUSHES, Stroke, draw_strokes

# the exact methods run in tiles of this extent, so that they stop soon when they are dropped; the bits are the same
_TILE = 512
# extent of the preview of denoising: a smaller copy of the photo would have less noise
_MIDDLE = 96
# bandwidth of the spatial kernel of `segment_image`, in pixels
_SIGMA_NEAR = 3.0
# half extent of the plane that is drawn, and pixels along it
_EXTENT, _SIDE = 3.0, 97


@dataclass
class Cost:
    """Time and memory of a computation.

    Attributes:
        seconds: wall time.
        peak_bytes: peak memory of the process, None if the system does not report it.
    """

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure the block; the cost is filled in at its end.

    >>> with measured() as cost:
    ...     _ = sum(range(1000))
    >>> cost.seconds > 0
    True
    """
    cost = Cost()
    with suppress(OSError):
        # resets VmHWM, the peak; see proc(5)
        Path("/proc/self/clear_refs").write_text("5")
    started = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - started
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        cost.peak_bytes = int(peak.split()[1]) * 1024


@dataclass(frozen=True)
class Result:
    """Result of a tab.

    Attributes:
        layer: its image.
        cost: of the computation, with reading and writing files.
        details: HTML fragments for the status line.
        files: names of downloads, and functions that return their content.
    """

    layer: Layer
    cost: Cost
    details: tuple[str, ...] = ()
    files: dict[str, Callable[[], bytes]] = field(default_factory=dict)


def psnr(found: Tensor, truth: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB; white is 1."""
    return -10 * math.log10(max(float((found - truth).square().mean()), 1e-12))


def _run(job: Job, progress: Callable[[float], None], **more: Any) -> tuple[Any, Cost]:
    with measured() as cost:
        result = job.run(progress, **more)
    return result, cost


def filter_photo(photo: Photo, job: Job, progress: Callable[[float], None], check: bool = False) -> Result:
    """Run `filter_image`; `check` also estimates the error."""
    slow = job.options["method"] in ("dense", "exact") or job.options["halo"] > 0
    more: dict[str, Any] = {"tile": _TILE} if slow else {}
    found, cost = _run(job, progress, check=check, **more)
    pixels = read_image(Path(job.files[-1])).pixels
    details = ["error …"]
    if check:
        relative, worst = 100 * found.relative_error, 255 * found.worst_error
        details = [f"error about <b>{relative:.2g} %</b>, at a pixel <b>{worst:.2g}</b> of 255"]
    layer = make_layer(pixels, photo.image.alpha)
    return Result(layer, cost, tuple(details), {"smooth.png": lambda: encode_png(photo.image.with_pixels(pixels))})


def preview_filter(photo: Photo, guide: Photo | None, options: dict[str, Any]) -> Layer:
    """Filter the small photo by the fastest method."""
    alpha = None if photo.small_alpha is None else photo.small_alpha[0]
    filtered = ph.bilateral_filter(
        photo.small,
        options["sigma_space"] / photo.factor,
        options["sigma_color"],
        photo.small if guide is None else guide.small,
        weights=alpha,
    )
    return make_layer(filtered, photo.small_alpha, photo.factor)


def add_noise(photo: Photo, sigma: float, path: Path) -> ImageData:
    """Write the photo with noise to a file; the noise is the same each time.

    Args:
        photo: the photo.
        sigma: standard deviation of the noise; white is 255.
        path: the file.
    """
    image = photo.image
    noise = torch.randn(image.pixels.shape, generator=torch.Generator().manual_seed(0))
    noisy = (image.pixels + sigma / 255 * noise).clamp(0, 1)
    # rounded as in the file
    image = image.with_pixels((noisy * image.levels).round() / image.levels)
    write_image(image, path)
    return image


def denoise_photo(photo: Photo, noisy: ImageData, job: Job, progress: Callable[[float], None]) -> Result:
    """Run `denoise_image` on a photo, or on the photo with added noise."""
    found, cost = _run(job, progress)
    clean = read_image(Path(job.files[-1])).pixels
    files = {"clean.png": lambda: encode_png(noisy.with_pixels(clean))}
    error = "error unknown: add noise to a clean photo to measure it"
    if noisy is not photo.image:
        seen = torch.ones_like(clean[0], dtype=torch.bool) if noisy.alpha is None else noisy.alpha[0] > 0
        before, after = (psnr(pixels[:, seen], photo.image.pixels[:, seen]) for pixels in (noisy.pixels, clean))
        error = f"PSNR <b>{before:.2f}</b> before, <b>{after:.2f} dB</b> after"
        files["noisy.png"] = lambda: encode_png(noisy)
    details = (f"noise <b>{found.sigma:.1f}</b> of 255", error)
    return Result(make_layer(clean, noisy.alpha), cost, details, files)


def preview_denoised(noisy: ImageData, options: dict[str, Any]) -> Layer:
    """Denoise the middle of the photo, with a fast model in place of a deep one.

    >>> options = {"model": "cnn", "strength": 1.0, "sigma": 20.0}
    >>> preview_denoised(ImageData(torch.rand(3, 200, 300)), options).region
    (102, 52, 96, 96)
    """
    top, left = (max(0, extent // 2 - _MIDDLE // 2) for extent in noisy.pixels.shape[1:])
    middle = (slice(None), slice(top, top + _MIDDLE), slice(left, left + _MIDDLE))
    level = estimate_noise(noisy.pixels) if options["sigma"] is None else options["sigma"] / 255
    model = "pcnn_cnn" if options["model"] in ("auto", "deep_small") else options["model"]
    clean = ImageDenoiser(model)(noisy.pixels[middle], options["strength"] * level)
    return make_layer(clean, None if noisy.alpha is None else noisy.alpha[middle], 1, (left, top))


def segment_photo(job: Job, progress: Callable[[float], None]) -> Result:
    """Run `segment_image` on a photo and strokes, with an overlay."""
    _, cost = _run(job, progress)
    labels = Image.open(job.files[-1])
    colors = labels.getcolors()
    assert colors is not None, "label maps have at most 256 colors"
    square = '<i style="color: rgb{}">&#9632;</i> <b>{:.0f} %</b>'
    details = tuple(square.format(color, 100 * count / (labels.width * labels.height)) for count, color in colors)
    overlay = make_layer(read_image(Path(job.options["overlay"])).pixels)
    image = ImageData(read_image(Path(job.files[-1])).pixels)
    drawn = Path(job.options["labels"]).read_bytes()
    return Result(overlay, cost, details, {"out.png": lambda: encode_png(image), "labels.png": lambda: drawn})


def preview_segments(photo: Photo, strokes: Sequence[Stroke], options: dict[str, Any]) -> Layer:
    """Segment the small photo."""
    height, width = photo.small.shape[1:]
    drawn = torch.from_numpy(draw_strokes(strokes, height, width, photo.factor))
    used = drawn[drawn >= 0].unique()
    given = torch.where(drawn < 0, -1, torch.searchsorted(used, drawn))
    energies = ph.crf.energies_from_labels(given, len(used), options["certainty"], unknown=-1)
    space = options["sigma_space"] / photo.factor
    kernels = [
        ph.crf.spatial_kernel((height, width), _SIGMA_NEAR, options["smoothness"]),
        ph.crf.bilateral_kernel(photo.small, space, options["sigma_color"], options["strength"]),
    ]
    labels = ph.crf.mean_field(energies, kernels, options["num_iterations"]).argmax(dim=0)
    colors = (torch.tensor(BRUSHES) / 255)[used][labels].permute(2, 0, 1)
    return make_layer(0.5 * photo.small.mean(dim=0) + 0.5 * colors, factor=photo.factor)


@dataclass(frozen=True)
class Material:
    """A map to upsample.

    Attributes:
        coarse: file of the map.
        guide: file of the guide.
        size: height and width of the guide.
        truth: `[channels, height, width]`, the map at the size of the guide if it is known; white is 1.
        low: value that is drawn black.
        high: value that is drawn white.
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
    """Read the range of a map of the user, to upsample it along the edges of the photo.

    Raises:
        InputError: the file is not a map, or the map is larger than the photo.
    """
    with user_name(path, name):
        values = read_map(path).values
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
    """Run `upsample_map`."""
    _, cost = _run(job, progress)
    output = Path(job.files[-1])
    content = output.read_bytes()
    return _upsampled(material, read_map(output).values, cost, {f"out{output.suffix}": lambda: content})


def enlarge(material: Material) -> Result:
    """Interpolate the map linearly, without the guide."""
    with measured() as cost:
        known = torch.nan_to_num(read_map(material.coarse).values)[None]
        values = interpolate(known, size=material.size, mode="bilinear", align_corners=False)[0]
    return _upsampled(material, values, cost, {})


def _upsampled(material: Material, values: Tensor, cost: Cost, files: dict[str, Callable[[], bytes]]) -> Result:
    image = material.draw(values)
    details = [] if material.truth is None else [f"PSNR <b>{psnr(image, material.truth):.2f} dB</b>"]
    return Result(make_layer(image), cost, tuple(details), files)


def coarse_layer(material: Material) -> Layer:
    """Return the map, each value as large as the pixels that it stands for."""
    layer = make_layer(material.draw(read_map(material.coarse).values))
    return replace(layer, region=(0, 0, material.size[1], material.size[0]))


def describe_point(x: float, y: float, size: int) -> dict[str, Any]:
    """Return a point on the lattice of the plane for the page; positions are x and y.

    Args:
        x: of the point, in standard deviations.
        y: of the point.
        size: neighborhood size of a learned filter.

    >>> found = describe_point(0.35, 0.2, 1)
    >>> len(found["corners"]), len(found["taps"]), round(sum(found["weights"]), 6)
    (3, 7, 1.0)
    """
    point = torch.tensor([[y, x]], dtype=torch.float64)
    line = torch.linspace(-_EXTENT, _EXTENT, _SIDE, dtype=torch.float64)
    places = torch.cartesian_prod(line, line)
    view = ph.build_lattice(places, neighborhood_size=0, separable=True)
    lattice = ph.build_lattice(point, neighborhood_size=size)
    corners = lattice_positions(lattice.source)[lattice.source.vertices[0].long()]
    weights = lattice.source.barycentric[0]
    # response to a value of 1 at the point, among zeros at all places
    values = torch.zeros(len(places) + 1, 1, dtype=torch.float64)
    values[-1] = 1
    filtered: Tensor = ph.gaussian_filter(values, torch.cat([places, point]), places, "none")
    response = filtered[:, 0]
    exact = (-0.5 * (places - point).square().sum(dim=1)).exp()
    return {
        "lattice": _pairs(lattice_positions(view.source)),
        "point": [x, y],
        "corners": _pairs(corners),
        "weights": weights.tolist(),
        "taps": _pairs(tap_positions(lattice.neighborhood) + corners[weights.argmax()]),
        "tap_weights": ph.gaussian_weight(2, size, torch.float64).tolist(),
        "response": base64.b64encode((255 * response.clamp(0, 1)).round().byte().numpy().tobytes()).decode(),
        "side": _SIDE,
        "extent": _EXTENT,
        "worst": float((response - exact).abs().max()),
    }


def _pairs(positions: Tensor) -> list[list[float]]:
    """Return positions with x before y."""
    return positions.flip(1).tolist()
