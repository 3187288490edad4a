"""Random inputs of the fuzz tests: difficult points in every layout, dtype and memory order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import oracle
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import DEVICE
from torch import Tensor

import permutohedral as ph
from permutohedral.lattice.neighborhood import count_taps

Array = NDArray[np.float64]
Layout = Literal["flat", "ragged", "dense", "shared"]
Strides = Literal["plain", "transposed", "every second", "shifted"]

# Triton's interpreter takes a second for what the others do in a millisecond
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

# taps and points beyond these only cost time
MOST_TAPS = 65 if INTERPRETED else 700
NUMBERS_OF_POINTS = [0, 1, 2, 3, 7, 16, *([] if INTERPRETED else [40, 130])]

# what has broken programs before: signed zeros, denormals, the ends of float32, of float64 and of the keys
SPECIAL = (
    *(0.0, -0.0, 5e-324, 1e-310, 1.2e-38, 1e-45, 1e-30, 0.5, 1.0, -1.0, 2.0**-24, 1 - 2.0**-24),
    *(1e3, -1e5, 2.0**22, 2.0**24, 2.0**24 + 1, -1e8, 2.0**30, 2.0**31, 1e12, 2.0**53, -(2.0**63), 1e30, 3.4e38, 1e300),
)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))


@dataclass(frozen=True)
class Points:
    """Features of a point set.

    Attributes:
        features: `[points, d]`.
        generic: inside their simplices and of moderate size, so that what jumps between simplices can be compared.
    """

    features: Array
    generic: bool


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        size: s of the filter.
        dtypes: of the features, and of values and filter.
        layout: how the points form items.
        items: how many items there are; they have equally many points, except ragged ones.
        source: where values come from; of all items one after another, where they do not share a lattice.
        target: where results are wanted, None for the source.
        channels: in, out, and groups.
        halo: of the lattice.
        threads: of the native core.
        strides: how features and values lie in memory.
        seed: of values, filters, and the items of ragged batches.
    """

    size: int
    dtypes: tuple[torch.dtype, torch.dtype]
    layout: Layout
    items: int
    source: Points
    target: Points | None
    channels: tuple[int, int, int]
    halo: int
    threads: int
    strides: Strides
    seed: int

    @property
    def dimension(self) -> int:
        return int(self.source.features.shape[1])

    @property
    def generic(self) -> bool:
        return self.source.generic and (self.target is None or self.target.generic)

    @property
    def magnitude(self) -> float:
        """The largest lattice coordinate, at least one: what rounding errors of the features are multiplied with."""
        points = [self.source] if self.target is None else [self.source, self.target]
        largest = max((float(np.abs(each.features).max(initial=0.0)) for each in points), default=0.0)
        return max(1.0, (self.dimension + 1) * largest)

    def features(self) -> list[Tensor]:
        """Source and target features as tensors."""
        return [
            self._lay_out(self._as_items(torch.from_numpy(points.features).to(self.dtypes[0])))
            for points in (self.source, self.target)
            if points is not None
        ]

    def build(self, features: list[Tensor], separable: bool = False) -> ph.Lattice:
        """Build the lattice with the current backend."""
        target = features[1] if len(features) > 1 else None
        batch = target_batch = None
        if self.layout == "ragged":
            batch = self._items_of(len(features[0]), 0)
            target_batch = None if target is None else self._items_of(len(target), 1)
        return ph.build_lattice(
            features[0],
            target,
            neighborhood_size=self.size,
            batch=batch,
            target_batch=target_batch,
            halo=self.halo,
            separable=separable,
        )

    def values(self) -> Tensor:
        """Values of the source points."""
        points, channels = len(self.source.features), self.channels[0]
        shape = {
            "flat": (points, channels),
            "ragged": (points, channels),
            "dense": (self.items, points // self.items, channels),
            "shared": (self.items, points, channels),
        }[self.layout]
        return self._lay_out(self._normal(2, *shape))

    def weight(self) -> Tensor:
        """Return a filter that fits."""
        in_channels, out_channels, groups = self.channels
        return self._normal(3, count_taps(self.dimension, self.size), in_channels // groups, out_channels)

    def _normal(self, stream: int, *shape: int) -> Tensor:
        numbers = np.random.default_rng([self.seed, stream]).normal(size=shape)
        return torch.from_numpy(numbers).to(dtype=self.dtypes[1], device=DEVICE)

    def _items_of(self, points: int, stream: int) -> Tensor:
        random = np.random.default_rng([self.seed, stream])
        kind = (torch.int64, torch.int32, torch.uint8)[self.seed % 3]
        return torch.from_numpy(random.integers(0, self.items, size=points)).to(device=DEVICE, dtype=kind)

    def _as_items(self, features: Tensor) -> Tensor:
        if self.layout == "dense":
            return features.reshape(self.items, -1, features.shape[1])
        return features

    def _lay_out(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to another place and order of memory."""
        tensor = tensor.to(DEVICE)
        if self.strides == "transposed":
            return tensor.mT.contiguous().mT
        if self.strides == "every second":
            return tensor.repeat_interleave(2, dim=-1)[..., ::2]
        if self.strides == "shifted":
            flat = torch.cat([tensor.new_full((3,), 7.0), tensor.flatten()])
            return flat[3:].view(tensor.shape)
        return tensor


Kind = Literal["any", "finite", "generic"]


@st.composite
def point_sets(draw: st.DrawFn, points: int, dimension: int, kind: Kind) -> Points:
    """Points of one kind, some of them replaced by copies of others or by special numbers."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places = ["cloud"] if kind == "generic" else ["cloud", "vertices", "grid", "line", "equal"]
    place = draw(st.sampled_from(places))
    scale = draw(st.sampled_from([1.0, 0.01, 5.0] if kind == "generic" else [1.0, 0.01, 5.0, 100.0]))
    features = random.normal(size=(points, dimension)) * scale
    generic = place == "cloud" and scale <= 5
    if place == "vertices":
        # onto vertices, edges and faces of the lattice
        elevated = np.round(features @ oracle.elevation(dimension).T)
        features = elevated @ np.linalg.pinv(oracle.elevation(dimension)).T
    elif place == "grid":
        features = np.round(features)
    elif place == "line":
        features[:, 1:] = 0.0
    elif place == "equal":
        features[:] = features[:1]
    for _ in range(draw(st.integers(0, 2)) if points and kind != "generic" else 0):
        row, column = draw(st.integers(0, points - 1)), draw(st.integers(0, dimension - 1))
        features[row, column] = draw(st.sampled_from(SPECIAL if kind == "finite" else SPECIAL + NOT_FINITE))
        generic = False
    if points and draw(st.booleans()):
        features[draw(st.integers(0, points - 1))] = features[draw(st.integers(0, points - 1))]
    return Points(features, generic)


@st.composite
def dtypes(draw: st.DrawFn) -> tuple[torch.dtype, torch.dtype]:
    """Of features, and of values."""
    features = draw(st.sampled_from([torch.float32, torch.float64]))
    # the interpreter cuts numbers off to bfloat16 where a GPU rounds them
    narrow = [torch.float32, torch.float16] + [torch.bfloat16] * (not INTERPRETED)
    return features, draw(st.sampled_from(narrow if features == torch.float32 else [features]))


FLOAT64 = st.just((torch.float64, torch.float64))


@st.composite
def cases(
    draw: st.DrawFn,
    kind: Kind = "any",
    kinds_of_numbers: st.SearchStrategy[tuple[torch.dtype, torch.dtype]] | None = None,
    layouts: tuple[Layout, ...] = ("flat", "ragged", "dense", "shared"),
    targets: bool = True,
) -> Case:
    """Any call that the documentation allows, with features that may not be allowed if `kind` is "any"."""
    dimension = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 6, 8, 13]))
    size = draw(st.sampled_from([s for s in (0, 1, 1, 2) if count_taps(dimension, s) <= MOST_TAPS]))
    layout = draw(st.sampled_from(layouts))
    items = draw(st.integers(1, 4))

    def draw_points(numbers: list[int]) -> Points:
        number = draw(st.sampled_from(numbers))
        return draw(point_sets(number // items * items if layout == "dense" else number, dimension, kind))

    groups, width, out_width = draw(
        st.sampled_from([(1, 1, 1), (1, 3, 2), (2, 1, 2), (3, 2, 1), (1, 8, 5), (1, 17, 4)])
    )
    return Case(
        size=size,
        dtypes=draw(dtypes() if kinds_of_numbers is None else kinds_of_numbers),
        layout=layout,
        items=items,
        source=draw_points(NUMBERS_OF_POINTS),
        target=draw_points([0, 1, 5, 24]) if targets and draw(st.booleans()) else None,
        channels=(groups * width, groups * out_width, groups),
        # the halo of many points in many dimensions only costs time
        halo=draw(st.integers(0, 1)) if dimension <= 4 else 0,
        threads=draw(st.sampled_from([1, 2, 3, 5])),
        strides=draw(st.sampled_from(["plain", "transposed", "every second", "shifted"])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
