"""Upsampling of videos frame by frame, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, numbers_of
from permutohedral.filters.images import Data, as_given, to_tensor
from permutohedral.guided.grids import Grids, Sampling
from permutohedral.guided.joint import default_sigma
from permutohedral.guided.upsampling import Upsampler
from permutohedral.lattice.geometry import reach
from permutohedral.lattice.tensors import check_count


def upsample_frames(
    frames: Iterable[tuple[Data, Data]],
    *,
    sigma_time: float = 1.0,
    sigma_space: Sigma | None = None,
    sigma_color: Sigma = 0.1,
    num_iterations: int = 2,
    sampling: Sampling = "area",
    batch_frames: int = 8,
) -> Iterator[Data]:
    """Upsample the coarse maps of a video along the edges of its frames and through time.

    Time is a feature like position and color, so similar maps of neighboring frames are averaged, which reduces
    flicker. The result is that of `upsample(..., mode="gaussian", spatial_dims=3)` of the whole video with bandwidths
    `(sigma_time, *sigma_space)`. In memory are `batch_frames` frames, and about 3.5 sigma_time (num_iterations + 1)
    frames before and after them. NaN that is far from known samples is filled from the frames in memory.

    Args:
        frames: pairs of a map `[channels, h, w]` and its guide `[guide channels, height, width]`, all of one size, in
            temporal order. They are read lazily.
        sigma_time: bandwidth over time, in frames.
        sigma_space: see `upsample`.
        sigma_color: see `upsample`.
        num_iterations: see `upsample`.
        sampling: see `upsample`.
        batch_frames: number of frames computed together; more are faster and take more memory.

    Yields:
        For each frame a map `[channels, height, width]`.

    >>> import torch, permutohedral as ph
    >>> video = ((torch.rand(1, 3, 4), torch.rand(3, 24, 32)) for _ in range(20))
    >>> [found.shape for found in ph.guided.upsample_frames(video, sigma_time=0.5)] == 20 * [(1, 24, 32)]
    True
    """
    check_count("num_iterations", num_iterations)
    if not (math.isfinite(sigma_time) and sigma_time > 0):
        raise InputError(f"sigma_time must be positive and finite, got {sigma_time}")
    if batch_frames < 1:
        raise InputError(f"batch_frames must be at least 1, got {batch_frames}")
    # each step adds the reach of a Gaussian
    margin = (num_iterations + 1) * math.ceil(reach(0) * sigma_time)
    return _stream(
        iter(frames), margin, batch_frames, (sigma_time, sigma_space, sigma_color), (num_iterations, sampling)
    )


def _stream(
    frames: Iterator[tuple[Data, Data]],
    margin: int,
    batch_frames: int,
    sigmas: tuple[float, Sigma | None, Sigma],
    options: tuple[int, Sampling],
) -> Iterator[Data]:
    held: list[tuple[Data, Data]] = []
    # numbers of the first frame in memory, and of the next frame to yield
    first = following = 0
    while True:
        held += islice(frames, following + batch_frames + margin - first - len(held))
        if following == first + len(held):
            return
        count = min(batch_frames, first + len(held) - following)
        found = _upsample_part(held, first, sigmas, options)
        for number in range(following, following + count):
            yield as_given(found[:, number - first], held[number - first][0])
        following += count
        dropped = max(0, following - margin - first)
        held, first = held[dropped:], first + dropped


def _upsample_part(
    held: list[tuple[Data, Data]], first: int, sigmas: tuple[float, Sigma | None, Sigma], options: tuple[int, Sampling]
) -> Tensor:
    """Upsample frames in memory, `[channels, frames, height, width]`, which start at number `first`."""
    maps, pictures = ([to_tensor(frame[side]) for frame in held] for side in range(2))
    for number, (one, picture) in enumerate(zip(maps, pictures, strict=True), start=first):
        if one.shape != maps[0].shape or picture.shape != pictures[0].shape or one.dim() != 3 or picture.dim() != 3:
            raise InputError(
                f"all frames must be [channels, height, width] of one size; frame {number} has a map of "
                f"{list(one.shape)} and a guide of {list(picture.shape)}"
            )
    coarse, guide = torch.stack(maps, dim=1), torch.stack(pictures, dim=1)
    grids = Grids(tuple(coarse.shape[1:]), tuple(guide.shape[1:]), options[1])
    sigma_time, sigma_space, sigma_color = sigmas
    if sigma_space is None:
        sigma_space = default_sigma(Grids(grids.coarse[1:], grids.fine[1:], options[1]), 0.5)
    spatial: list[float] = numbers_of(sigma_space, 2)
    upsampler = Upsampler(
        guide, grids.coarse, mode="gaussian", sigma_space=[sigma_time, *spatial], sigma_color=sigma_color,
        sampling=options[1], spatial_dims=3, origin=(first, 0, 0),
    )  # fmt: skip
    return upsampler(coarse, num_iterations=options[0])
