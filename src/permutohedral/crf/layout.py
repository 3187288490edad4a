"""Shapes of energies and marginals, and their conversion to rows and planes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.crf.kernels import Kernel
from permutohedral.errors import InputError
from permutohedral.lattice.tensors import check_tensor, reject_torchscript


@dataclass(frozen=True)
class FieldLayout:
    """The shape of energies and marginals.

    Attributes:
        shape: as given: `[..., labels, *space]`, or `[..., points, labels]` for points.
        labels: number of labels.
        items: number of items, None without a batch axis.
        points: points of each item.
        labels_last: whether labels are the last axis.
    """

    shape: tuple[int, ...]
    labels: int
    items: int | None
    points: int
    labels_last: bool

    @property
    def num_items(self) -> int:
        return 1 if self.items is None else self.items

    @property
    def label_axis(self) -> int:
        """The axis of the labels, as given."""
        return len(self.shape) - 1 if self.labels_last else 0 if self.items is None else 1

    def to_planes(self, tensor: Tensor) -> Tensor:
        """Reshape to `[items, labels, points]`, a view if possible."""
        if self.labels_last:
            return tensor.reshape(self.num_items, self.points, self.labels).transpose(1, 2)
        return tensor.reshape(self.num_items, self.labels, self.points)

    def from_planes(self, planes: Tensor) -> Tensor:
        """Undo `to_planes`."""
        return (planes.transpose(1, 2) if self.labels_last else planes).reshape(self.shape)

    def to_rows(self, tensor: Tensor) -> Tensor:
        """Reshape to contiguous `[items * points, labels]`."""
        return self.to_planes(tensor).transpose(1, 2).reshape(self.num_items * self.points, self.labels).contiguous()

    def from_rows(self, rows: Tensor) -> Tensor:
        """Undo `to_rows`; the result is contiguous."""
        return self.from_planes(rows.reshape(self.num_items, self.points, self.labels).transpose(1, 2)).contiguous()

    def normalize(self, marginals: Tensor) -> Tensor:
        """Return marginals that sum to one at each point; uniform ones where all are zero."""
        total = marginals.sum(dim=self.label_axis, keepdim=True)
        return torch.where(total > 0, marginals / torch.where(total > 0, total, 1.0), 1 / self.labels)


def field_layout(energies: Tensor, kernels: Sequence[Kernel]) -> FieldLayout:
    """Return the layout of energies, or raise if they do not match the kernels."""
    reject_torchscript()
    check_tensor("energies", energies)
    if not energies.is_floating_point():
        raise InputError(f"energies must be floating, got {energies.dtype}; convert with .float()")
    if not isinstance(kernels, Sequence) or not all(isinstance(kernel, Kernel) for kernel in kernels):
        kinds = [type(kernel).__name__ for kernel in kernels] if isinstance(kernels, Sequence) else kernels
        raise InputError(f"kernels must be a list of permutohedral.crf.Kernel, such as [kernel], got {kinds}")
    if len({kernel.batch is None for kernel in kernels}) > 1:
        raise InputError("kernels: pass batch to all kernels or to none")
    # sizes that torch.export takes for unknown have no hash
    space = kernels[0].space if kernels else None
    if any(kernel.space != space for kernel in kernels):
        raise InputError(f"all kernels must have one space, got {', '.join(str(kernel.space) for kernel in kernels)}")
    shape = tuple(energies.shape)
    axes = 2 if space is None else 1 + len(space)
    if len(shape) not in (axes, axes + 1) or (space is not None and shape[len(shape) - len(space) :] != space):
        named = "[points, labels]" if space is None else f"[labels, {', '.join(map(str, space))}]"
        raise InputError(f"energies must be {named}, or a batch of these, for these kernels, got shape {shape}")
    labels = shape[-1] if space is None else shape[len(shape) - axes]
    points = shape[-2] if space is None else math.prod(space)
    layout = FieldLayout(shape, labels, shape[0] if len(shape) > axes else None, points, labels_last=space is None)
    if labels < 1:
        raise InputError(f"energies must have at least one label, got shape {shape}")
    for kernel in kernels:
        _check_kernel(kernel, layout, energies)
    return layout


def _check_kernel(kernel: Kernel, layout: FieldLayout, energies: Tensor) -> None:
    if kernel.num_points != layout.points:
        raise InputError(f"kernels: the features have {kernel.num_points} points, but energies {layout.points}")
    if kernel.num_items not in (None, layout.items):
        raise InputError(
            f"kernels: the features have {kernel.num_items} items, but energies are of shape {layout.shape}; give "
            "both a batch axis, or neither"
        )
    if kernel.batch is not None and layout.items is not None:
        raise InputError("a ragged batch is flat: give energies [points, labels] with batch, no batch axis")
    if kernel.features.device != energies.device:
        raise InputError(f"energies are on {energies.device}, but a kernel on {kernel.features.device}; move one")
    compatibility = kernel.compatibility
    if isinstance(compatibility, Tensor) and compatibility.dim() and compatibility.shape[0] != layout.labels:
        raise InputError(
            f"a compatibility of shape {tuple(compatibility.shape)} does not fit energies of {layout.labels} labels"
        )


def items_of_rows(layout: FieldLayout, kernels: Sequence[Kernel], device: torch.device) -> tuple[Tensor, int]:
    """Return the item of each row, int64 `[rows]`, and the number of items."""
    ragged = [kernel.batch for kernel in kernels if kernel.batch is not None]
    if ragged:
        return ragged[0].long(), int(ragged[0].max()) + 1 if ragged[0].numel() else 0
    items = torch.arange(layout.num_items, device=device)
    return items.repeat_interleave(layout.points), layout.num_items
