"""Group normalization over the lattice points of each item of a ragged batch."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import check_tensor, refuse_scripting
from permutohedral.ops.composite import normalize_items
from permutohedral.ops.contract import Declined, ItemRows, ItemsNorm
from permutohedral.ops.tracing import breaks_graph, with_storable_results, without_autocast


class LatticeItems:
    """The lattice points of each item of a ragged batch, shared by all normalizations on a lattice.

    The unused rows of a bounded lattice are one more item, after the last.

    Args:
        lattice: of the lattice points.
        items: number of items; by default they are counted, and the host waits for a GPU.

    >>> import torch, permutohedral as ph
    >>> lattice = ph.build_lattice(torch.zeros(4, 2), batch=torch.tensor([0, 0, 2, 2]))
    >>> ph.nn.LatticeItems(lattice).mean(torch.ones(lattice.num_lattice_points, 1)).flatten().tolist()
    [1.0, 0.0, 1.0]
    """

    def __init__(self, lattice: Lattice, items: int | None = None) -> None:
        item = lattice.source.keys[:, 0]
        self.items = count_items(lattice) if items is None else items
        self.item = torch.where(item < 0, self.items - 1, item) if lattice.source.bounded else item
        # computed on first use; cached_property would break a compiled graph
        self._members: Tensor | None = None
        self._rows: ItemRows | None = None

    def mean(self, rows: Tensor) -> Tensor:
        """Average over the lattice points of each item: `[lattice_points, channels]` to `[items, channels]`."""
        if self._members is None:
            self._members = self._count_members()
        return self._sum(rows) / self._members

    def _sum(self, rows: Tensor) -> Tensor:
        # One place more: at a single one, inductor drops the mask of a GPU's threads, so that all of them add.
        return rows.new_zeros(self.items + 1, *rows.shape[1:]).index_add(0, self.item, rows)[:-1]

    @with_storable_results
    def _count_members(self) -> Tensor:
        # bincount would wait for a GPU; an item has at least one lattice point
        one = torch.ones((), dtype=torch.int32, device=self.item.device).expand(self.item.shape)
        return self._sum(one).clamp_min(1)[:, None]

    @property
    def rows(self) -> ItemRows:
        """Return the lattice points of each item."""
        if self._rows is None:
            self._rows = self._sort_rows()
        return self._rows

    @with_storable_results
    def _sort_rows(self) -> ItemRows:
        ordered, order = torch.sort(self.item, stable=True)
        each = torch.arange(self.items + 1, dtype=torch.int32, device=self.item.device)
        starts = torch.searchsorted(ordered, each, out_int32=True)
        return ItemRows(None if self.items == 1 else order.to(torch.int32), starts, self.items)

    def spread(self, of_items: Tensor) -> Tensor:
        """Copy the values of items to their lattice points: `[items, channels]` to `[lattice_points, channels]`."""
        return of_items.index_select(0, self.item)


@breaks_graph
def count_items(lattice: Lattice) -> int:
    """Return the number of items of a batch; of a ragged one, up to the last item that has lattice points.

    A bounded lattice has one more, of its unused rows.
    """
    if lattice.source.bounded:
        return (lattice.batch_size or 1) + 1
    if lattice.batch_size is not None:
        return lattice.batch_size
    item = lattice.source.keys[:, 0]
    # with one more row, since there may be none; torch.export can trace item()
    last = cast(int, torch.cat([item, item.new_full((1,), -1)]).max().item())
    return last + 1


class LatticeGroupNorm(nn.Module):
    """Group normalization over the lattice points of each item: `torch.nn.GroupNorm` for ragged batches.

    Args:
        num_groups: groups of channels, each normalized by itself; divides num_channels.
        num_channels: of the values.
        eps: added to the variance.

    >>> import torch, permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(90, 3) * 9, batch=torch.arange(90) // 30)
    >>> normalized = ph.nn.LatticeGroupNorm(2, 4)(ph.splat(torch.rand(90, 4), lattice), lattice)
    >>> float(normalized.detach().mean().abs()) < 1e-6
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if type(num_groups) is not int or num_groups < 1 or num_channels % num_groups:
            raise InputError(f"num_groups must divide num_channels, got {num_groups!r} and {num_channels!r}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = nn.Parameter(torch.ones(num_channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_channels, device=device, dtype=dtype))

    def forward(
        self, lattice_values: Tensor, lattice: Lattice, items: LatticeItems | None = None, relu: bool = False
    ) -> Tensor:
        """Normalize.

        Args:
            lattice_values: `[lattice_points, num_channels]`.
            lattice: of the lattice points.
            items: of the lattice, if several layers share them.
            relu: apply a ReLU, on a GPU in the same kernel.

        Returns:
            `[lattice_points, num_channels]`.
        """
        check_tensor("lattice values", lattice_values)
        expected = lattice.num_lattice_points, self.num_channels
        if lattice_values.shape != expected:
            raise InputError(f"lattice values must be {list(expected)}, got {list(lattice_values.shape)}")
        items = LatticeItems(lattice) if items is None else items
        return self.normalize(lattice_values, (self.weight, self.bias), items, relu)

    def normalize(self, values: Tensor, affine: tuple[Tensor, Tensor], items: LatticeItems, relu: bool) -> Tensor:
        """Normalize with the weight and bias in `affine` instead of those of the layer."""

        def composed(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            normalized = _normalize(values, weight, bias, items, self.num_groups, self.eps)
            return normalized.relu() if relu else normalized

        def plan() -> tuple[ItemsNorm] | Declined:
            if values.numel() == 0:
                return Declined("there are no lattice points")
            return (ItemsNorm(items.rows, self.num_groups, self.eps, relu),)

        # autocast leaves a normalization in the dtype of its values
        return without_autocast(values.device, normalize_items, (values, *affine), plan, composed)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


def _normalize(values: Tensor, weight: Tensor, bias: Tensor, items: LatticeItems, groups: int, eps: float) -> Tensor:
    """Compose the group normalization of each item of torch operations."""
    wide = values.float() if values.dtype.itemsize < 4 else values
    grouped = wide.reshape(wide.shape[0], groups, wide.shape[1] // groups)
    centered = grouped - items.spread(items.mean(grouped.mean(dim=2)))[:, :, None]
    variance = items.mean(centered.square().mean(dim=2))
    scale = items.spread((variance + eps).rsqrt())[:, :, None]
    normalized = (centered * scale).reshape(wide.shape)
    return torch.addcmul(bias, normalized, weight).to(values.dtype)
