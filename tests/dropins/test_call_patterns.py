"""Calls of programs that use pydensecrf, compared with pydensecrf2's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dropin_cases import FIELDS, Library, photo
from numpy.typing import NDArray

from permutohedral.compat.pydensecrf import densecrf, utils

RECORDED = np.load(Path(__file__).parent / "pydensecrf.npz")
LIBRARY = Library(densecrf, utils)
# Positions on facets of the lattice are rounded to either side. A shift of all features by 1e-6 moves pydensecrf2's own
# marginals by 0.006, and makes both libraries agree to 1e-6.
TOLERANCES = {"CellSeg3D": 1e-2}


@pytest.mark.parametrize("name", FIELDS)
def test_agrees_with_recorded_marginals(name: str) -> None:
    raw = FIELDS[name](LIBRARY, photo())
    found, expected = np.array(raw), RECORDED[name] / 65535
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCES.get(name, 1e-3))
    assert (np.argmax(raw, axis=0) == expected.argmax(axis=0)).mean() >= 0.9999


def layouts(image: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Return images as loaders make them: transposed by torch, mirrored, and cut out of a batch."""
    return {
        "channels first": np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0),
        "mirrored": np.ascontiguousarray(image[:, ::-1])[:, ::-1],
        "batch": np.stack([image, image])[1],
        "column-major": np.asfortranarray(image),
    }


@pytest.mark.parametrize("name", layouts(photo()))
def test_memory_layouts_do_not_matter(name: str) -> None:
    solve = FIELDS["SEAM, PSA"]
    np.testing.assert_array_equal(solve(LIBRARY, layouts(photo())[name]), solve(LIBRARY, photo()))
