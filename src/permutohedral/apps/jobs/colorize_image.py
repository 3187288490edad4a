"""`permutohedral image colorize`: color gray images from a few strokes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.image import ImageData, check_output, read_image, write_image
from permutohedral.apps.io.metadata import Metadata
from permutohedral.apps.io.settings import PathLike, Progress, choose_device, to_path
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.guided_maps import SIGMA_SPACE, GuidedMap
from permutohedral.errors import InputError

# without alpha, a pixel whose channels differ by more belongs to a stroke; JPEG changes gray a little
_COLORED = 0.06
# colors spread far from few strokes
_ITERATIONS = 100


def colorize_image(
    inputs: Inputs,
    output: PathLike,
    *,
    strokes: PathLike,
    sigma_space: float = SIGMA_SPACE,
    sigma_luma: float = 0.06,
    smoothness: float = 0.1,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedMap]:
    """Color gray images from a few strokes.

    Args:
        inputs: gray images; see `filter_image`.
        output: see `filter_image`.
        strokes: image of the same size, or a folder of images with the names of the inputs. It is colored on strokes,
            and transparent or gray elsewhere.
        sigma_space: bandwidth in pixels.
        sigma_luma: bandwidth in brightness; white is 1.
        smoothness: see `ph.bilateral_solver`.
        device, recursive, errors, progress: see `filter_image`, also for the exceptions.

    Returns:
        One result per image.
    """
    place = to_path("strokes", strokes)
    files, where = batch.plan_files(inputs, output, recursive, place), choose_device(device)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> GuidedMap:
        image = read_image(source)
        path = batch.find_companion(place, source)
        colors = read_image(path)
        gray = _luma(image.pixels)
        check_output(output, image.with_pixels(gray.expand(3, -1, -1)))
        batch.check_same_size(path, colors.pixels, source, gray)
        drawn = _find_strokes(colors)
        if len(colors.pixels) != 3 or not bool(drawn.any()):
            raise InputError(f"{path} has no strokes: draw in color, on gray or on a transparent image")
        chroma = colors.pixels - _luma(colors.pixels)
        started = time.perf_counter()
        found = ph.bilateral_solver(
            chroma.to(where), gray.to(where), sample_weight=drawn.to(where), smoothness=smoothness,
            sigma_space=sigma_space, sigma_color=sigma_luma, num_iterations=_ITERATIONS,
        ).cpu()  # fmt: skip
        seconds = time.perf_counter() - started
        colored = replace(image, pixels=gray + found, metadata=_without_gray_profile(image))
        write_image(colored, output)
        known = round(float(drawn.float().mean()), 5)
        _, height, width = gray.shape
        return GuidedMap(source, output, round(seconds, 4), None, height, width, 3, known)

    return batch.process_files(process, GuidedMap, files, errors, progress)


def _luma(pixels: Tensor) -> Tensor:
    """Return the brightness `[1, height, width]` as gray images have it (Rec. 601)."""
    if len(pixels) == 1:
        return pixels
    return (pixels * pixels.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=0, keepdim=True)


def _without_gray_profile(image: ImageData) -> Metadata:
    """Return the metadata without a color profile of gray, which does not apply to colors."""
    metadata = image.metadata
    if len(image.pixels) == 3 or metadata.color_profile is None:
        return metadata
    return replace(metadata, color_profile=None)


def _find_strokes(colors: ImageData) -> Tensor:
    """Return where strokes are, bool `[height, width]`."""
    # many programs write an alpha channel without transparent pixels
    if colors.alpha is not None and not bool((colors.alpha > 0).all()):
        return colors.alpha[0] > 0
    return colors.pixels.amax(dim=0) - colors.pixels.amin(dim=0) > _COLORED
