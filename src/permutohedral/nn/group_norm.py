"""Group normalization over the lattice points of each item of a ragged batch."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import check_tensor, reject_scripting
from permutohedral.ops.backend import Backend, report_declined
from permutohedral.ops.binding import bind
from permutohedral.ops.items import ItemRows, ItemsNorm
from permutohedral.ops.tracing import breaks_graph


class LatticeItems(ItemRows):
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
        items = count_items(lattice) if items is None else items
        super().__init__(torch.where(item < 0, items - 1, item) if lattice.source.bounded else item, items)


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

    __prepare_scriptable__ = reject_scripting

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

        norm = ItemsNorm(items, self.num_groups, self.eps, relu)
        ops = bind(values, *affine)
        if not torch.compiler.is_compiling() and values.numel() == 0:
            report_declined("normalize_items", "there are no lattice points")
            return Backend.normalize_items(ops, values, *affine, norm)[0]
        return ops.normalize_items(values, *affine, norm)[0]

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"
