"""Every public function and layer with zeros, coincident points, weights of zero and infinities.

Results and gradients are finite, and equal to those of inputs close by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from public_cases import CASES, PLACES, Case, Inputs, assert_alike, run
from torch import Tensor

NEARBY = 1e-9
TOLERANCE = 1e-6
# gradients that are taken through the places of points, which jump at the facets of the lattice
THROUGH_PLACES = ("log_scale", "log_sigma", "sigma", "image")

Change = Callable[[Tensor], Tensor]


def changed(inputs: Inputs, roles: tuple[str, ...], change: Change) -> Inputs:
    """Change the numbers of some roles."""
    return {key: replace(each, data=change(each.data)) if each.role in roles else each for key, each in inputs.items()}


def check_limit(name: str, kind: str, at: Inputs, near: Inputs, *without: str) -> None:
    """Check that results and gradients are finite and, where they do not jump, those nearby; `without` some."""
    case = CASES[name]
    found = run(case, torch.float64, inputs=at)
    for key, each in found.items():
        assert bool(each.isfinite().all()), key
    if kind not in case.jumps:
        typical, nearby = run(case, torch.float64), run(case, torch.float64, inputs=near)
        compared = [key for key in found if key.removeprefix("gradient of ") not in without]
        assert_alike(
            {key: found[key] for key in compared}, {key: nearby[key] for key in compared}, typical, TOLERANCE, name
        )


def with_roles(*roles: str) -> list[str]:
    return [name for name, case in CASES.items() if any(each.role in roles for each in case.inputs().values())]


@pytest.mark.parametrize("name", with_roles("values", "logits"))
def test_zeros(name: str) -> None:
    inputs, roles = CASES[name].inputs(), ("values", "logits")
    check_limit(
        name, "zeros", changed(inputs, roles, torch.zeros_like), changed(inputs, roles, lambda data: NEARBY * data)
    )


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["integers", "one_place"])
@pytest.mark.parametrize("name", with_roles(*PLACES))
def test_points_on_facets(name: str, scale: float) -> None:
    inputs = changed(CASES[name].inputs(), PLACES, lambda data: scale * data.round())
    near = changed(inputs, PLACES, lambda data: data + NEARBY * (2 * torch.rand_like(data) - 1))
    places = [key for key, each in inputs.items() if each.role in PLACES]
    check_limit(name, "facets", inputs, near, *places, *THROUGH_PLACES)


def every_third(data: Tensor, number: float) -> Tensor:
    """Put a number in place of every third sample."""
    data = data.clone()
    data.view(-1)[::3] = number
    return data


@pytest.mark.parametrize("name", with_roles("weight"))
def test_weights_of_zero(name: str) -> None:
    case = CASES[name]
    # colors that are alike, so that a sample of weight zero has others nearby
    inputs = changed(case.inputs(), ("guide",), lambda data: data / 20)
    zero, tiny = (changed(inputs, ("weight",), partial(every_third, number=number)) for number in (0.0, NEARBY))
    check_limit(name, "weights", zero, tiny)
    # behind the points, or in front of the pixels
    lost = every_third(torch.zeros_like(zero["sample_weight"].data), torch.nan)
    first = "values" in zero
    nan = changed(zero, ("values",), lambda data: data + (lost[:, None] if first else lost))
    found, expected = (run(case, torch.float64, inputs=each) for each in (nan, zero))
    for each in (found, expected):
        each.pop("gradient of sample_weight")
    assert_alike(found, expected, expected, TOLERANCE, "NaN of weight zero")


# of the layer, whose logarithms are infinite where a label is forbidden
PROBABILITIES = replace(CASES["nn.DenseCRF"], call=lambda layer, **given: layer(**given).exp())
# inputs that may be infinite or zero, and numbers that are as good, if there are such
EXTREMES: dict[str, tuple[Case, dict[str, tuple[float, float | None]]]] = {
    "forbidden labels": (CASES["crf.mean_field"], {"energies": (math.inf, 900.0)}),
    "forbidden labels of pixels": (CASES["crf.bilateral_kernel"], {"energies": (math.inf, 900.0)}),
    "forbidden labels in a layer": (PROBABILITIES, {"logits": (-math.inf, -900.0)}),
    "certain start": (CASES["crf.mean_field"], {"start": (0.0, None)}),
    "marginals of zero": (CASES["crf.free_energy"], {"marginals": (-900.0, -800.0), "energies": (math.inf, 900.0)}),
    "probabilities of zero": (CASES["crf.energies_from_probabilities"], {"probabilities": (0.0, 1e-9)}),
    "probabilities of one": (CASES["crf.energies_from_probabilities"], {"probabilities": (1.0, 1 - NEARBY)}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_extremes(extreme: str, dtype: torch.dtype) -> None:
    case, numbers = EXTREMES[extreme]
    at, near = case.inputs(), case.inputs()
    for key, pair in numbers.items():
        for side, number in zip((at, near), pair, strict=True):
            # a label of every third point or pixel
            data = side[key].data.clone()
            of_label = data[:, 0] if data.dim() == 2 else data[0].view(-1)
            of_label[::3] = math.nan if number is None else number
            side[key] = replace(side[key], data=data)
    found = run(case, dtype, inputs=at)
    for key, each in found.items():
        assert bool(each.isfinite().all()), key
    if not any(near is None for _, near in numbers.values()):
        expected = run(case, dtype, inputs=near)
        assert_alike(found, expected, expected, max(TOLERANCE, 10 * torch.finfo(dtype).eps), extreme)
