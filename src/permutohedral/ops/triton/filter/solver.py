"""The bilateral solver on the lattice: balancing, the matrix, and conjugate gradients, without waiting for the GPU.

Lattice values are `[lattice points, channels]`; a program has one channel of a block of lattice points or cells. Each
iteration has separate memory for its scalar products, so that nothing is cleared in between. A channel with a small
residual does not change any more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import Declined, SeenCells, SolverTables
from permutohedral.ops.triton.filter.cells import block_of, fits, split_sample, three_axes, widest_window, window
from permutohedral.ops.triton.kernel import Launch, cdiv, clear, kernel, launch_all, on_device, zeros

_BLOCK = 256
# with more channels it is faster to read lattice points and weights once for all of them
_MOST_CHANNELS = 8
# kinds of scalar products: direction and image, residual and scaled residual, residual and residual; those of the right
# sides follow the products of all iterations
_IMAGES, _SCALED, _NORMS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def sum_neighbors_of_rows(
    values, scale, axis_neighbors, row, inside, channel, num_rows, CHANNELS: tl.constexpr, SCALED: tl.constexpr,
    AROUND: tl.constexpr,
):  # fmt: skip
    """Return the sum of the axis neighbors plus AROUND times the point, each SCALED if wanted; and the point."""
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


@kernel(sizes=["num_rows"])
def sum_axis_neighbors_kernel(
    values, axis_neighbors, output, num_rows, CHANNELS: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    channel = tl.program_id(1)
    total, _ = sum_neighbors_of_rows(
        values, values, axis_neighbors, row, inside, channel, num_rows, CHANNELS, False, AROUND
    )  # fmt: skip
    tl.store(output + row.to(tl.int64) * CHANNELS + channel, total, mask=inside)


@kernel(sizes=["num_rows"])
def balance_kernel(
    scale, wanted, axis_neighbors, output, num_rows, LAST: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a scale with row sums nearer to those wanted; the LAST pass writes the row sums."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    total, own = sum_neighbors_of_rows(scale, scale, axis_neighbors, row, inside, 0, num_rows, 1, False, AROUND)
    if LAST:
        result = own * total
    else:
        # lattice points beyond the end have no sum
        total = tl.where(inside, total, 1.0)
        result = tl.sqrt(own * tl.load(wanted + row, mask=inside, other=0.0) / total)
    tl.store(output + row, result, mask=inside)


@triton.jit
def scalar(scalars, kind, iteration, channel, slots, CHANNELS: tl.constexpr):
    """Return the place of a scalar product."""
    return scalars + (kind * slots + iteration) * CHANNELS + channel


@triton.jit
def is_open(scalars, iteration, channel, slots, tolerance, FIRST: tl.constexpr, CHANNELS: tl.constexpr):
    """Return whether the residual before an iteration is too large; it is unknown before the FIRST."""
    if FIRST:
        return True
    else:
        right = tl.load(scalar(scalars, 3, 0, channel, slots, CHANNELS))
        norm = tl.load(scalar(scalars, _NORMS, iteration, channel, slots, CHANNELS))
        # NaN is never small enough
        return ((tolerance > 0.0) & (norm <= tolerance * tolerance * right)) == 0


@kernel(sizes=["num_rows", "iteration", "slots", "tolerance"])
def apply_laplacian_kernel(
    values, axis_neighbors, scale, mass, lumped, scalars, image, num_rows, iteration, slots, tolerance,
    LUMPED: tl.constexpr, CHANNELS: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply the smoothness part of the matrix, and the data part at lattice points if it is LUMPED."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    if is_open(scalars, iteration, channel, slots, tolerance, False, CHANNELS):
        inside = row < num_rows
        total, own = sum_neighbors_of_rows(
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


@kernel(sizes=[
    "num_cells", "corner_stride", "weight_stride", "depth", "height", "width", "fine_depth", "fine_height",
    "fine_width", "iteration", "slots", "tolerance",
])  # fmt: skip
def cells_kernel(
    values, vertices, barycentric, rows, scalars, image, num_cells, corner_stride, weight_stride, depth, height, width,
    fine_depth, fine_height, fine_width, iteration, slots, tolerance,
    SPREAD: tl.constexpr, CHANNELS: tl.constexpr, CORNERS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Spread the means of cells, times weights `rows [num_cells, CHANNELS]`; with SPREAD rows are the means."""
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
                    for each in tl.static_range(CORNERS):
                        corner = tl.cast(each, tl.int64)
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


@kernel(sizes=["num_rows", "iteration", "slots", "tolerance"])
def update_kernel(
    right, image, diagonal, direction, solution, residual, scalars, num_rows, iteration, slots, tolerance,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move along the direction and compute the residual; with FIRST that of the start, from its image."""
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


@kernel(sizes=["num_rows", "iteration", "slots", "tolerance"])
def update_direction_kernel(
    residual, diagonal, direction, scalars, num_rows, iteration, slots, tolerance,
    FIRST: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the direction of the next iteration."""
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


def _find_limit(rows: Tensor) -> Declined | None:
    """Return the limit of the kernels that these rows exceed, or None."""
    if torch.are_deterministic_algorithms_enabled():
        return Declined("atomic additions have no fixed order, and deterministic algorithms are enabled")
    if rows.shape[1] > _MOST_CHANNELS:
        return Declined(f"the kernels solve at most {_MOST_CHANNELS} channels, got {rows.shape[1]}")
    return Declined("there are no rows") if rows.numel() == 0 else None


@on_device
def sum_axis_neighbors(rows: Tensor, axis_neighbors: Tensor) -> Tensor | Declined:
    if rows.numel() == 0:
        return Declined("there are no rows")
    rows, output = rows.contiguous(), torch.empty_like(rows, memory_format=torch.contiguous_format)
    number, channels = rows.shape
    variant = sum_axis_neighbors_kernel[channels, axis_neighbors.shape[0], _BLOCK]
    variant((cdiv(number, _BLOCK), channels, 1), (rows, axis_neighbors, output), (number,))
    return output


@on_device
def balance(scale: Tensor, wanted: Tensor, axis_neighbors: Tensor, steps: int) -> tuple[Tensor, Tensor] | Declined:
    number, around = wanted.shape[0], axis_neighbors.shape[0]
    if number == 0 or not (scale.is_contiguous() and wanted.is_contiguous()):
        return Declined("there are no rows, or they are not contiguous")
    for step in range(steps + 1):
        output = torch.empty_like(scale)
        variant = balance_kernel[step == steps, around, _BLOCK]
        variant((cdiv(number, _BLOCK), 1, 1), (scale, wanted, axis_neighbors, output), (number,))
        if step == steps:
            return scale, output
        scale = output
    return Declined("there is no step")


def _over_cells(
    cells: SeenCells, rows: Tensor, values: Tensor, scalars: Tensor, image: Tensor, numbers: tuple[float, ...] | None
) -> Launch:
    """Return the launch that adds the data part of the matrix to the image; without `numbers`, rows are spread."""
    wide, channels, corners = widest_window(cells.grid), image.shape[1], cells.vertices.shape[1]
    variant = cells_kernel[numbers is None, channels, corners, block_of(wide), wide]
    strides = cells.vertices.stride(1), cells.barycentric.stride(1)
    sizes = rows.shape[0], *strides, *three_axes(cells.grid.coarse), *three_axes(cells.grid.fine)
    tensors = values, cells.vertices, cells.barycentric, rows, scalars, image
    return variant, (cdiv(rows.shape[0], block_of(wide)), channels, 1), tensors, (*sizes, *(numbers or (0, 1, 0.0)))


@on_device
def spread_cells(rows: Tensor, cells: SeenCells, num_lattice_points: int) -> Tensor | Declined:
    declined = _find_cell_limit(rows, cells)
    if declined is not None:
        return declined
    rows = rows.contiguous()
    image = zeros(num_lattice_points, rows.shape[1], dtype=rows.dtype, device=rows.device)
    launch_all([_over_cells(cells, rows, image, image, image, None)])
    return image


def _find_cell_limit(rows: Tensor, cells: SeenCells) -> Declined | None:
    """Return the limit of the sums over cells that the arguments exceed, or None."""
    if rows.dtype != cells.barycentric.dtype:
        return Declined("values and features differ in dtype")
    if not fits(cells.grid) or any(table.stride(0) != 1 for table in (cells.vertices, cells.barycentric)):
        return Declined("the grid has 2^31 samples or more, or its simplices are not those of index_points")
    return _find_limit(rows)


@on_device
def solve_on_lattice(
    right: Tensor, start: Tensor, tables: SolverTables, iterations: int, tolerance: float
) -> Tensor | Declined:
    channels, cells = right.shape[1], tables.cells
    right, solution, diagonal = right.contiguous(), start.contiguous().clone(), tables.diagonal.contiguous()
    declined = _find_limit(right) or (None if cells is None else _find_cell_limit(cells.weights, cells))
    if declined is not None:
        return declined
    # a smaller residual is rounding error, which further iterations would amplify
    tolerance = max(tolerance, torch.finfo(right.dtype).eps)
    image, direction, residual = (torch.empty_like(right) for _ in range(3))
    slots = iterations + 2
    scalars = torch.empty(3 * slots + 1, channels, dtype=right.dtype, device=right.device)
    weights = None if cells is None else cells.weights.contiguous()
    lumped = right if tables.lumped is None else tables.lumped.contiguous()
    grid, number = (cdiv(right.shape[0], _BLOCK), channels, 1), right.shape[0]
    laplacian = apply_laplacian_kernel[tables.lumped is not None, channels, tables.axis_neighbors.shape[0], _BLOCK]

    def iterate(values: Tensor, iteration: int, first: bool) -> list[Launch]:
        sizes = number, iteration, slots, tolerance
        # the residual of the start is not known yet
        before = sizes if not first else (*sizes[:3], 0.0)
        tensors = values, tables.axis_neighbors, tables.scale, tables.mass, lumped, scalars, image
        launches: list[Launch] = [(laplacian, grid, tensors, before)]
        if cells is not None and weights is not None:
            launches.append(_over_cells(cells, weights, values, scalars, image, before[1:]))
        after = (number, 0, slots, tolerance) if first else sizes
        tensors, constants = (right, image, diagonal, direction, solution, residual, scalars), (first, channels, _BLOCK)
        launches.append((update_kernel[constants], grid, tensors, after))
        launches.append((update_direction_kernel[constants], grid, (residual, diagonal, direction, scalars), after))
        return launches

    launch_all([clear(scalars), *iterate(solution, slots - 1, True)])
    for iteration in range(iterations):
        launch_all(iterate(direction, iteration, False))
    return solution
