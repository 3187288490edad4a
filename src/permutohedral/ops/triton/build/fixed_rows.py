"""A lattice whose number of rows is fixed beforehand: building it never waits for the device.

That allows a whole training step to be captured as a CUDA graph. Rows that no point touches hold nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.triton.build.insertion import insert_points, unpack_keys
from permutohedral.ops.triton.build.packed_table import BAD_FEATURE, COUNT, FULL, capacity_for
from permutohedral.ops.triton.runtime import on_device, rows_contiguous

# what is told instead of a number of lattice points, or more
_FAILED = 1 << 40


@on_device
def index_points_bounded(
    features: Tensor, batch: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `index_points`, but with `rows` rows of keys, whatever the number of lattice points.

    Vertices beyond the last row are taken for the last row: the caller chooses enough rows, and may compare.

    Args:
        features: float `[points, d]`, at least one point.
        batch: int32 `[points]`, or None.
        rows: how many rows there are to be.

    Returns:
        keys int32 `[rows, 1 + d]` (-1 where no lattice point is), vertices, barycentric, table, and int64
        `[1]`, the number of lattice points there are; far more than fit into memory where a feature is not finite, or
        the range of the features does not fit packed keys (a few thousand units in up to 5 dimensions).
    """
    points, d = features.shape
    # a table that could fill up would have to tell the host
    insertion = insert_points(rows_contiguous(features), batch, capacity_for(points * (d + 1)), False)
    # of no item where no lattice point is
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=features.device)
    unpack_keys(insertion, keys, insertion.table)
    vertices, storage = insertion.vertices.clamp_(max=rows - 1), insertion.table.storage
    failed = storage[BAD_FEATURE.value : FULL.value + 1].amax()
    return keys, vertices, insertion.barycentric, storage, storage[COUNT.value : COUNT.value + 1] + failed * _FAILED
