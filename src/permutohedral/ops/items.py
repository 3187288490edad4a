"""The rows of each item of a ragged batch, and their group normalization, composed of torch operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from permutohedral.ops.tracing import with_storable_results


class ItemRows:
    """The rows of each item of a ragged batch; what is counted or sorted is computed on first use, and kept.

    Args:
        item: int32 `[rows]`, the item of each row.
        items: number of items, at least one.
    """

    def __init__(self, item: Tensor, items: int) -> None:
        self.item, self.items = item, items
        # cached_property would break a compiled graph
        self._members: Tensor | None = None
        self._sorted: tuple[Tensor | None, Tensor] | None = None

    def mean(self, rows: Tensor) -> Tensor:
        """Average over the rows of each item: `[rows, channels]` to `[items, channels]`."""
        if self._members is None:
            self._members = self._count_members()
        return self._sum(rows) / self._members

    def spread(self, of_items: Tensor) -> Tensor:
        """Copy the values of items to their rows: `[items, channels]` to `[rows, channels]`."""
        return of_items.index_select(0, self.item)

    @property
    def sorted(self) -> tuple[Tensor | None, Tensor]:
        """Return the rows sorted by item, int32 `[rows]`, None for one item; and where each item starts among them.

        The starts are int32 `[items + 1]`; the last one is the number of rows.
        """
        if self._sorted is None:
            self._sorted = self._sort_rows()
        return self._sorted

    def _sum(self, rows: Tensor) -> Tensor:
        # One place more: at a single one, inductor drops the mask of a GPU's threads, so that all of them add.
        return rows.new_zeros(self.items + 1, *rows.shape[1:]).index_add(0, self.item, rows)[:-1]

    @with_storable_results
    def _count_members(self) -> Tensor:
        # bincount would wait for a GPU; an item has at least one row
        one = torch.ones((), dtype=torch.int32, device=self.item.device).expand(self.item.shape)
        return self._sum(one).clamp_min(1)[:, None]

    @with_storable_results
    def _sort_rows(self) -> tuple[Tensor | None, Tensor]:
        ordered, order = torch.sort(self.item, stable=True)
        each = torch.arange(self.items + 1, dtype=torch.int32, device=self.item.device)
        starts = torch.searchsorted(ordered, each, out_int32=True)
        return None if self.items == 1 else order.to(torch.int32), starts


class ItemsNorm(NamedTuple):
    """The plan of a group normalization of the rows of each item.

    Attributes:
        rows: of the items.
        groups: number of groups of channels; those of one group are normalized together.
        eps: added to the variance.
        relu: apply a ReLU to the result.
    """

    rows: ItemRows
    groups: int
    eps: float
    relu: bool


def normalize_items(values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm) -> Tensor:
    """Normalize groups of channels of `values [rows, channels]` in each item; then apply weight and bias."""
    items, wide = norm.rows, values.float() if values.dtype.itemsize < 4 else values
    grouped = wide.reshape(wide.shape[0], norm.groups, wide.shape[1] // norm.groups)
    centered = grouped - items.spread(items.mean(grouped.mean(dim=2)))[:, :, None]
    variance = items.mean(centered.square().mean(dim=2))
    scale = items.spread((variance + norm.eps).rsqrt())[:, :, None]
    normalized = torch.addcmul(bias, (centered * scale).reshape(wide.shape), weight).to(values.dtype)
    return normalized.relu() if norm.relu else normalized
