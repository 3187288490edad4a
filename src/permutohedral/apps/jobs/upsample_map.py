"""`permutohedral map upsample`: upsample small maps to the size of photos."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

import permutohedral as ph
from permutohedral.apps.io.settings import PathLike, Progress
from permutohedral.apps.jobs.batch import Errors, Inputs, size_of
from permutohedral.apps.jobs.guided_maps import SIGMA_CHROMA, SIGMA_LUMA, GuidedMap, Task, process_maps
from permutohedral.errors import InputError


def upsample_map(
    inputs: Inputs,
    output: PathLike,
    *,
    guide: PathLike,
    mode: Literal["gaussian", "affine", "solver"] = "solver",
    sigma_space: float | None = None,
    sigma_luma: float = SIGMA_LUMA,
    sigma_chroma: float = SIGMA_CHROMA,
    num_iterations: int | None = None,
    sampling: Literal["area", "point"] = "area",
    smoothness: float = 0.3,
    sample_weight: PathLike | None = None,
    unknown: float | None = None,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedMap]:
    """Upsample small maps to the size of photos, along the edges of the photos.

    Maps are images of 8 or 16 bits, TIFF files of floats, or .npy files `[height, width]` or `[channels, height,
    width]`. The result keeps their units and bits; integers are rounded. NaN and transparent pixels are filled.

    Args:
        inputs: maps, or folders of maps.
        output: file for the result, or a folder for several.
        guide: photo, or a folder of photos with the names of the maps.
        mode: see `ph.upsample`.
        sigma_space: bandwidth in pixels of the guide; default by mode.
        sigma_luma: bandwidth in brightness; white is 1.
        sigma_chroma: bandwidth in color, if the guide has colors.
        num_iterations: corrections or iterations of the mode; default by mode.
        sampling: see `ph.upsample`.
        smoothness: see `ph.bilateral_solver`.
        sample_weight: image (white is certain) or .npy file, or a folder of them; 0 is unknown.
        unknown: number that marks unknown samples.
        device, recursive, errors, progress: see `filter_image`, also for the exceptions.

    Returns:
        One result per map.
    """

    def compute(task: Task) -> Tensor:
        # swapped arguments would return a small copy of the photo
        if any(extent > room for extent, room in zip(task.values.shape[1:], task.guide.shape[1:], strict=True)):
            raise InputError(
                f"{task.source} has {size_of(task.values)} pixels, more than its guide with {size_of(task.guide)}; "
                "pass the map first, then the photo"
            )
        return ph.upsample(
            task.values, task.guide, sigma_space=sigma_space, sigma_color=task.sigma_color, mode=mode,
            sample_weight=task.sample_weight, num_iterations=num_iterations, sampling=sampling, smoothness=smoothness,
        )  # fmt: skip

    sigmas = sigma_luma, sigma_chroma
    return process_maps(
        compute, inputs, output, guide, sample_weight, unknown, sigmas, device, recursive, errors, progress
    )
