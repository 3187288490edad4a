"""A lattice whose number of rows is fixed beforehand: building it never waits for the device.

That allows a whole training step to be captured as a CUDA graph. Rows that no point touches hold nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.triton.build.insertion import insert_points, unpack_keys
from permutohedral.ops.triton.build.packed_table import COUNT, capacity_for
from permutohedral.ops.triton.runtime import on_device, rows_contiguous


@on_device
def index_points_bounded(features: Tensor, batch: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `index_points`, but with `rows` rows of keys, whatever the number of lattice points.

    Vertices beyond the last row are taken for the last row: the caller chooses enough rows, and may compare. The
    features must be finite and their range must fit packed keys (a few thousand units in up to 5 dimensions).

    Args:
        features: float `[points, d]`, at least one point.
        batch: int32 `[points]`.
        rows: how many rows there are to be.

    Returns:
        keys int32 `[rows, 1 + d]` (-1 where no lattice point is), vertices, barycentric, table, and int64
        `[1]`, the number of lattice points there are.
    """
    points, d = features.shape
    # a table that could fill up would have to tell the host
    insertion = insert_points(rows_contiguous(features), batch, capacity_for(points * (d + 1)), False)
    # of no item where no lattice point is
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=features.device)
    unpack_keys(insertion, keys, insertion.table)
    vertices, storage = insertion.vertices.clamp_(max=rows - 1), insertion.table.storage
    return keys, vertices, insertion.barycentric, storage, storage[COUNT.value : COUNT.value + 1]
