"""The normalized Gaussian of points from their features alone, without waiting for the lattice in between.

The lattice is taken to have about as many lattice points as the last one of points like these: tables for an eighth
more are allocated, all kernels are started, and only then the host reads how many lattice points there are. If they
were more, or did not fit the table, nothing of it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets
from permutohedral.ops.triton.elementary import filled
from permutohedral.ops.triton.filtering import filter_gaussian_into
from permutohedral.ops.triton.insertion import REPORTED, Insertion, insert_points, resolve_vertices
from permutohedral.ops.triton.lattice import (
    LARGEST_FIXED_DIMENSION,
    WORTH_ORDERING,
    foresee_rows,
    kind_of,
    note_kind,
    size_of_kind,
)
from permutohedral.ops.triton.launch import on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.neighbors import launch_search
from permutohedral.ops.triton.replay import find_recording, record
from permutohedral.ops.triton.report import abandon_reports, reports_on
from permutohedral.ops.triton.splatting import WIDEST_TILE


def _filter(
    output: Tensor,
    report: Tensor,
    values: Tensor,
    points: tuple[Tensor, Tensor | None],
    offsets: Tensor,
    most_rows: int,
    smallest_mass: float,
) -> None:
    """Fill `output` and `report`; `points` are features and batch."""
    features, batch = points
    codes = torch.empty(most_rows, dtype=torch.int64, device=features.device)
    insertion = Insertion.empty(features, power_of_two(6 * most_rows, 64), codes)
    insert_points(insertion, features, batch, False)
    resolve_vertices(insertion, report)
    neighbors = filled((offsets.shape[0], most_rows), -1, torch.int32, features.device)
    launch_search(insertion.table, codes, offsets, neighbors, True)
    corners = insertion.vertices, insertion.barycentric
    filter_gaussian_into(output, values, (*corners, neighbors, *corners), smallest_mass)


@on_device
def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """`filter_gaussian` between the points themselves, None if it must be done step by step: see `FusedPrimitives`."""
    kind = kind_of(features, batch)
    foreseen = size_of_kind(kind)
    if not 0 < foreseen < WORTH_ORDERING or features.shape[1] > LARGEST_FIXED_DIMENSION:
        return None
    if torch.are_deterministic_algorithms_enabled():
        return None
    features, values, most_rows = rows_contiguous(features), rows_contiguous(values), foresee_rows(foreseen, kind)
    reports, output = reports_on(features.device), values.new_empty(values.shape)
    offsets = axis_offsets(features.shape[1], features.device)
    given = [features, values, output, reports.rows[0], offsets]
    if batch is not None:
        given.append(batch)
    key = (
        "gaussian", features.get_device(), most_rows, smallest_mass, batch is None, features.shape, features.dtype,
        features.stride(), values.shape, values.dtype, values.stride(),
    )  # fmt: skip

    def run() -> tuple[Tensor, ...]:
        _filter(output, reports.rows[0], values, (features, batch), offsets, most_rows, smallest_mass)
        return ()

    try:
        recording = find_recording(key)
        if recording is not None:
            recording.repeat(*given)
        elif values.shape[1] < WIDEST_TILE:
            record(key, run, *given)
        else:
            # in several passes, whose results torch puts together
            run()
        last, *flags = reports.read(0, REPORTED.value)
    except BaseException:
        abandon_reports()
        raise
    # the flags, not how many points lie far apart
    if max(flags[:3]) >= 0 or last >= most_rows:
        return None
    note_kind(kind, last + 1)
    return output
