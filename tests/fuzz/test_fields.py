"""Random programs for the pydensecrf drop-in give a result without NaN, or a ValueError or TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from permutohedral.compat.pydensecrf import densecrf as dcrf
from permutohedral.compat.pydensecrf import utils

Random = np.random.Generator

NUMBERS: list[Any] = [0, 1, 3, 3.0, -2, 0.5, 1e-40, 1e30, 3e38, float("nan"), float("inf"), None, "3", True, 2**70]
VALUES = np.array([0, 1, -1, 0.3, 5, 1e-42, 1e20, 3e38, np.nan, np.inf, -np.inf], np.float32)


def pick(random: Random, options: list[Any], usual: Any, share: float = 0.85) -> Any:
    """`usual` most of the time."""
    return usual if random.random() < share else options[random.integers(len(options))]


def array(random: Random, *shape: int, scale: float = 2.0) -> Any:
    """Mostly a float32 array of this shape; else of odd numbers, another shape or dtype, or no array."""
    given: Any = (random.normal(size=shape) * scale).astype(np.float32)
    kind = random.integers(20)
    if kind == 0:
        given = VALUES[random.integers(len(VALUES), size=shape)]
    elif kind == 1 and given.size:
        given.flat[random.integers(given.size)] = VALUES[random.integers(len(VALUES))]
    elif kind == 2:
        given = given[..., : random.integers(shape[-1] + 1)].copy()
    elif kind == 3:
        given = [None, given.tolist(), given.astype(float), given[None], given.T, given.astype(np.uint8)][
            random.integers(6)
        ]
    return given


def compat(random: Random, labels: int) -> Any:
    kind = random.integers(4)
    if kind == 0:
        return array(random, labels)
    return array(random, labels, labels) if kind == 1 else pick(random, NUMBERS, random.normal() * 5)


def run_program(seed: int) -> str:
    """Build a field, solve it, and say what came out.

    Raises:
        AssertionError: NaN in a result.
    """
    random = np.random.default_rng(seed)
    width, height, labels = (int(extent) for extent in random.integers(1, 6, 3))
    outcomes: list[str] = []

    def attempt(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (ValueError, TypeError) as error:
            outcomes.append(type(error).__name__)
            return None

    field = attempt(lambda: dcrf.DenseCRF2D(*(pick(random, NUMBERS, size, 0.98) for size in (width, height, labels))))
    if field is None:
        return outcomes[0]
    attempt(lambda: field.setUnaryEnergy(array(random, labels, width * height)))
    add(random, field, attempt, (width, height, labels))
    marginals = attempt(lambda: field.inference(pick(random, [-1, 0, 2.5, None, float("nan")], 2)))
    if marginals is not None:
        assert np.isfinite(marginals).all(), seed
        outcomes.append("marginals")
    step(random, field, attempt, outcomes, seed)
    return outcomes[0]


def add(random: Random, field: dcrf.DenseCRF2D, attempt: Any, sizes: tuple[int, int, int]) -> None:
    """Up to three kernels."""
    width, height, labels = sizes
    for _ in range(random.integers(4)):
        options = {
            "compat": compat(random, labels),
            "kernel": pick(random, [7, None, -1], 1),
            "normalization": pick(random, [9, None, "homogeneous"], int(random.integers(4))),
        }
        kind = random.integers(4)
        if kind == 0:
            attempt(lambda: field.addPairwiseGaussian(pick(random, [*NUMBERS, (1, 2), (1,), ()], 3), **options))  # noqa: B023
        elif kind == 1:
            picture: Any = random.integers(0, 255, (height, width, 3), np.uint8)
            picture = pick(random, [picture[:1], picture[..., :2], picture.astype(float), None], picture)
            sxy, srgb = (pick(random, [*NUMBERS, (1, 2, 3), (1,)], 3) for _ in range(2))
            attempt(lambda: field.addPairwiseBilateral(sxy, srgb, picture, **options))  # noqa: B023
        elif kind == 2:
            features = array(random, int(random.integers(1, 8)), width * height)
            attempt(lambda: field.addPairwiseEnergy(features, **options))  # noqa: B023
        else:
            made = attempt(lambda: utils.create_pairwise_gaussian([pick(random, NUMBERS, 2)] * 2, (height, width)))
            attempt(lambda: field.addPairwiseEnergy(made, **options))  # noqa: B023


def step(random: Random, field: dcrf.DenseCRF2D, attempt: Any, outcomes: list[str], seed: int) -> None:
    """Run the inference step by step."""
    started = attempt(field.startInference)
    if started is None:
        return
    current, first, second = started
    attempt(lambda: field.stepInference(pick(random, [first, np.zeros(3)], current), first, second))
    assert np.isfinite(current).all(), seed
    divergence = attempt(lambda: field.klDivergence(current))
    if divergence is not None:
        outcomes.append("divergence")
        assert not np.isnan(divergence), seed


def test_random_programs() -> None:
    outcomes = {run_program(seed) for seed in range(150)}
    assert {"marginals", "InputError"} <= outcomes
