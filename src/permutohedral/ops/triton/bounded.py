"""A lattice whose number of rows is fixed beforehand: building it never waits for the device.

That allows a whole training step to be recorded as a CUDA graph. Rows that no point touches hold nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.triton.insertion import Insertion, insert_points, resolve_vertices, unpack_keys
from permutohedral.ops.triton.launch import on_device, rows_contiguous
from permutohedral.ops.triton.report import REPORT
from permutohedral.ops.triton.table import capacity_for


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
        `[1]`, the number of lattice points there are minus one.
    """
    points, d = features.shape
    # a table that could fill up would have to tell the host
    capacity = capacity_for(points * (d + 1))
    features = rows_contiguous(features)
    insertion = Insertion.empty(features, capacity, features.new_empty(rows, dtype=torch.int32))
    insert_points(insertion, features, batch, False)
    report = torch.empty(REPORT.value, dtype=torch.int64, device=features.device)
    resolve_vertices(insertion, report)
    # of no item where no lattice point is
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=features.device)
    unpack_keys(insertion, keys, insertion.table)
    return keys, insertion.vertices, insertion.barycentric, insertion.table.storage, report[:1]
