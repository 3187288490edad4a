"""Stacks of transformed images: features, first layers, classifiers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from experiments.invariance.features import rotation_features, snap_sigma
from experiments.invariance.model import (
    CopiesStem,
    InvariantLeNet,
    LevelStem,
    Stack,
    StackStem,
    build_invariance_model,
    pooled_levels,
    whole_circle,
)
from experiments.mnist.model import SIZE
from permutohedral.errors import InputError

# twelve steps of 30 degrees
THIRTY = 28.0


def test_a_quarter_turn_is_the_rotated_image() -> None:
    height, width = 4, 6
    image = torch.rand(height, width)
    turned = torch.rot90(image)
    features = rotation_features(height, width, torch.tensor([0.0, 90.0], dtype=torch.float64))
    # the middle stays where it is, so the corner of the turned image moves
    corner = torch.tensor([(height - width) / 2, (width - height) / 2], dtype=torch.float64)
    place = (features[height * width :, :2] - corner).round().long()
    assert torch.equal(turned[place[:, 0], place[:, 1]], image.flatten())
    assert torch.equal(features[: height * width, :2], ph.features.positions((height, width), dtype=torch.float64))
    assert features[:, 2].unique().tolist() == [0.0, 9.0]


@pytest.mark.parametrize("sigma", [10.0, 25.0, 400.0])
def test_a_repeated_signal_is_filtered_without_a_seam(sigma: float) -> None:
    """With the snapped bandwidth results a period apart agree; with another one they do not."""
    angles = 360 * torch.rand(200, dtype=torch.float64, device=DEVICE)
    positions, values = torch.rand(2, 200, 2, dtype=torch.float64, device=DEVICE)
    weight = torch.randn(15, 2, 1, dtype=torch.float64, device=DEVICE)
    turns = max(2, math.ceil(3 * 2 * sigma / 360))

    def seam(bandwidth: float) -> tuple[Tensor, Tensor]:
        repeated = torch.cat([angles + 360 * turn for turn in range(-turns, turns + 2)])
        features = torch.cat([3 * positions.repeat(2 * turns + 2, 1), repeated[:, None] / bandwidth], dim=1)
        targets = torch.cat([3 * positions, angles[:, None] / bandwidth], dim=1)
        beyond = torch.cat([3 * positions, (angles + 360)[:, None] / bandwidth], dim=1)
        filtered = [
            ph.permutohedral_filter(values.repeat(2 * turns + 2, 1), features, weight, points)
            for points in (targets, beyond)
        ]
        return filtered[0], filtered[1]

    here, there = seam(snap_sigma(sigma))
    assert_close(there, here)
    here, there = seam(1.03 * snap_sigma(sigma))
    assert float((there - here).norm()) > 0.001 * float(here.norm())


def digits(number: int = 2) -> Tensor:
    """Return random images with an empty border, `[number, 28, 28]`."""
    return functional.pad(torch.rand(number, 20, 20), (4, 4, 4, 4)).to(DEVICE)


def as_values(images: Tensor) -> Tensor:
    return images.reshape(len(images), SIZE * SIZE, 1)


def stem_of(stack: Stack, **options: Any) -> StackStem:
    return StackStem(3, stack, **options).to(DEVICE)


def levels_of(stem: LevelStem, images: Tensor) -> Tensor:
    """Return `[images, levels, channels, 24, 24]`."""
    output: Tensor = stem(as_values(images))
    return output.detach().reshape(len(images), stem.num_levels, *output.shape[1:])


@pytest.mark.parametrize("neighborhood_size", [1, 2])
def test_rotating_the_image_moves_the_result_along_the_stack(neighborhood_size: int) -> None:
    """A quarter turn needs no interpolation; it is three levels of 30 degrees."""
    stem = stem_of(Stack("rotation", THIRTY, levels=3), neighborhood_size=neighborhood_size)
    assert stem.stack.spacing == pytest.approx(30.0)
    images = digits()
    upright, turned = levels_of(stem, images), levels_of(stem, torch.rot90(images, dims=(1, 2)))
    assert_close(turned[:, :4], upright[:, 3:].cpu())
    assert float((turned - upright).norm()) > 0.1 * float(upright.norm())


def test_copies_are_rotated_and_convolved_one_by_one() -> None:
    stem = CopiesStem(3, Stack("rotation", THIRTY, levels=3)).to(DEVICE)
    images = digits()
    upright, turned = levels_of(stem, images), levels_of(stem, torch.rot90(images, dims=(1, 2)))
    assert_close(turned[:, :4], upright[:, 3:].cpu(), torch.float32)
    assert_close(upright[:, 3], stem.convolution(images[:, None]).detach().cpu())
    assert float((turned - upright).norm()) > 0.1 * float(upright.norm())


def test_angles_wrap_around() -> None:
    stem = stem_of(Stack("rotation", THIRTY, levels=8))
    output = levels_of(stem, digits())
    assert_close(output[:, :5], output[:, 12:].cpu())
    # so all rotations, pooled, do not change under rotation
    stem = stem_of(whole_circle(Stack("rotation", THIRTY, levels=2)))
    assert stem.num_levels == 13
    images = digits()
    before, after = (
        pooled_levels(stem, as_values(seen)).detach() for seen in (images, torch.rot90(images, dims=(1, 2)))
    )
    assert_close(after, before.cpu())


def test_the_pooled_score_sums_over_levels() -> None:
    model = build_invariance_model("stack", "rotation", {"bandwidth": 20.0, "levels": 1, "channels": [3, 4]})
    model = model.to(DEVICE).eval()
    assert isinstance(model, InvariantLeNet)
    values = as_values(digits(3))
    scores = model.level_scores(values)
    assert scores.shape == (3, 3, 10)
    assert_close(model(values), scores.exp().sum(dim=1).log().detach().cpu())
    # the middle level is LeNet on the image as it is
    alone = model.stem(values).reshape(3, 3, 3, 24, 24)[:, 1]
    pooled = model._pool(model.convolution(model._pool(alone)))
    expected = model.classes(functional.relu(model.hidden(pooled.flatten(1))))
    assert_close(scores[:, 1], expected.detach().cpu())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": 0.0, "levels": 1}, "bandwidth must be positive"),
        ({"bandwidth": 1.0, "levels": -1}, "levels must be at least 0"),
        ({"bandwidth": 1.0, "levels": 1, "sigma_space": -1.0}, "sigma_space must be positive"),
        ({"levels": 1}, "options do not fit the model stack"),
        ({"bandwidth": 1.0, "levels": 1, "size": 3}, "options do not fit the model stack"),
    ],
)
def test_rejects_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_invariance_model("stack", "rotation", options)


def test_rejects_scattered_points() -> None:
    model = build_invariance_model("stack", "rotation", {"bandwidth": 20.0, "levels": 1})
    with pytest.raises(InputError, match="positions must be None"):
        model(torch.rand(1, 784, 1), torch.rand(1, 784, 2))
