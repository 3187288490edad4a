"""The largest value of each channel in groups of rows, with derivatives of any order."""

from __future__ import annotations

import torch
from torch import Tensor


def largest_of(rows: Tensor, members: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """The largest of each channel in each group; a derivative of any order goes to the first of the largest.

    Args:
        rows: `[rows, channels]`.
        members: int64 `[memberships]`, rows.
        groups: int64 `[memberships]`, the group of each.
        num_groups: how many there are.

    Returns:
        `[num_groups, channels]`, zero for a group without members.

    >>> largest_of(torch.tensor([[1.0], [3.0], [2.0]]), torch.arange(3), torch.tensor([0, 0, 2]), 3).tolist()
    [[3.0], [0.0], [2.0]]
    """
    with torch.no_grad():
        candidates = rows.index_select(0, members)
        place = groups[:, None].expand_as(candidates)
        most = rows.new_zeros(num_groups, rows.shape[1])
        most = most.scatter_reduce(0, place, candidates, "amax", include_self=False)
        wins = candidates == most.index_select(0, groups)
        # a row of zeros stands behind the others
        nobody = rows.shape[0]
        numbers = torch.where(wins, members[:, None], nobody)
        first = members.new_full(most.shape, nobody).scatter_reduce(0, place, numbers, "amin", include_self=False)
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).gather(0, first)
