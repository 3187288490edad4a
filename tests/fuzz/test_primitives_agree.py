"""Random keys, tables and rows: the integer primitives agree with the reference to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuzz.agreement import OTHERS, forced_threads, often
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support import DEVICE, TOLERANCE, relative_error
from torch import Tensor

from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import dispatch, reference

pytestmark = pytest.mark.skipif(not OTHERS, reason="the reference is the only backend here")

threads = st.sampled_from([1, 2, 3, 5])
backends = st.sampled_from(OTHERS or ["reference"])

# keys of points leave room for the offsets of any neighborhood
LARGEST_KEY = 2**30


@st.composite
def key_rows(draw: st.DrawFn, columns: int, vertices: bool = True) -> Tensor:
    """Keys of vertices, or any integers, with repetitions, near zero or at the ends of the range."""
    rows = draw(st.sampled_from([0, 1, 2, 9, 60]))
    wide = st.integers(-LARGEST_KEY, LARGEST_KEY)
    numbers = st.integers(-3, 3) | wide | st.sampled_from([-LARGEST_KEY, LARGEST_KEY, 2**24, -(2**24), 2**16])
    keys: NDArray[np.int64] = draw(arrays(np.int64, (rows, columns), elements=numbers))
    keys[:, 0] = np.abs(keys[:, 0])
    if vertices or draw(st.booleans()):
        # congruent modulo d+1, as coordinates of a vertex are
        inside = keys[:, 1:].clip(columns - LARGEST_KEY, LARGEST_KEY - columns)
        keys[:, 1:] = inside // columns * columns + keys[:, :1] % columns
    if rows and draw(st.booleans()):
        keys = keys[np.random.default_rng(rows).integers(0, rows, size=rows)]
    return torch.from_numpy(keys.clip(-LARGEST_KEY, LARGEST_KEY)).to(device=DEVICE, dtype=torch.int32)


def rows_of(keys: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in keys.tolist()]


@often
@given(data=st.data(), columns=st.integers(2, 8), threads=threads, backend=backends)
def test_index_keys(data: st.DataObject, columns: int, threads: int, backend: str) -> None:
    keys = data.draw(key_rows(columns))
    primitives = dispatch._by_name(backend).load()
    with forced_threads(backend, threads):
        unique, inverse, _ = primitives.index_keys(keys)
    assert len(set(rows_of(unique))) == len(unique)
    assert set(rows_of(unique)) == set(rows_of(keys))
    assert torch.equal(unique[inverse.long()], keys)


@often
@given(data=st.data(), columns=st.integers(2, 6), size=st.integers(0, 2), threads=threads, backend=backends)
def test_find_neighbors(data: st.DataObject, columns: int, size: int, threads: int, backend: str) -> None:
    """Sources, targets and offsets that have nothing to do with each other, or all."""
    primitives = dispatch._by_name(backend).load()
    neighborhood = Neighborhood(columns - 1, min(size, 1) if columns > 4 else size)
    offsets, opposite = neighborhood.offsets(DEVICE), None
    source = data.draw(key_rows(columns))
    with forced_threads(backend, threads):
        keys, _, table = primitives.index_keys(source)
    if data.draw(st.booleans()):
        target, opposite = keys, neighborhood.opposite(DEVICE)
    else:
        target = torch.cat([data.draw(key_rows(columns, vertices=False)), keys])
        target[:, 1:] += offsets[data.draw(st.integers(0, len(offsets) - 1))]
    if data.draw(st.booleans()):
        table = table[:0]
    with forced_threads(backend, threads):
        found = primitives.find_neighbors(keys, table, target, offsets, opposite)
    empty = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert torch.equal(found, reference.find_neighbors(keys, empty, target, offsets))


@often
@given(
    shape=st.tuples(st.sampled_from([0, 1, 5, 33, 200]), st.sampled_from([1, 2, 7, 50]), st.integers(1, 7)),
    channels=st.sampled_from([0, 1, 2, 3, 4, 7, 8, 9, 16, 33]),
    double=st.booleans(),
    threads=threads,
    backend=backends,
)
def test_splat_and_slice(shape: tuple[int, int, int], channels: int, double: bool, threads: int, backend: str) -> None:
    """Vertices in any order, all the same or far apart; weights that need not be barycentric."""
    points, lattice_points, corners = shape
    dtype = torch.float64 if double else torch.float32
    generator = torch.Generator().manual_seed(points * 1000 + lattice_points * 10 + corners)
    vertices = torch.randint(lattice_points, (points, corners), generator=generator, dtype=torch.int32).to(DEVICE)
    weights = torch.rand(points, corners, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
    values = torch.randn(points, channels, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
    rows = torch.randn(lattice_points, channels, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
    primitives = dispatch._by_name(backend).load()
    with forced_threads(backend, threads):
        splatted = primitives.splat(values, vertices, weights, lattice_points)
        sliced = primitives.slice(rows, vertices, weights)
        gradient = primitives.barycentric_gradient(values, rows, vertices)
    assert relative_error(splatted, reference.splat(values, vertices, weights, lattice_points)) <= TOLERANCE[dtype]
    assert relative_error(sliced, reference.slice(rows, vertices, weights)) <= TOLERANCE[dtype]
    # products of either sign: what they are rounded by is relative to their magnitudes
    expected = reference.barycentric_gradient(values, rows, vertices)
    magnitude = reference.barycentric_gradient(values.abs(), rows.abs(), vertices)
    assert bool(((gradient - expected).abs() <= TOLERANCE[dtype] * magnitude).all())
