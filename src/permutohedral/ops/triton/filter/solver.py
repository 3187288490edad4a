"""The bilateral solver on the lattice: balancing, the matrix, and conjugate gradients, without waiting for the GPU.

Lattice values are `[lattice points, channels]`; a program has one channel of a block of lattice points or cells. The
scalar products of each iteration have memory of their own, so that nothing must be cleared between, and a channel whose
residual is small is left as it is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.guided_primitives import SeenCells, SolverTables
from permutohedral.ops.triton.filter.cells import block_of, fits, split_sample, three_axes, widest_window, window
from permutohedral.ops.triton.runtime import Launch, bind, cdiv, on_device, start_all
from permutohedral.ops.triton.zeros import clear, zeros

_BLOCK = 256
# with more channels, lattice points and weights are better read once for all of them
_MOST_CHANNELS = 8
# kinds of scalar products: of direction and image, of residual and scaled residual, of the residual with itself; the
# right sides' lie behind those of all iterations
_IMAGES, _SCALED, _NORMS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def sum_beside(
    values, scale, axis_neighbors, row, inside, channel, num_rows, CHANNELS: tl.constexpr, SCALED: tl.constexpr,
    AROUND: tl.constexpr,
):  # fmt: skip
    """A lattice point as often as there are neighbors, and these; if SCALED, each times its scale. And itself."""
    own = tl.load(values + row.to(tl.int64) * CHANNELS + channel, mask=inside, other=0.0)
    scaled = own
    if SCALED:
        scaled = own * tl.load(scale + row, mask=inside, other=0.0)
    total = AROUND * scaled
    for tap in tl.static_range(AROUND):
        other = tl.load(axis_neighbors + tap * num_rows.to(tl.int64) + row, mask=inside, other=-1)
        value = tl.load(values + other.to(tl.int64) * CHANNELS + channel, mask=other >= 0, other=0.0)
        if SCALED:
            value *= tl.load(scale + other, mask=other >= 0, other=0.0)
        total += value
    return total, own


@triton.jit(do_not_specialize=["num_rows"])
def beside_kernel(
    values, axis_neighbors, output, num_rows, CHANNELS: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    channel = tl.program_id(1)
    total, _ = sum_beside(
        values, values, axis_neighbors, row, inside, channel, num_rows, CHANNELS, False, AROUND
    )  # fmt: skip
    tl.store(output + row.to(tl.int64) * CHANNELS + channel, total, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def balance_kernel(
    scale, wanted, axis_neighbors, output, num_rows, LAST: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The scale with which row sums are nearer to those wanted; the LAST gives the row sums themselves."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    total, own = sum_beside(scale, scale, axis_neighbors, row, inside, 0, num_rows, 1, False, AROUND)
    if LAST:
        result = own * total
    else:
        # lattice points beyond the end have no sum
        total = tl.where(inside, total, 1.0)
        result = tl.sqrt(own * tl.load(wanted + row, mask=inside, other=0.0) / total)
    tl.store(output + row, result, mask=inside)


@triton.jit
def scalar(scalars, kind, iteration, channel, slots, CHANNELS: tl.constexpr):
    """Where a scalar product lies."""
    return scalars + (kind * slots + iteration) * CHANNELS + channel


@triton.jit
def is_open(scalars, iteration, channel, slots, tolerance, FIRST: tl.constexpr, CHANNELS: tl.constexpr):
    """Whether the residual before an iteration is not small enough; nothing is known of it before the FIRST."""
    if FIRST:
        return True
    else:
        right = tl.load(scalar(scalars, 3, 0, channel, slots, CHANNELS))
        norm = tl.load(scalar(scalars, _NORMS, iteration, channel, slots, CHANNELS))
        # NaN is never small enough
        return ((tolerance > 0.0) & (norm <= tolerance * tolerance * right)) == 0


@triton.jit(do_not_specialize=["num_rows", "iteration", "slots", "tolerance"])
def roughen_kernel(
    values, axis_neighbors, scale, mass, lumped, scalars, image, num_rows, iteration, slots, tolerance,
    LUMPED: tl.constexpr, CHANNELS: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The part of the matrix that makes smooth, and that of data at lattice points if they are LUMPED."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    if is_open(scalars, iteration, channel, slots, tolerance, False, CHANNELS):
        inside = row < num_rows
        total, own = sum_beside(
            values, scale, axis_neighbors, row, inside, channel, num_rows, CHANNELS, True, AROUND
        )  # fmt: skip
        place = row.to(tl.int64) * CHANNELS + channel
        result = tl.load(mass + row, mask=inside, other=0.0) * own
        result -= tl.load(scale + row, mask=inside, other=0.0) * total
        if LUMPED:
            result += tl.load(lumped + place, mask=inside, other=0.0) * own
        tl.store(image + place, result, mask=inside)
        product = tl.sum(tl.where(inside, own * result, 0.0), axis=0)
        tl.atomic_add(scalar(scalars, _IMAGES, iteration, channel, slots, CHANNELS), product, sem="relaxed")


@triton.jit(do_not_specialize=[
    "num_cells", "corner_stride", "weight_stride", "depth", "height", "width", "fine_depth", "fine_height",
    "fine_width", "iteration", "slots", "tolerance",
])  # fmt: skip
def cells_kernel(
    values, vertices, barycentric, rows, scalars, image, num_cells, corner_stride, weight_stride, depth, height, width,
    fine_depth, fine_height, fine_width, iteration, slots, tolerance,
    SPREAD: tl.constexpr, CHANNELS: tl.constexpr, CORNERS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Means of cells, each times its weight (`rows [num_cells, CHANNELS]`) and back; to SPREAD, rows are the means."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    if is_open(scalars, iteration, channel, slots, tolerance, SPREAD, CHANNELS):
        inside = number < num_cells
        number = tl.minimum(number, num_cells - 1)
        cells = depth * height * width
        fine = fine_depth.to(tl.int64) * fine_height * fine_width
        z, y, x = split_sample(number % cells, height, width)
        first_z, size_z = window(z, depth, fine_depth, False)
        first_y, size_y = window(y, height, fine_height, False)
        first_x, size_x = window(x, width, fine_width, False)
        start = (number // cells).to(tl.int64) * fine
        share = tl.load(rows + number.to(tl.int64) * CHANNELS + channel, mask=inside, other=0.0)
        count = (size_z * size_y * size_x).to(share.dtype)
        lines, columns = tl.max(size_z * size_y, axis=0), tl.max(size_x, axis=0)
        total = tl.zeros([BLOCK, WIDE], share.dtype)
        # there, unless it is known, and back
        for back in tl.static_range(1 if SPREAD else 0, 2):
            spread = share / count
            for row in range(lines):
                across = (first_z + row // size_y).to(tl.int64) * fine_height + first_y + row % size_y
                line = start + across * fine_width + first_x
                for begin in range(0, columns, WIDE):
                    along = begin + tl.arange(0, WIDE)
                    point = line[:, None] + along[None, :]
                    real = (inside & (row // size_y < size_z))[:, None] & (along[None, :] < size_x[:, None])
                    for corner in tl.static_range(CORNERS):
                        vertex = tl.load(vertices + point + corner * corner_stride, mask=real, other=0)
                        weight = tl.load(barycentric + point + corner * weight_stride, mask=real, other=0.0)
                        place = vertex.to(tl.int64) * CHANNELS + channel
                        if back:
                            here = real & (weight > 0.0)
                            tl.atomic_add(image + place, weight * spread[:, None], mask=here, sem="relaxed")
                        else:
                            total += weight * tl.load(values + place, mask=real, other=0.0)
            if not back:
                mean = tl.sum(total, axis=1) / count
                product = tl.sum(share * mean * mean, axis=0)
                tl.atomic_add(scalar(scalars, _IMAGES, iteration, channel, slots, CHANNELS), product, sem="relaxed")
                share *= mean


@triton.jit(do_not_specialize=["num_rows", "iteration", "slots", "tolerance"])
def update_kernel(
    right, image, diagonal, direction, solution, residual, scalars, num_rows, iteration, slots, tolerance,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Go along the direction, and find the residual there; FIRST, that of the start, whose image is given."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    inside = row < num_rows
    place = row.to(tl.int64) * CHANNELS + channel
    after = iteration + 1
    if FIRST:
        after = iteration
    if is_open(scalars, iteration, channel, slots, tolerance, FIRST, CHANNELS):
        tiny: tl.constexpr = 2.2250738585072014e-308 if residual.dtype.element_ty == tl.float64 else 1.1754943508e-38
        if FIRST:
            given = tl.load(right + place, mask=inside, other=0.0)
            left = given - tl.load(image + place, mask=inside, other=0.0)
            tl.atomic_add(scalar(scalars, 3, 0, channel, slots, CHANNELS), tl.sum(given * given, axis=0), sem="relaxed")
        else:
            product = tl.load(scalar(scalars, _IMAGES, iteration, channel, slots, CHANNELS))
            length = tl.load(scalar(scalars, _SCALED, iteration, channel, slots, CHANNELS))
            # a product that is not positive is a rounding error
            length = tl.where(product > 0.0, length, 0.0) / tl.maximum(product, tiny)
            left = tl.load(residual + place, mask=inside, other=0.0)
            left -= length * tl.load(image + place, mask=inside, other=0.0)
            here = tl.load(solution + place, mask=inside, other=0.0)
            here += length * tl.load(direction + place, mask=inside, other=0.0)
            tl.store(solution + place, here, mask=inside)
        tl.store(residual + place, left, mask=inside)
        scaled = tl.sum(left * left / tl.load(diagonal + place, mask=inside, other=1.0), axis=0)
        tl.atomic_add(scalar(scalars, _SCALED, after, channel, slots, CHANNELS), scaled, sem="relaxed")
        norm = tl.sum(left * left, axis=0)
        tl.atomic_add(scalar(scalars, _NORMS, after, channel, slots, CHANNELS), norm, sem="relaxed")


@triton.jit(do_not_specialize=["num_rows", "iteration", "slots", "tolerance"])
def turn_kernel(
    residual, diagonal, direction, scalars, num_rows, iteration, slots, tolerance,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The direction of the next iteration."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    inside = row < num_rows
    place = row.to(tl.int64) * CHANNELS + channel
    if is_open(scalars, iteration, channel, slots, tolerance, FIRST, CHANNELS):
        tiny: tl.constexpr = 2.2250738585072014e-308 if residual.dtype.element_ty == tl.float64 else 1.1754943508e-38
        result = tl.load(residual + place, mask=inside, other=0.0) / tl.load(diagonal + place, mask=inside, other=1.0)
        if not FIRST:
            before = tl.maximum(tl.load(scalar(scalars, _SCALED, iteration, channel, slots, CHANNELS)), tiny)
            share = tl.load(scalar(scalars, _SCALED, iteration + 1, channel, slots, CHANNELS)) / before
            result += share * tl.load(direction + place, mask=inside, other=0.0)
        tl.store(direction + place, result, mask=inside)


def _is_whole(rows: Tensor) -> bool:
    return rows.numel() > 0 and rows.is_contiguous() and rows.shape[1] <= _MOST_CHANNELS


@on_device
def add_beside(rows: Tensor, axis_neighbors: Tensor) -> Tensor | None:
    if rows.numel() == 0:
        return None
    rows, output = rows.contiguous(), torch.empty_like(rows, memory_format=torch.contiguous_format)
    number, channels = rows.shape
    bound = bind(beside_kernel, CHANNELS=channels, AROUND=axis_neighbors.shape[0], BLOCK=_BLOCK)
    bound((cdiv(number, _BLOCK), channels, 1), (rows, axis_neighbors, output), (number,))
    return output


@on_device
def balance(scale: Tensor, wanted: Tensor, axis_neighbors: Tensor, steps: int) -> tuple[Tensor, Tensor] | None:
    number, around = wanted.shape[0], axis_neighbors.shape[0]
    if number == 0 or not (scale.is_contiguous() and wanted.is_contiguous()):
        return None
    for step in range(steps + 1):
        output = torch.empty_like(scale)
        bound = bind(balance_kernel, LAST=step == steps, AROUND=around, BLOCK=_BLOCK)
        bound((cdiv(number, _BLOCK), 1, 1), (scale, wanted, axis_neighbors, output), (number,))
        if step == steps:
            return scale, output
        scale = output
    return None


def _over_cells(
    cells: SeenCells, rows: Tensor, values: Tensor, scalars: Tensor, image: Tensor, numbers: tuple[float, ...] | None
) -> Launch:
    """The data's part of the matrix, added to the image; without `numbers` of an iteration, rows are spread."""
    wide, channels, corners = widest_window(cells.grid), image.shape[1], cells.vertices.shape[1]
    constants = {"SPREAD": numbers is None, "CHANNELS": channels, "CORNERS": corners, "WIDE": wide}
    bound = bind(cells_kernel, **constants, BLOCK=block_of(wide))
    strides = cells.vertices.stride(1), cells.barycentric.stride(1)
    sizes = rows.shape[0], *strides, *three_axes(cells.grid.coarse), *three_axes(cells.grid.fine)
    tensors = values, cells.vertices, cells.barycentric, rows, scalars, image
    return bound, (cdiv(rows.shape[0], block_of(wide)), channels, 1), tensors, (*sizes, *(numbers or (0, 1, 0.0)))


@on_device
def spread_cells(rows: Tensor, cells: SeenCells, num_lattice_points: int) -> Tensor | None:
    if not can_see(rows, cells):
        return None
    rows = rows.contiguous()
    image = zeros(num_lattice_points, rows.shape[1], dtype=rows.dtype, device=rows.device)
    start_all([_over_cells(cells, rows, image, image, image, None)])
    return image


def can_see(rows: Tensor, cells: SeenCells) -> bool:
    """Whether cells are summed here: atomic additions have no order."""
    tables = cells.vertices, cells.barycentric
    return (
        not torch.are_deterministic_algorithms_enabled() and rows.numel() > 0 and rows.shape[1] <= _MOST_CHANNELS
        and rows.dtype == cells.barycentric.dtype and fits(cells.grid) and all(table.stride(0) == 1 for table in tables)
    )  # fmt: skip


@on_device
def solve_on_lattice(
    right: Tensor, start: Tensor, tables: SolverTables, iterations: int, tolerance: float
) -> Tensor | None:
    channels, cells = right.shape[1], tables.cells
    right, solution, diagonal = right.contiguous(), start.contiguous().clone(), tables.diagonal.contiguous()
    if not _is_whole(right) or torch.are_deterministic_algorithms_enabled():
        return None
    if cells is not None and not can_see(cells.weights, cells):
        return None
    # a smaller residual is rounding errors, of which further steps would make ever larger ones
    tolerance = max(tolerance, torch.finfo(right.dtype).eps)
    image, direction, residual = (torch.empty_like(right) for _ in range(3))
    slots = iterations + 2
    scalars = torch.empty(3 * slots + 1, channels, dtype=right.dtype, device=right.device)
    weights = None if cells is None else cells.weights.contiguous()
    lumped = right if tables.lumped is None else tables.lumped.contiguous()
    grid, number = (cdiv(right.shape[0], _BLOCK), channels, 1), right.shape[0]
    roughen = bind(
        roughen_kernel, LUMPED=tables.lumped is not None, CHANNELS=channels, AROUND=tables.axis_neighbors.shape[0],
        BLOCK=_BLOCK,
    )  # fmt: skip

    def iterate(values: Tensor, iteration: int, first: bool) -> list[Launch]:
        sizes = number, iteration, slots, tolerance
        # nothing is known yet of what is solved
        before = sizes if not first else (*sizes[:3], 0.0)
        launches: list[Launch] = [
            (roughen, grid, (values, tables.axis_neighbors, tables.scale, tables.mass, lumped, scalars, image), before)
        ]
        if cells is not None and weights is not None:
            launches.append(_over_cells(cells, weights, values, scalars, image, before[1:]))
        after = (number, 0, slots, tolerance) if first else sizes
        tensors = right, image, diagonal, direction, solution, residual, scalars
        constants = {"FIRST": first, "CHANNELS": channels, "BLOCK": _BLOCK}
        launches.append((bind(update_kernel, **constants), grid, tensors, after))
        launches.append((bind(turn_kernel, **constants), grid, (residual, diagonal, direction, scalars), after))
        return launches

    start_all([clear(scalars), *iterate(solution, slots - 1, True)])
    for iteration in range(iterations):
        start_all(iterate(direction, iteration, False))
    return solution
