"""Stores that are written part by part: what is stored, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("zarr", reason="zarr is not installed")

import zarr

from permutohedral.arrays.sources import open_source
from permutohedral.arrays.stores import make_store, write_part


@pytest.mark.parametrize("empty", [False, True])
def test_chunks_of_zeros_are_not_stored(tmp_path: Path, empty: bool) -> None:
    """Microscopes see much of nothing; an odd extent ends in the middle of a chunk."""
    like: Any = {"shape": (21, 16), "chunks": (8, 8), "dtype": "uint8", "dimension_names": ("y", "x")}
    zarr.create_array(str(tmp_path / "in.zarr"), **like)
    make_store(tmp_path / "out.zarr", open_source(tmp_path / "in.zarr"), (16, 16))
    part = np.zeros((5, 16), np.uint8)
    part[4, 7] = 1
    part[0, 15] = 0 if empty else 1
    write_part(tmp_path / "out.zarr", (slice(16, 21), slice(0, 16)), part)
    stored = sorted(str(path.relative_to(tmp_path / "out.zarr" / "c")) for path in tmp_path.glob("out.zarr/c/*/*"))
    assert stored == (["2/0"] if empty else ["2/0", "2/1"])
    found: Any = zarr.open_array(str(tmp_path / "out.zarr"), mode="r")
    np.testing.assert_array_equal(found[...], np.concatenate([np.zeros((16, 16), np.uint8), part]))
