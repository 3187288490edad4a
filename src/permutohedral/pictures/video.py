"""The frames of a video, as files of a folder, brought to the size of photographs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError, PermutohedralError
from permutohedral.pictures.batch import Outcome
from permutohedral.pictures.files import read_picture
from permutohedral.pictures.guided import Follow, Followed
from permutohedral.pictures.maps import Map, find_beside, read_map, write_map
from permutohedral.pictures.transparency import hide_colors


def upsample_video(request: Follow, files: Sequence[tuple[Path, Path]], sigma_time: float) -> list[Outcome]:
    """Upsample pairs of map and output, in the order of their names, along edges and through time.

    A frame that cannot be read, or has another size, ends the video: the outcomes from there on say why.

    Raises:
        InputError: the mode is not "gaussian", there are confidences, or the first guide cannot be read.
    """
    if request.mode != "gaussian" or request.confidence is not None:
        raise InputError("a video takes --mode gaussian, and no --confidence; unknown pixels may be NaN")
    files = sorted(files)
    # maps whose results are still to come, and the bandwidths of the guides
    waiting: list[Map] = []
    ended: list[str] = []
    sigma_range: list[float] = request.edges.guide(_read_guide(request.guide, *files[0]))[1]

    def frames() -> Iterator[tuple[Tensor, Tensor]]:
        for source, output in files:
            try:
                given, guide = read_map(source, request.unknown), _read_guide(request.guide, source, output)
            except PermutohedralError as error:
                ended.append(error.message)
                return
            waiting.append(given)
            yield given.values, request.edges.guide(guide)[0]

    steps = 2 if request.steps is None else request.steps
    results = ph.upsample_frames(frames(), sigma_time, request.edges.sigma_space, sigma_range, steps=steps)
    outcomes: list[Outcome] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("upsampling", total=len(files))
        started = time.perf_counter()
        for (source, output), found in zip(files, _until_error(results, ended), strict=False):
            seconds, given = time.perf_counter() - started, waiting.pop(0)
            lost = tuple(write_map(found, given, output))
            known = round(float(given.values.isfinite().all(dim=0).float().mean()), 5)
            channels, height, width = found.shape
            size = height, width, channels
            outcomes.append(Followed(source, output, None, lost, *size, known, round(seconds, 4)))
            progress.advance(bar)
            started = time.perf_counter()
    return [*outcomes, *(Followed(*pair, error=ended[0]) for pair in files[len(outcomes) :])]


def _until_error(results: Iterator[Tensor], ended: list[str]) -> Iterator[Tensor]:
    """The results before one that cannot be; why goes to `ended`."""
    try:
        yield from results
    except PermutohedralError as error:
        ended.append(error.message)


def _read_guide(place: Path, source: Path, output: Path) -> Tensor:
    photo = read_picture(find_beside(place, source, output))
    return hide_colors(photo.pixels, photo.alpha)
