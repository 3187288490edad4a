"""The normalized Gaussian of points from their features alone, without waiting for the lattice in between.

The lattice is taken to have about as many lattice points as the last one of points like these: tables for an eighth
more are allocated, all kernels are started, and only then the host reads how many lattice points there are. If they
were more, or did not fit the table, nothing of it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets
from permutohedral.ops.triton.filtering import filter_gaussian
from permutohedral.ops.triton.insertion import REPORTED, insert_points, resolve_vertices
from permutohedral.ops.triton.lattice import LARGEST_FIXED_DIMENSION, WORTH_ORDERING, foresee_size, note_size
from permutohedral.ops.triton.launch import on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.neighbors import launch_search
from permutohedral.ops.triton.report import abandon_reports, reports_on


@on_device
def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """`filter_gaussian` between the points themselves, None if it must be done step by step: see `FusedPrimitives`."""
    d, foreseen = features.shape[1], foresee_size(features, batch)
    if not 0 < foreseen < WORTH_ORDERING or d > LARGEST_FIXED_DIMENSION:
        return None
    if torch.are_deterministic_algorithms_enabled():
        return None
    most_rows, device = foreseen + foreseen // 8 + 1, features.device
    reports = reports_on(device)
    try:
        codes = torch.empty(most_rows, dtype=torch.int64, device=device)
        insertion = insert_points(rows_contiguous(features), batch, power_of_two(6 * foreseen, 64), False, codes)
        resolve_vertices(insertion, reports.rows[0])
        neighbors = torch.full((2 * (d + 1), most_rows), -1, dtype=torch.int32, device=device)
        launch_search(insertion.table, codes, axis_offsets(d, device), neighbors, True)
        corners = insertion.vertices.T, insertion.barycentric.T
        output: Tensor = filter_gaussian(values, *corners, neighbors, *corners, smallest_mass)
        last, *flags = reports.read(0, REPORTED.value)
    except BaseException:
        abandon_reports()
        raise
    # the flags, not how many points lie far apart
    if max(flags[:3]) >= 0 or last >= most_rows:
        return None
    note_size(features, batch, last + 1)
    return output
