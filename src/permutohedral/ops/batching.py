"""Rules by which `torch.vmap` runs an operator: all items in one call if they can share it, else in a loop.

A rule takes the operator, the number of items, the axis of the items in each argument (None where all share it) and the
arguments. It returns the results and the axes of the items in them. It may call the operator on tensors that an outer
`torch.vmap` batches again, so it reads no numbers, only shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., Any]
Axes = tuple[int | None, ...]
Arguments = tuple[Any, ...]
Rule = Callable[[Run, int, Axes, Arguments], tuple[Any, Any]]


def loop(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
    """Run each item by itself, for results whose shapes do not depend on the data."""
    results = _run_each(run, items, axes, arguments)
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def padded(table: int) -> Rule:
    """Return the rule of operators that number lattice points: each item gets as many as the largest item has.

    The first result is the keys. The result `table` is a lookup table; it becomes empty, which every backend accepts.
    """

    def rule(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
        found: list[Tensor] = []
        where: list[int | None] = []
        for place, parts in enumerate(zip(*_run_each(run, items, axes, arguments), strict=True)):
            if place == table:
                found.append(parts[0][:0])
                where.append(None)
            else:
                found.append(torch.stack(_pad_keys(parts) if place == 0 else parts))
                where.append(0)
        return tuple(found), tuple(where)

    return rule


def stack_channels(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
    """Stack items as channels if they share all arguments but the first, the values."""
    if any(axis is not None for axis in axes[1:]):
        return loop(run, items, axes, arguments)
    return _part(run(_stack_channels(arguments[0], axes[0], items), *arguments[1:]), items)


def as_groups(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
    """Run convolutions with items as groups of channels if they share the tables."""
    if any(axis is not None for axis in axes[2:]):
        return loop(run, items, axes, arguments)
    *_, neighbors, groups, reverse, opposite = arguments
    wide = (_stack_channels(tensor, axis, items) for tensor, axis in zip(arguments[:2], axes[:2], strict=True))
    return _part(run(*wide, neighbors, groups * items, reverse, opposite), items)


def stack_rows(rows: tuple[int, ...]) -> Rule:
    """Return the rule that stacks items as rows of these arguments and of the first result, if they share all others.

    Other results depend on all rows: where they are not empty, items run in a loop.
    """

    def rule(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
        if arguments[-1] is True or any(axis is not None for place, axis in enumerate(axes) if place not in rows):
            return loop(run, items, axes, arguments)
        stacked = list(arguments)
        for place in rows:
            if arguments[place] is not None:
                stacked[place] = _items_first(arguments[place], axes[place], items).flatten(0, 1)
        result = run(*stacked)
        if isinstance(result, Tensor):
            return result.unflatten(0, (items, result.shape[0] // items)), 0
        first, *others = result
        split = first if first.dim() == 1 else first.unflatten(0, (items, first.shape[0] // items))
        return (split, *others), (None if first.dim() == 1 else 0, *(None for _ in others))

    return rule


def _run_each(run: Run, items: int, axes: Axes, arguments: Arguments) -> list[Any]:
    places = list(zip(arguments, axes, strict=True))
    return [run(*(each if axis is None else each.select(axis, item) for each, axis in places)) for item in range(items)]


def _pad_keys(keys: tuple[Tensor, ...]) -> list[Tensor]:
    """Keys `[lattice_points, 1 + d]` of one length; each row added belongs to an item of its own, without neighbors."""
    longest = max(each.shape[0] for each in keys)
    return [torch.cat([each, _unused_keys(each, longest - each.shape[0])]) for each in keys]


def _unused_keys(keys: Tensor, number: int) -> Tensor:
    last = torch.cat([keys[:, 0], keys.new_zeros(1)]).amax()
    items = last + 1 + torch.arange(number, dtype=keys.dtype, device=keys.device)
    return torch.nn.functional.pad(items[:, None], (0, keys.shape[1] - 1))


def _items_first(tensor: Tensor, axis: int | None, items: int) -> Tensor:
    return tensor.expand(items, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def _stack_channels(tensor: Tensor, axis: int | None, items: int) -> Tensor:
    """`[..., channels]` of every item as `[..., items * channels]`."""
    return _items_first(tensor, axis, items).movedim(0, -2).flatten(-2)


def _part(result: Tensor, items: int) -> tuple[Tensor, int]:
    """`[..., items * channels]` as `[..., items, channels]`, and the axis of the items."""
    return result.unflatten(-1, (items, result.shape[-1] // items)), result.dim() - 1
