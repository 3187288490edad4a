"""The drop-in for rloss's bilateralfilter: recorded results, hostile buffers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropin_cases import PLANES
from numpy.typing import NDArray

from permutohedral.compat.bilateralfilter import bilateralfilter, bilateralfilter_batch
from permutohedral.errors import InputError

RECORDED = np.load(Path(__file__).parent / "bilateralfilter.npz")
PLANE = PLANES["rloss"]


@pytest.mark.parametrize("name", PLANES)
def test_agrees_with_recorded_results(name: str) -> None:
    images, ins = PLANES[name].buffers()
    outs = np.full(ins.size + 2, 7, np.float32)
    bilateralfilter_batch(images, ins, outs[1:-1], *PLANES[name])
    np.testing.assert_allclose(outs[1:-1], RECORDED[name], rtol=1e-3)
    assert outs[0] == outs[-1] == 7


def test_single_image_is_a_batch_of_one() -> None:
    images, ins = PLANE.buffers()
    out = np.zeros_like(ins)
    bilateralfilter(images, ins, out, *PLANE[2:])
    np.testing.assert_allclose(out, RECORDED["rloss"], rtol=1e-3)


def test_other_numbers_are_converted() -> None:
    """SWIG converts inputs of any dtype and stride, and read-only ones."""
    images, ins = PLANE.buffers()
    out = np.zeros_like(ins)
    spread = np.zeros(2 * ins.size)
    spread[::2] = ins
    colors = images.astype(np.uint8)
    colors.flags.writeable = False
    bilateralfilter_batch(colors, spread[::2], out, *PLANE)
    np.testing.assert_allclose(out, RECORDED["rloss"], rtol=1e-3)


def test_result_may_overlap_the_input() -> None:
    """The result of the first image covers the beginning of the second."""
    planes = PLANES["AFA, ToCo"]
    images, ins = planes.buffers()
    shared = np.concatenate([ins, np.zeros(50, np.float32)])
    bilateralfilter_batch(images, shared[:-50], shared[50:], *planes)
    np.testing.assert_allclose(shared[50:], RECORDED["AFA, ToCo"], rtol=1e-3)


Arguments = dict[str, Any]


def arguments() -> Arguments:
    images, ins = PLANE.buffers()
    names = ("N", "K", "H", "W", "sigmargb", "sigmaxy")
    return {"images": images, "ins": ins, "outs": np.full_like(ins, 7), **dict(zip(names, PLANE, strict=True))}


def with_nan(array: NDArray[np.float32], value: float = np.nan) -> NDArray[np.float32]:
    array[3] = value
    return array


def read_only(array: NDArray[np.float32]) -> NDArray[np.float32]:
    array.flags.writeable = False
    return array


BAD: dict[str, tuple[type[Exception], str, Callable[[Arguments], Arguments]]] = {
    **{
        f"{name}={value}": (InputError, name, lambda _, name=name, value=value: {name: value})  # type: ignore[misc]
        for name in ("N", "K", "H", "W")
        for value in (0, -1, 2**40)
    },
    "width of text": (TypeError, "W", lambda _: {"W": "28"}),
    "larger image": (InputError, "images must have", lambda given: {"H": given["H"] + 1}),
    "more classes": (InputError, "ins must have", lambda given: {"K": given["K"] + 1}),
    "small output": (InputError, "outs must have", lambda given: {"outs": given["outs"][:-1]}),
    "wide output": (InputError, "outs must be a flat", lambda given: {"outs": given["outs"].astype(np.float64)}),
    "strided output": (
        InputError,
        "outs must be a flat",
        lambda given: {"outs": np.full(2 * 2240, 7, np.float32)[::2]},
    ),
    "shaped output": (InputError, "outs must be a flat", lambda given: {"outs": given["outs"].reshape(4, -1)}),
    "shaped input": (InputError, "ins must be flat", lambda given: {"ins": given["ins"].reshape(4, -1)}),
    "read-only output": (InputError, "outs must be a flat", lambda given: {"outs": read_only(given["outs"])}),
    "list output": (TypeError, "outs", lambda given: {"outs": given["outs"].tolist()}),
    "complex input": (TypeError, "ins", lambda given: {"ins": given["ins"].astype(complex)}),
    "text": (TypeError, "images", lambda _: {"images": "photo.png"}),
    "NaN": (InputError, "ins must be finite", lambda given: {"ins": with_nan(given["ins"])}),
    "infinity": (InputError, "images must be finite", lambda given: {"images": with_nan(given["images"], np.inf)}),
    "zero sigma": (InputError, "sigmaxy", lambda _: {"sigmaxy": 0.0}),
    "negative sigma": (InputError, "sigmargb", lambda _: {"sigmargb": -1.0}),
    "NaN sigma": (InputError, "sigmargb", lambda _: {"sigmargb": np.nan}),
    "tiny sigma": (InputError, "feature", lambda _: {"sigmargb": 1e-30}),
    "huge color": (InputError, "feature", lambda given: {"images": with_nan(given["images"], 1e38)}),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_hostile_arguments(name: str) -> None:
    error, message, change = BAD[name]
    given = arguments()
    given |= change(given)
    before = np.array(given["outs"])
    with pytest.raises(error, match=message):
        bilateralfilter_batch(**given)
    np.testing.assert_array_equal(given["outs"], before)


def test_failing_image_leaves_the_output_as_it_was() -> None:
    """The second of two images has colors that no lattice key can hold."""
    planes = PLANES["AFA, ToCo"]
    images, ins = planes.buffers()
    images[-1] = 1e30
    outs = np.full_like(ins, 7)
    with pytest.raises(InputError):
        bilateralfilter_batch(images, ins, outs, *planes)
    assert (outs == 7).all()


@pytest.mark.parametrize("size", [0, 28 * 20 + 1])
def test_single_image_rejects_incomplete_planes(size: int) -> None:
    images, _ = PLANE.buffers()
    with pytest.raises(InputError, match="in_ must have a multiple"):
        bilateralfilter(images, np.zeros(size, np.float32), np.zeros(size, np.float32), *PLANE[2:])
