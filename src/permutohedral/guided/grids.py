"""Coarse grids over fine ones: positions, means over cells, interpolation, and windows of coarse samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from permutohedral.errors import InputError
from permutohedral.features import Sigma
from permutohedral.lattice.geometry import reach
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import surely_all

Sampling = Literal["area", "point"]

_POOL: dict[int, Callable[[Tensor, Any], Tensor]] = {
    1: functional.adaptive_avg_pool1d,
    2: functional.adaptive_avg_pool2d,
    3: functional.adaptive_avg_pool3d,
}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Grids:
    """A coarse grid over a fine one.

    Attributes:
        coarse: extents.
        fine: extents, of the same number of axes.
        sampling: "area" if coarse samples are means of cells, as `torch.nn.functional.interpolate(mode="area")` makes
            them; "point" if they are the fine samples at floor(i N / n), as `fine[::factor]` and
            `interpolate(mode="nearest")` keep them.

    >>> Grids((2,), (8,), "area").positions(torch.float32, "cpu").tolist()
    [[1.5], [5.5]]
    """

    coarse: tuple[int, ...]
    fine: tuple[int, ...]
    sampling: Sampling

    def __post_init__(self) -> None:
        if self.sampling not in ("area", "point"):
            raise InputError(f"sampling must be 'area' or 'point', got {self.sampling!r}")
        if len(self.coarse) != len(self.fine) or min(*self.coarse, *self.fine) < 1:
            raise InputError(f"cannot bring a grid of {self.coarse} to one of {self.fine}")
        if any(coarse > fine for coarse, fine in zip(self.coarse, self.fine, strict=True)):
            raise InputError(
                f"guide must have at least as many samples as the map along each axis, got {list(self.fine)} for a map "
                f"of {list(self.coarse)}; pass the coarse map first and the guide second, both with channels first, "
                "or both last with channels_last=True"
            )

    @property
    def ratios(self) -> list[float]:
        """Number of fine samples per coarse sample, along each axis."""
        return [fine / coarse for coarse, fine in zip(self.coarse, self.fine, strict=True)]

    def positions(self, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Return the positions of the coarse samples, in fine samples: `[coarse samples, axes]`."""
        axes = []
        for coarse, fine in zip(self.coarse, self.fine, strict=True):
            numbers = torch.arange(coarse, device=device)
            if self.sampling == "area":
                axes.append((numbers.to(dtype) + 0.5) * (fine / coarse) - 0.5)
            else:
                # in integers: a quotient rounded before the product loses a sample
                axes.append((numbers * fine).div(coarse, rounding_mode="floor").to(dtype))
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)

    def observe(self, fine: Tensor) -> Tensor:
        """Sample `[..., *fine]` on the coarse grid: `[..., *coarse]`."""
        axes = len(self.fine)
        maps = fine.reshape(-1, *self.fine)
        if self.sampling == "area":
            seen = _POOL[axes](maps, self.coarse)
        else:
            seen = maps.flatten(1).index_select(1, self._kept(fine.device))
        return seen.reshape(*fine.shape[:-axes], *self.coarse)

    def spread(self, coarse: Tensor) -> Tensor:
        """Apply the transpose of `observe`: `[..., *coarse]` to `[..., *fine]`."""
        leading = coarse.shape[: -len(self.coarse)]
        if self.sampling == "point":
            empty = coarse.new_zeros(math.prod(leading), math.prod(self.fine))
            maps = empty.index_add(1, self._kept(coarse.device), coarse.reshape(len(empty), -1))
            return maps.reshape(*leading, *self.fine)
        if all(ratio == int(ratio) for ratio in self.ratios):
            return self._repeat(coarse / math.prod(self.ratios))
        axes = zip(self.coarse, self.fine, range(-len(self.coarse), 0), strict=True)
        for few, many, axis in reversed([*axes]):
            coarse = _spread_axis(coarse, few, many, axis)
        return coarse

    def enlarge(self, coarse: Tensor) -> Tensor:
        """Interpolate without a guide, bicubic in images: `[..., *coarse]` to `[..., *fine]`."""
        axes = len(self.coarse)
        mode = "bicubic" if axes == 2 else _LINEAR[axes]
        maps = coarse.reshape(-1, 1, *self.coarse)
        enlarged = functional.interpolate(maps, self.fine, mode=mode, align_corners=False)
        return enlarged.reshape(*coarse.shape[:-axes], *self.fine)

    def interpolate(self, coarse: Tensor) -> Tensor:
        """Interpolate linearly, and constant beyond the samples: `[..., *coarse]` to `[..., *fine]`.

        >>> Grids((2,), (4,), "point").interpolate(torch.tensor([0.0, 2.0])).tolist()
        [0.0, 1.0, 2.0, 2.0]
        """
        axes, dtype = len(self.coarse), coarse.dtype
        # 16 bits cannot represent the positions of many samples
        coarse = coarse.to(accumulation_dtype(dtype))
        for axis, (few, many) in enumerate(zip(self.coarse, self.fine, strict=True), start=-axes):
            rows = torch.arange(many, device=coarse.device)
            corners, weights = Grids((few,), (many,), self.sampling).corners(rows, coarse.dtype)
            ends = coarse.index_select(axis, corners.flatten().long()).unflatten(axis, corners.shape)
            shape = [many, 2, *[1] * (-axis - 1)]
            coarse = (ends * weights.view(shape)).sum(dim=axis)
        return coarse.to(dtype)

    def _repeat(self, coarse: Tensor) -> Tensor:
        first = coarse.dim() - len(self.coarse)
        for axis, ratio in reversed(list(enumerate(self.ratios))):
            coarse = coarse.unsqueeze(first + axis + 1)
            coarse = coarse.expand(*coarse.shape[: first + axis + 1], int(ratio), *coarse.shape[first + axis + 2 :])
        return coarse.reshape(*coarse.shape[:first], *self.fine)

    def _kept(self, device: torch.device) -> Tensor:
        """Return the rows of the fine samples that "point" keeps, `[coarse samples]`."""
        return rows_of_samples(self.positions(torch.int64, device), self.fine)

    def corners(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the coarse samples around fine ones, and their weights in the linear interpolation.

        Args:
            rows: int64 `[samples]` of the fine grid; larger numbers belong to further items.
            dtype: of the weights.

        Returns:
            int32 and `dtype` `[samples, 2 ** axes]`.
        """
        items, rest = rows.div(math.prod(self.fine), rounding_mode="floor"), rows.remainder(math.prod(self.fine))
        corners, weights = items[:, None], torch.ones(len(rows), 1, dtype=dtype, device=rows.device)
        places = []
        for extent in reversed(self.fine):
            places.append(rest.remainder(extent))
            rest = rest.div(extent, rounding_mode="floor")
        for place, coarse, ratio in zip(reversed(places), self.coarse, self.ratios, strict=True):
            along = (place.to(dtype) + 0.5) / ratio - 0.5 if self.sampling == "area" else place.to(dtype) / ratio
            along = along.clamp(0, coarse - 1)
            low = along.floor()
            part = (along - low)[:, None]
            ends = torch.stack([low.long(), (low.long() + 1).clamp_max(coarse - 1)], dim=1)
            corners = (corners[:, :, None] * coarse + ends[:, None, :]).flatten(1)
            weights = (weights[:, :, None] * torch.cat([1 - part, part], dim=1)[:, None, :]).flatten(1)
        return corners.to(torch.int32), weights


def _spread_axis(coarse: Tensor, few: int, many: int, axis: int) -> Tensor:
    """Apply the transpose of the means over `few` cells of `many` samples along one axis, counted from the last."""
    # cell i covers the samples from floor(i many / few) to below ceil((i + 1) many / few)
    cells = torch.arange(few, device=coarse.device)
    firsts = (cells * many).div(few, rounding_mode="floor")
    sizes = ((cells + 1) * many + few - 1).div(few, rounding_mode="floor") - firsts
    shape = few, *[1] * (-axis - 1)
    means = coarse / sizes.view(shape)
    owners = (torch.arange(many, device=coarse.device) * few).div(many, rounding_mode="floor")
    # the first sample of a cell may be the last of the cell before, which owns it
    is_shared = (owners[firsts] < cells).view(shape)
    return means.index_select(axis, owners).index_add(axis, firsts, torch.where(is_shared, means, 0.0))


def rows_of_samples(places: Tensor, extents: tuple[int, ...]) -> Tensor:
    """Return the rows of samples at integer positions `[samples, axes]`, the last axis fastest.

    >>> rows_of_samples(torch.tensor([[1, 2]]), (3, 5)).tolist()
    [7]
    """
    rows = torch.zeros(len(places), dtype=torch.int64, device=places.device)
    for axis, extent in enumerate(extents):
        rows = rows * extent + places[:, axis].clamp(0, extent - 1)
    return rows


def fill_unknown(maps: Tensor, sample_weight: Tensor, axes: int) -> Tensor:
    """Fill samples of weight zero with means over increasingly large surroundings.

    Args:
        maps: `[items, channels, *space]`, finite.
        sample_weight: `[items, 1 or channels, *space]`, not negative; positive somewhere in each item and channel.
        axes: number of spatial axes.

    >>> fill_unknown(torch.tensor([[[1.0, 0.0, 0.0]]]), torch.tensor([[[1.0, 0.0, 0.0]]]), 1).tolist()
    [[[1.0, 1.0, 1.0]]]
    """
    known = sample_weight > 0
    extents = tuple(maps.shape[2:])
    # each item has a known sample, which is then the only one
    if max(extents) == 1 or surely_all(known):
        return maps
    half = tuple((extent + 1) // 2 for extent in extents)
    mass = _POOL[axes](sample_weight, half)
    sums = _POOL[axes](maps * sample_weight, half)
    below = fill_unknown(sums / torch.where(mass > 0, mass, 1.0), mass, axes)
    filled = functional.interpolate(below, extents, mode=_LINEAR[axes], align_corners=False)
    return torch.where(known, maps, filled)


@dataclass(frozen=True, eq=False)
class Windows:
    """The coarse samples that can have weight at each fine sample: a window of the coarse grid.

    The window covers the reach of the Gaussian and the corners of linear interpolation. A coarse sample has a slot, its
    position modulo the window size, which is unique within a window. Filtering one indicator channel per slot therefore
    yields the weights of all coarse samples at all targets.

    Attributes:
        grids: coarse and fine.
        sizes: window size along each axis.
        starts: for each axis int64 `[fine extent]`, the first coarse position of the window.

    >>> windows = find_windows(Grids((4,), (32,), "area"), 2.0)
    >>> windows.sizes, windows.samples().tolist()[12:14]
    ((3,), [[0, 1, 2], [3, 1, 2]])
    """

    grids: Grids
    sizes: tuple[int, ...]
    starts: tuple[Tensor, ...]

    @property
    def slots(self) -> int:
        """Number of slots."""
        return math.prod(self.sizes)

    def slots_of(self, samples: Tensor) -> Tensor:
        """Return the slot of each coarse sample, int64; larger numbers belong to further items."""
        rest, slots, stride = samples.long(), torch.zeros_like(samples, dtype=torch.int64), 1
        for extent, size in zip(reversed(self.grids.coarse), reversed(self.sizes), strict=True):
            slots = slots + rest.remainder(extent).remainder(size) * stride
            rest, stride = rest.div(extent, rounding_mode="floor"), stride * size
        return slots

    def indicators(self, items: int, dtype: torch.dtype) -> Tensor:
        """Return a one in the slot of each coarse sample, `[items * coarse samples, slots]`."""
        number = math.prod(self.grids.coarse)
        slots = self.slots_of(torch.arange(number, device=self.starts[0].device))
        rows = torch.zeros(number, self.slots, dtype=dtype, device=slots.device).scatter_(1, slots[:, None], 1.0)
        return rows.repeat(items, 1)

    def samples(self, items: int = 1) -> Tensor:
        """Return the coarse sample in each slot of each window, int32 `[items * fine samples, slots]`."""
        device, number = self.starts[0].device, math.prod(self.grids.coarse)
        slots = torch.arange(self.slots, device=device)
        # each axis adds its stride times the position, for all slots, so that memory is read in order
        table = (torch.arange(items, device=device) * number).to(torch.int32)[:, None].expand(-1, self.slots)
        stride, after = number, self.slots
        for extent, size, start in zip(self.grids.coarse, self.sizes, self.starts, strict=True):
            stride, after = stride // extent, after // size
            own = slots.div(after, rounding_mode="floor").remainder(size)
            along = (start[:, None] + (own - start[:, None]).remainder(size)) * stride
            table = (table[:, None, :] + along.to(torch.int32)).view(-1, self.slots)
        return table


def find_windows(grids: Grids, sigma_space: Sigma, device: torch.device | str = "cpu") -> Windows:
    """Return the windows of the separable Gaussian of bandwidth `sigma_space`, in fine samples."""
    axes = len(grids.fine)
    sigmas = torch.as_tensor(sigma_space, dtype=torch.float64, device="cpu").detach().expand(axes).tolist()
    sizes, starts = [], []
    for axis, (coarse, fine, ratio) in enumerate(zip(grids.coarse, grids.fine, grids.ratios, strict=True)):
        far = max(reach(axis) * sigmas[axis], ratio + 1)
        samples = Grids((coarse,), (fine,), grids.sampling).positions(torch.float64, "cpu")[:, 0]
        places = torch.arange(fine, dtype=torch.float64, device="cpu")
        first = torch.searchsorted(samples, places - far, right=True)
        size = int((torch.searchsorted(samples, places + far) - first).max())
        sizes.append(size)
        starts.append(first.clamp_max(coarse - size).to(device))
    return Windows(grids, tuple(sizes), tuple(starts))
