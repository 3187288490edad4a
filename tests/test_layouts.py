"""Every public function and layer, with inputs and incoming gradients of each layout and dtype.

Results and gradients are those of contiguous float64, up to the rounding of the dtype. Uninitialized memory is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from public_cases import (
    CASES,
    PLACES,
    WITHOUT_DERIVATIVES,
    Layout,
    as_given,
    assert_alike,
    call,
    expanded,
    one_number,
    public_names,
    run,
    sliced,
    transposed,
)
from support import DEVICE, TOLERANCE, assert_close
from torch import Tensor

import permutohedral as ph

# the last is bfloat16, too
MODES = ("float64", "float32", "float16", "bfloat16", "autocast", "reference")


# of inputs and of incoming gradients
LAYOUTS: list[tuple[Layout, Layout]] = [
    (as_given, as_given),
    *((layout, as_given) for layout in (transposed, sliced, expanded)),
    *((as_given, layout) for layout in (transposed, sliced, expanded, one_number)),
]


def test_every_public_name_is_covered() -> None:
    covered = {name.split()[0] for name in CASES} | WITHOUT_DERIVATIVES
    assert covered == set(public_names()), "add a case, or the reason why a name has no derivatives"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_layouts_and_dtypes(name: str, mode: str) -> None:
    case, autocast = CASES[name], mode == "autocast"
    dtype = {"autocast": torch.float32, "reference": torch.bfloat16}.get(mode) or getattr(torch, mode)
    tolerance = case.roundings * TOLERANCE[torch.bfloat16 if autocast else dtype]
    expected: dict[tuple[Layout, ...], dict[str, Tensor]] = {}
    kinds = ["all"]
    # the other dtypes take the same functions
    if mode in ("float32", "bfloat16", "autocast"):
        kinds += ["values"] if any(each.role in PLACES for each in case.inputs().values()) else []
        kinds += ["parameters"] if case.layer is not None else []
    for layouts in LAYOUTS:
        # other layouts change no number
        numbers = tuple(each if each in (expanded, one_number) else as_given for each in layouts)
        for gradients in (*kinds, "none") if layouts[1] is as_given else kinds:
            # backends number lattice points in their own order
            with ph.backends.use("reference" if mode == "reference" else None):
                if numbers not in expected:
                    expected[numbers] = run(case, dtype, layouts, exact=True)
                found = run(case, dtype, layouts, autocast=autocast, gradients=gradients)
            hint = f"{layouts[0].__name__} inputs, {layouts[1].__name__} incoming gradients, {gradients} computed"
            assert_alike(found, expected[numbers], expected[as_given, as_given], tolerance, hint)
            if not (autocast or case.wide):
                assert found["result 0"].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.batch])
def test_batch_of_one(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    alone, inputs = run(case, dtype), case.inputs()
    batch = {key: replace(each, data=each.data[None]) if each.in_batch else each for key, each in inputs.items()}
    found = run(case, dtype, inputs=batch)
    flat = {key: each.reshape(alone[key].shape) for key, each in found.items()}
    assert_alike(flat, alone, alone, case.roundings * TOLERANCE[dtype], "a batch of one")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.empty is not None])
def test_zero_points(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    cut = {
        key: each if each.points is None else replace(each, data=each.data.narrow(each.points, 0, 0))
        for key, each in case.inputs().items()
    }
    if not case.empty:
        with pytest.raises(ph.errors.InputError):
            run(case, dtype, inputs=cut)
        return
    for key, each in run(case, dtype, inputs=cut).items():
        assert bool(each.isfinite().all()), key
        assert not each.any() or key.startswith("result"), key


@pytest.mark.skipif(DEVICE.type != "cpu", reason="arrays are on the CPU")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.arrays])
def test_arrays_with_negative_strides(name: str) -> None:
    case = CASES[name]

    def flipped(array: NDArray[Any]) -> NDArray[Any]:
        return np.flip(np.flip(array).copy())

    numbers = {key: each.data.float() for key, each in case.inputs().items()}
    arrays = {key: flipped(each.numpy()) if each.dim() else each for key, each in numbers.items()}
    for found, expected in zip(call(case, None, arrays), call(case, None, numbers), strict=True):
        assert_close(torch.as_tensor(found), expected)
