"""U-Nets on cubic grids in plain torch: submanifold voxels, and a grid with multilinear splat and slice.

Sites are sorted keys of 16 bits an axis. Neighbors are found by binary search, convolved by gathering and a matrix
product, and sums over points or children are bags of rows. Everything runs on any device of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.pointnet import mean_of_items
from permutohedral.errors import InputError

NormName = Literal["group", "batch"]

_BITS = 16
# gathered rows that fit the cache of a CPU; a GPU takes as many as fit its memory
_ROWS = {"cpu": 1 << 10, "cuda": 1 << 18}
_GROUP, _HIDDEN = 8, 32


class Links:
    """Weighted links from members to rows, such as from points to their voxels.

    Args:
        keys: int64 `[members, links]`, of the rows.
        weights: `[members, links]`. Default: ones.
    """

    def __init__(self, keys: Tensor, weights: Tensor | None = None) -> None:
        members, each = keys.shape
        ordered, order = keys.reshape(-1).sort()
        self.keys, place, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
        rows = torch.empty_like(order)
        rows[order] = place
        starts = counts.cumsum(0) - counts
        flat = None if weights is None else weights.reshape(-1)
        # of each direction: the rows to sum up, where each sum starts, and weights
        self.up_bags = rows, torch.arange(0, members * each, each, device=keys.device), flat
        self.down_bags = order.div(each, rounding_mode="floor"), starts, None if flat is None else flat[order]
        self.counts: Tensor = counts

    def down(self, values: Tensor) -> Tensor:
        """Sum over the members of each row."""
        return _sum(values, self.down_bags, self.up_bags)

    def up(self, values: Tensor) -> Tensor:
        """Sum over the rows of each member: the transpose of `down`."""
        return _sum(values, self.up_bags, self.down_bags)

    def mean(self, values: Tensor) -> Tensor:
        """Average over the members of each row."""
        return self.down(values) / self.counts[:, None].to(values.dtype)


class _Sum(torch.autograd.Function):
    """A sparse matrix times rows; its derivative is the transposed matrix."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, bags: Any, transposed: Any) -> Tensor:
        ctx.bags = bags, transposed
        rows, starts, weights = bags
        weights = None if weights is None else weights.to(values.dtype)
        return F.embedding_bag(rows, values.contiguous(), starts, mode="sum", per_sample_weights=weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _sum(gradients[0], *ctx.bags[::-1]), None, None


_sum: Callable[..., Tensor] = _Sum.apply


class _Convolve(torch.autograd.Function):
    """Sum over taps of gathered rows times the filter of the tap. Missing neighbors are a row of zeros."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, neighbors: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight, neighbors)
        matrix, padded = weight.flatten(0, 1), _pad(rows)
        result = rows.new_empty(len(rows), weight.shape[2])
        for part in _parts(neighbors):
            torch.mm(_gather(padded, neighbors[part]), matrix, out=result[part])
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight, neighbors = ctx.saved_tensors
        # one gather serves both: a tap meets the gradient at the opposite tap
        opposite, padded = neighbors.flip(1), _pad(gradients[0])
        matrix = weight.transpose(1, 2).flatten(0, 1)
        of_rows = torch.empty_like(rows)
        of_weight = torch.zeros_like(matrix, dtype=torch.promote_types(matrix.dtype, torch.float32))
        for part in _parts(neighbors):
            gathered = _gather(padded, opposite[part])
            torch.mm(gathered, matrix, out=of_rows[part])
            of_weight.addmm_(gathered.mT.to(of_weight.dtype), rows[part].to(of_weight.dtype))
        return of_rows, of_weight.to(weight.dtype).view(weight.mT.shape).mT, None


def _pad(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


def _gather(rows: Tensor, table: Tensor) -> Tensor:
    # twice as fast on a CPU as rows[table]
    return rows.index_select(0, table.reshape(-1)).view(len(table), -1)


def _parts(table: Tensor) -> list[slice]:
    size = _ROWS.get(table.device.type, 1 << 14)
    return [slice(first, min(first + size, len(table))) for first in range(0, len(table), size)]


def convolve(rows: Tensor, weight: Tensor, neighbors: Tensor) -> Tensor:
    """Convolve `rows [sites, in_channels]` with `weight [taps, in_channels, out_channels]`, under autocast too."""
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
        rows, weight = rows.to(dtype), weight.to(dtype)
    apply: Callable[..., Tensor] = _Convolve.apply
    return apply(rows.contiguous(), weight, neighbors)


def pack(places: Tensor, item: Tensor) -> Tensor:
    """Return the keys of `places [..., d]`, whose order is that of the items, then of the first axis."""
    keys = item
    for axis in range(places.shape[-1]):
        keys = (keys << _BITS) + places[..., axis]
    return keys


def unpack(keys: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Return the places `[sites, d]` and items of keys."""
    shifts = torch.arange(dimension - 1, -1, -1, device=keys.device) * _BITS
    return (keys[:, None] >> shifts) & ((1 << _BITS) - 1), keys >> (_BITS * dimension)


@lru_cache
def _offsets(dimension: int) -> list[int]:
    """Return the keys of the 3^d neighbors in ascending order, so that the second half mirrors the first."""
    return [
        sum(step << _BITS * place for place, step in enumerate(reversed(steps)))
        for steps in product((-1, 0, 1), repeat=dimension)
    ]


def find_neighbors(keys: Tensor, offsets: Tensor) -> Tensor:
    """Return the row of each neighbor or the number of rows, `[sites, offsets]`, without waiting for a GPU."""
    wanted = keys[:, None] + offsets
    found = torch.searchsorted(keys, wanted)
    return torch.where(keys[found.clamp_max(len(keys) - 1)] == wanted, found, len(keys))


class GridLevel:
    """Sites of a level, in ascending order of their keys, with a table of neighbors and the item of each."""

    def __init__(self, keys: Tensor, dimension: int) -> None:
        number = len(keys)
        self.keys, self.item = keys, keys >> (_BITS * dimension)
        offsets = _offsets(dimension)
        if keys.is_cuda:
            self.neighbors = find_neighbors(keys, torch.tensor(offsets, device=keys.device))
            return
        self.neighbors = torch.full((number, len(offsets)), number)
        self.neighbors[:, len(offsets) // 2] = torch.arange(number)
        for tap, offset in enumerate(offsets[: len(offsets) // 2]):
            wanted = keys + offset
            found = torch.searchsorted(keys, wanted)
            hit = (keys[found.clamp_max(number - 1)] == wanted).nonzero()[:, 0]
            self.neighbors[hit, tap] = found[hit]
            self.neighbors[found[hit], len(offsets) - 1 - tap] = hit

    @cached_property
    def items(self) -> list[slice]:
        """Return the sites of each item."""
        return [slice(*pair) for pair in pairwise([0, *torch.bincount(self.item).cumsum(0).tolist()])]


class Grid:
    """Levels of a cubic grid with cells of 1, 2, 4, ..., and the links of points and between levels.

    Args:
        positions: float `[points, d]` in cells of the finest level.
        item: int `[points]`, of each point.
        num_levels: number of levels.
        linear: weigh the 2^d sites around a point instead of taking its voxel.
    """

    def __init__(self, positions: Tensor, item: Tensor, num_levels: int, linear: bool) -> None:
        dimension, half = positions.shape[1], 1 << (_BITS - 1)
        base = positions.floor()
        if len(base) and bool((base.abs() >= half - 1).any()):
            raise InputError(f"positions must be within {half - 1:,} cells of the origin")
        share, item = positions - base, item.long()
        corners = torch.tensor(list(product((0, 1), repeat=dimension if linear else 0)), device=item.device).long()
        if linear:
            weights = torch.where(corners.bool(), share[:, None], 1 - share[:, None]).prod(dim=2)
        else:
            corners, weights = corners.new_zeros(1, dimension), None
        # where a point is in its voxel, from -1/2 to 1/2
        self.offsets = share - 0.5
        self.points = Links(pack(base.long()[:, None] + corners + half, item[:, None]), weights)
        self.levels, self.links, self.slots = [GridLevel(self.points.keys, dimension)], [], []
        for _ in range(num_levels - 1):
            places, items = unpack(self.levels[-1].keys, dimension)
            self.links.append(Links(pack(places >> 1, items)[:, None]))
            # which of the 2^d children of its parent a site is
            self.slots.append(((places & 1) << torch.arange(dimension, device=places.device)).sum(dim=1))
            self.levels.append(GridLevel(self.links[-1].keys, dimension))


class GridConv(nn.Module):
    """Convolve with the 3^d sites around each site of one level."""

    def __init__(self, in_channels: int, out_channels: int, dimension: int, level: int) -> None:
        super().__init__()
        taps = 3**dimension
        # about 12 of 27 neighbors are occupied on surfaces
        self.weight = nn.Parameter(torch.randn(taps, in_channels, out_channels) / (0.45 * taps * in_channels) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, rows: Tensor, level: GridLevel) -> Tensor:
        """Map `[sites, in_channels]` to `[sites, out_channels]`."""
        result = convolve(rows, self.weight, level.neighbors)
        return result + self.bias.to(result.dtype)


class GridNorm(nn.Module):
    """Normalize over the sites of each item by groups of channels, or over all sites; then apply a ReLU."""

    def __init__(self, channels: int, norm: NormName) -> None:
        super().__init__()
        self.groups = channels // _GROUP if channels % _GROUP == 0 else 1
        self.norm = nn.BatchNorm1d(channels) if norm == "batch" else nn.GroupNorm(self.groups, channels)

    def forward(self, rows: Tensor, level: GridLevel) -> Tensor:
        if isinstance(self.norm, nn.BatchNorm1d):
            return F.relu(self.norm(rows))
        # one row of sites for each item
        parts = [self.norm(rows[each].mT[None])[0].mT for each in level.items]
        return F.relu(torch.cat(parts).to(rows.dtype))


class GridBlock(nn.Module):
    """Residual block of two normalized convolutions."""

    def __init__(self, channels: int, norm: NormName, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(GridNorm(channels, norm) for _ in range(2))
        self.convolutions = nn.ModuleList(make(channels, channels) for _ in range(2))

    def forward(self, rows: Tensor, level: GridLevel) -> Tensor:
        change = rows
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            change = convolution(norm(change, level), level)
        return rows + change


class GridStride(nn.Module):
    """Go to the next level, down or up: means and copies with mixed channels, or a learned filter of 2^d taps."""

    def __init__(
        self, in_channels: int, out_channels: int, dimension: int, level: int, down: bool, learned: bool
    ) -> None:
        super().__init__()
        self.down, self.taps = down, 2**dimension if learned else 1
        self.mix = nn.Linear(in_channels * (self.taps if down else 1), out_channels * (1 if down else self.taps))

    def forward(self, rows: Tensor, grid: Grid, level: int) -> Tensor:
        links = grid.links[level]
        if self.taps > 1:
            place = links.up_bags[0] * self.taps + grid.slots[level]
        if not self.down:
            mixed: Tensor = self.mix(rows)
            return links.up(mixed) if self.taps == 1 else mixed.view(len(rows) * self.taps, -1)[place]
        if self.taps == 1:
            gathered = links.mean(rows)
        else:
            children = rows.new_zeros(len(links.keys) * self.taps, rows.shape[1]).index_copy(0, place, rows)
            gathered = children.view(len(links.keys), -1)
        result: Tensor = self.mix(gathered)
        return result


class GridUNet(nn.Module):
    """U-Net with the architecture of `permutohedral.nn.LatticeUNet` on a cubic grid.

    Args:
        in_channels: of the values.
        num_classes: number of classes.
        dimension: d of the positions.
        cell: width of a cell of the finest level, in units of the positions.
        widths: channels of each level.
        head: score "points" or "clouds".
        linear: multilinear splat and slice; default: voxels, with the offset of a point in its voxel as further values.
        learned: learn the filters between levels; default: means.
        norm: "group" or "batch".
        density_input: feed the logarithm of the number of points of a site.

    >>> network = GridUNet(2, 3, cell=0.5, widths=(8, 16))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    conv: type[nn.Module] = GridConv
    stride: type[nn.Module] = GridStride

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dimension: int = 3,
        *,
        cell: float,
        widths: Sequence[int],
        head: Literal["points", "clouds"] = "points",
        linear: bool = False,
        learned: bool = False,
        norm: NormName = "group",
        density_input: bool = True,
    ) -> None:
        super().__init__()
        self.cell, self.linear, self.density_input, self.classifies = cell, linear, density_input, head
        in_channels += 0 if linear else dimension

        def make_conv(level: int) -> Callable[[int, int], nn.Module]:
            return lambda inward, outward: self.conv(inward, outward, dimension, level)

        def make_stride(inward: int, outward: int, level: int, down: bool) -> nn.Module:
            return self.stride(inward, outward, dimension, level, down, learned)

        self.enter = make_conv(0)(in_channels + 1, widths[0])
        self.down_blocks = nn.ModuleList(GridBlock(width, norm, make_conv(level)) for level, width in enumerate(widths))
        steps = [(level, *pair) for level, pair in enumerate(pairwise(widths))]
        self.downs = nn.ModuleList(make_stride(a, b, level, True) for level, a, b in steps)
        steps = steps if head == "points" else []
        self.ups = nn.ModuleList(make_stride(b, a, level, False) for level, a, b in steps)
        self.joins = nn.ModuleList(make_conv(level)(2 * a, a) for level, a, _ in steps)
        self.up_blocks = nn.ModuleList(GridBlock(a, norm, make_conv(level)) for level, a, _ in steps)
        seen, hidden = (widths[0] + in_channels, _HIDDEN) if head == "points" else (sum(widths), widths[-1])
        self.head = nn.Sequential(nn.Linear(seen, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def build(self, positions: Tensor, batch: Tensor) -> Any:
        """Return the grid of positions in cells."""
        return Grid(positions, batch, len(self.down_blocks), self.linear)

    def forward(self, values: Tensor, positions: Tensor, batch: Tensor) -> Tensor:
        """Score points or clouds."""
        grid = self.build(positions / self.cell, batch)
        if not self.linear:
            values = torch.cat([values, grid.offsets.to(values.dtype)], dim=1)
        sums = grid.points.down(torch.cat([values, values.new_ones(len(values), 1)], dim=1))
        last = sums[:, -1:].log1p() if self.density_input else torch.ones_like(sums[:, -1:])
        rows = self.enter(torch.cat([sums[:, :-1] / sums[:, -1:].clamp_min(1e-6), last], dim=1), grid.levels[0])
        skips = [self.down_blocks[0](rows, grid.levels[0])]
        for number, (down, block) in enumerate(zip(self.downs, self.down_blocks[1:], strict=True)):
            skips.append(block(down(skips[-1], grid, number), grid.levels[number + 1]))
        if self.classifies == "clouds":
            means = [mean_of_items(rows, level.item) for rows, level in zip(skips, grid.levels, strict=True)]
            of_clouds: Tensor = self.head(torch.cat(means, dim=1))
            return of_clouds
        rows = skips.pop()
        for number in reversed(range(len(skips))):
            level, up = grid.levels[number], self.ups[number](rows, grid, number)
            joined = self.joins[number](torch.cat([up, skips[number]], dim=1), level)
            rows = self.up_blocks[number](joined, level)
        scores: Tensor = self.head(torch.cat([grid.points.up(rows).to(values.dtype), values], dim=1))
        return scores
