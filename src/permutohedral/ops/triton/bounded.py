"""A lattice whose number of rows is fixed beforehand: building it never waits for the device.

That allows a whole training step to be recorded as a CUDA graph. Rows that no point touches hold nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.triton.embedding import tile_rows
from permutohedral.ops.triton.lattice import insert_points_kernel, resolve_kernel, unpack_kernel
from permutohedral.ops.triton.launch import cdiv, has_ptx, launch, on_device, rows_contiguous
from permutohedral.ops.triton.packing import fixed_bits, prepare_table
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
    features, device = rows_contiguous(features), features.device
    # a table that could fill up would have to tell the host
    capacity = capacity_for(points * (d + 1))
    table = prepare_table(features, batch, capacity, False).storage
    slots = torch.empty(capacity, dtype=torch.int32, device=device)
    vertices = torch.empty(d + 1, points, dtype=torch.int32, device=device)
    barycentric = torch.empty(d + 1, points, dtype=features.dtype, device=device)
    shared = {"CORNER_BITS": d.bit_length(), "PTX": has_ptx(), "D": d, "ROWS": tile_rows(d), "BLOCK": 32}
    launch(
        insert_points_kernel, (cdiv(points, 32),), features, batch, table, slots, vertices, barycentric, points,
        capacity, STRIDE=features.stride(0), HAS_BATCH=True, DIGIT_BITS=fixed_bits(d, True)[0], **shared, num_warps=1,
    )  # fmt: skip
    entries = vertices.numel()
    report = torch.empty(REPORT.value, dtype=torch.int64, device=device)
    launch(resolve_kernel, (cdiv(entries, 1024),), vertices, table, report, entries, capacity, BLOCK=1024)
    vertices.clamp_(0, rows - 1)
    # of no item where no lattice point is
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=device)
    launch(
        unpack_kernel, (cdiv(rows, 32),), table, slots, keys, table, rows, capacity, MOVE=False, **shared, num_warps=1
    )  # fmt: skip
    return keys, vertices.T, barycentric.T, table, report[:1]
