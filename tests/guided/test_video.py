"""Videos streamed against videos as volumes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor

import permutohedral as ph


def video(frames: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    shapes = (2, frames, 3, 4), (1, frames, 9, 13)
    coarse, guide = (torch.from_numpy(random.random(shape)).to(DEVICE) for shape in shapes)
    return coarse, guide


@pytest.mark.parametrize(("steps", "sigma_time", "batch_frames"), [(0, 0.7, 3), (1, 0.5, 2), (1, 0.5, 50)])
def test_frames_equal_those_of_the_whole_video(steps: int, sigma_time: float, batch_frames: int) -> None:
    coarse, guide = video(23)
    # float32 would round the bandwidths
    whole = ph.upsample(
        coarse,
        guide,
        sigma_space=(sigma_time, 2.1, 2.1),
        sigma_color=0.3,
        num_iterations=steps,
        spatial_dims=3,
        mode="gaussian",
    )
    read = []

    def frames() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(23):
            read.append(number)
            yield coarse[:, number], guide[:, number]

    found = ph.guided.upsample_frames(
        frames(),
        sigma_time=sigma_time,
        sigma_space=2.1,
        sigma_color=0.3,
        num_iterations=steps,
        batch_frames=batch_frames,
    )
    assert read == []
    first = next(found)
    # no more than is needed
    assert batch_frames == 50 or len(read) < 23
    assert_close(torch.stack([first, *found], dim=1), whole)


def test_few_frames() -> None:
    assert list(ph.guided.upsample_frames(iter([]), sigma_time=1.0)) == []
    coarse, guide = video(1)
    pair = coarse[:, 0].cpu().numpy(), guide[:, 0].cpu().numpy()
    (found,) = ph.guided.upsample_frames([pair])
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 9, 13)


def test_rejects_mismatched_frames() -> None:
    coarse, guide = video(2)
    with pytest.raises(ph.errors.InputError, match="frame 1 has a map"):
        list(ph.guided.upsample_frames([(coarse[:, 0], guide[:, 0]), (coarse[:, 1, 1:], guide[:, 1])]))
    for options in ({"sigma_time": 0.0}, {"batch_frames": 0}, {"num_iterations": -1}):
        with pytest.raises(ph.errors.InputError):
            ph.guided.upsample_frames([], **options)
    with pytest.raises(ph.errors.InputError, match="no parts"):
        ph.guided.Upsampler(guide[:, 0], (3, 4), mode="solver", origin=(0, 0), sigma_color=0.1)
