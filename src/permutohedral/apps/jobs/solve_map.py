"""`permutohedral map solve`: smooth maps along the edges of photos."""

from __future__ import annotations

from torch import Tensor

from permutohedral.apps.io.settings import PathLike, Progress
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.guided_maps import SIGMA_CHROMA, SIGMA_LUMA, SIGMA_SPACE, GuidedMap, Task, process_maps


def solve_map(
    inputs: Inputs,
    output: PathLike,
    *,
    guide: PathLike,
    sample_weight: PathLike | None = None,
    smoothness: float = 0.3,
    sigma_space: float = SIGMA_SPACE,
    sigma_luma: float = SIGMA_LUMA,
    sigma_chroma: float = SIGMA_CHROMA,
    unknown: float | None = None,
    device: str = "auto",
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[GuidedMap]:
    """Smooth maps along the edges of photos of the same size, and fill their holes.

    Args:
        inputs, output, guide, sample_weight: see `upsample_map`.
        smoothness: see `ph.bilateral_solver`.
        sigma_space: bandwidth in pixels.
        sigma_luma, sigma_chroma, unknown: see `upsample_map`.
        device, recursive, errors, progress: see `filter_image`, also for the exceptions.

    Returns:
        One result per map.
    """

    def compute(task: Task) -> Tensor:
        return task.solve(smoothness, sigma_space)

    sigmas = sigma_luma, sigma_chroma
    return process_maps(
        compute, inputs, output, guide, sample_weight, unknown, sigmas, device, recursive, errors, progress
    )
