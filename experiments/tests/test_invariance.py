"""Stacks of transformed images: features, first layers, classifiers."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from experiments.invariance.run import (
    CopiesStem,
    InvariantLeNet,
    Stack,
    StackStem,
    level_loss,
    rotation_features,
    snap_sigma,
)
from experiments.mnist.model import SIZE

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

    def seam(bandwidth: float) -> list[Tensor]:
        repeated = torch.cat([angles + 360 * turn for turn in range(-turns, turns + 2)])
        features = torch.cat([3 * positions.repeat(2 * turns + 2, 1), repeated[:, None] / bandwidth], dim=1)
        targets = [torch.cat([3 * positions, (angles + turn)[:, None] / bandwidth], dim=1) for turn in (0, 360)]
        return [ph.permutohedral_filter(values.repeat(2 * turns + 2, 1), features, weight, each) for each in targets]

    here, there = seam(snap_sigma(sigma))
    assert_close(there, here)
    here, there = seam(1.03 * snap_sigma(sigma))
    assert float((there - here).norm()) > 0.001 * float(here.norm())


def digits(number: int = 2) -> Tensor:
    """Return random images with an empty border, `[number, 28, 28]`."""
    return functional.pad(torch.rand(number, 20, 20), (4, 4, 4, 4)).to(DEVICE)


def levels_of(stem: nn.Module, images: Tensor) -> Tensor:
    """Return `[images, levels, channels, 24, 24]`."""
    output: Tensor = stem(images.reshape(len(images), SIZE * SIZE, 1))
    return output.detach().reshape(len(images), -1, *output.shape[1:])


@pytest.mark.parametrize("kind", [StackStem, CopiesStem])
def test_rotating_the_image_moves_the_result_along_the_stack(kind: type[StackStem] | type[CopiesStem]) -> None:
    """A quarter turn needs no interpolation; it is three levels of 30 degrees."""
    stem = kind(3, Stack("rotation", THIRTY, levels=3)).to(DEVICE)
    assert stem.stack.spacing == pytest.approx(30.0)
    images = digits()
    upright, turned = levels_of(stem, images), levels_of(stem, torch.rot90(images, dims=(1, 2)))
    assert_close(turned[:, :4], upright[:, 3:].cpu(), torch.float32)
    assert float((turned - upright).norm()) > 0.1 * float(upright.norm())
    if kind is CopiesStem:
        assert_close(upright[:, 3], stem.convolution(images[:, None]).detach().cpu())


def test_angles_wrap_around() -> None:
    stem = StackStem(3, Stack("rotation", THIRTY, levels=8)).to(DEVICE)
    output = levels_of(stem, digits())
    assert_close(output[:, :5], output[:, 12:].cpu())
    # so all rotations, pooled, do not change under rotation
    stem.set_stack(Stack("rotation", THIRTY, levels=2).whole_circle())
    images = digits()
    before, after = (levels_of(stem, seen).amax(dim=1) for seen in (images, torch.rot90(images, dims=(1, 2))))
    assert levels_of(stem, images).shape[1] == 13
    assert_close(after, before.cpu())


def test_the_scaled_image_is_the_image_at_a_level() -> None:
    stack = Stack("scale", math.log(2) / Stack("scale", 1.0, 1).spacing, levels=1)
    assert stack.amounts(1).exp().tolist() == pytest.approx([0.5, 1.0, 2.0])
    positions, features = (part.unflatten(0, (3, SIZE, SIZE)) for part in stack.source(beyond=0))
    # a smaller copy has all pixels, closer together; a larger one is read between the pixels
    assert float(positions[0, 0, 0, 0]) == 0.0
    assert float(features[0, 1, 0, 0] - features[0, 0, 0, 0]) == 0.5
    assert float(positions[2, 1, 0, 0] - positions[2, 0, 0, 0]) == 0.5
    assert torch.equal(features[1, ..., :2], positions[1])


def test_the_pooled_score_sums_over_levels() -> None:
    model = InvariantLeNet(StackStem(3, Stack("rotation", 20.0, levels=1)), (3, 4)).to(DEVICE).eval()
    values = digits(3).reshape(3, SIZE * SIZE, 1)
    scores = model.level_scores(values)
    assert scores.shape == (3, 3, 10)
    assert_close(model(values), scores.exp().sum(dim=1).log().detach().cpu())
    # the loss is that of the pooled score
    labels = torch.tensor([1, 2, 3], device=DEVICE)
    assert_close(level_loss(scores, labels), functional.cross_entropy(model(values), labels).detach().cpu())
