"""Keys of any width: a hash table of row numbers, whose keys are compared column by column where they lie.

The path for what does not fit one packed word, and for keys that are given (`index_keys`). The table is an int64 tensor
of `capacity` row numbers, -1 in an empty slot; the capacity is a power of two and at least twice the number of keys, so
a probe always ends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops import reference
from permutohedral.ops.primitives import check_items, key_limit, range_error
from permutohedral.ops.triton.build.embedding import LARGEST_TILE_DIMENSION, find_simplex, tile_rows, weights_from
from permutohedral.ops.triton.build.packed_table import capacity_for, mix, swap_if_empty
from permutohedral.ops.triton.runtime import HAS_PTX, cdiv, launch, on_device, rows_contiguous

# a slot that holds no row number
_NONE = tl.constexpr(-1)


@triton.jit(do_not_specialize=["num_points"])
def embed_keys_kernel(
    features, batch, keys, barycentric, bad, num_points,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys `[points, d + 1, 1 + d]` of all corners, and the weights `[d + 1, points]`."""
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    point = tl.minimum(point, num_points - 1)
    cell, rank, delta, valid = find_simplex(features, point, STRIDE, D, ROWS)
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + point[None, :] + row.to(tl.int64) * num_points, weights, mask=(row <= D) & inside[None, :])
    if tl.min(valid.to(tl.int32), axis=0) == 0:
        tl.store(bad, 1)
    item = tl.zeros([BLOCK], tl.int32)
    if HAS_BATCH:
        item = tl.load(batch + point)
    for corner in range(D + 1):
        place = keys + (point * (D + 1) + corner) * (D + 1)
        tl.store(place, item, mask=inside)
        value = (cell - (rank > D - corner).to(tl.int32)) * (D + 1) + corner
        tl.store(place[None, :] + 1 + row, value, mask=(row < D) & inside[None, :])


@triton.jit
def hash_row(keys, base, offsets, HAS_OFFSET: tl.constexpr, COLUMNS: tl.constexpr):
    """uint32 `[BLOCK]` of the keys at `base`, the offset added to all columns but the first."""
    hashed = mix(tl.load(keys + base), tl.zeros([base.shape[0]], tl.int32))
    for column in range(1, COLUMNS):
        value = tl.load(keys + base + column)
        if HAS_OFFSET:
            value += tl.load(offsets + column - 1)
        hashed = mix(hashed.to(tl.int32, bitcast=True), value)
    return hashed


@triton.jit
def same_row(keys, base, others, other_base, compared, offsets, HAS_OFFSET: tl.constexpr, COLUMNS: tl.constexpr):
    """int1 `[BLOCK]`: whether the compared keys at `base`, the offset added, equal `others` at `other_base`."""
    equal = compared
    for column in range(COLUMNS):
        value = tl.load(keys + base + column)
        if HAS_OFFSET:
            value += tl.load(offsets + column - 1, mask=column > 0, other=0)
        equal = equal & (value == tl.load(others + other_base + column, mask=compared, other=0))
    return equal


@triton.jit(do_not_specialize=["num_keys", "capacity"])
def insert_rows_kernel(
    keys, table, slot_of_key, num_keys, capacity, PTX: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Give every distinct key a slot, which holds the number of one of its rows."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_keys
    # lanes beyond the end repeat the last key
    index = tl.minimum(index, num_keys - 1)
    base = index * COLUMNS
    slot = (hash_row(keys, base, keys, False, COLUMNS) & (capacity - 1).to(tl.uint32)).to(tl.int32)
    pending = index >= 0
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        met = tl.load(table + slot, mask=pending, other=0)
        lanes = (pending & (met == _NONE))[None, :]
        met = tl.max(swap_if_empty((table + slot)[None, :], index[None, :], lanes, met[None, :], _NONE, PTX), axis=0)
        taken = pending & (met != _NONE)
        equal = same_row(keys, base, keys, met * COLUMNS, taken, keys, False, COLUMNS)
        pending = taken & ~equal
        slot = tl.where(pending, (slot + 1) & (capacity - 1), slot)
    tl.store(slot_of_key + index, slot, mask=inside)


@triton.jit(do_not_specialize=["capacity"])
def number_slots_kernel(table, slots, count, capacity, BLOCK: tl.constexpr):
    """List the taken slots, and count them."""
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    taken = (tl.load(table + slot, mask=slot < capacity, other=_NONE) != _NONE).to(tl.int32)
    first = tl.atomic_add(count, tl.sum(taken, axis=0), sem="relaxed")
    tl.store(slots + first + tl.cumsum(taken, axis=0) - taken, slot, mask=taken > 0)


@triton.jit(do_not_specialize=["num_unique"])
def gather_rows_kernel(keys, table, slots, unique_keys, num_unique, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Copy the key of each listed slot, and let the slot hold its number in the list."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_unique
    slot = tl.load(slots + number, mask=inside, other=0)
    index = tl.load(table + slot, mask=inside, other=0)
    for column in range(COLUMNS):
        value = tl.load(keys + index * COLUMNS + column, mask=inside, other=0)
        tl.store(unique_keys + number.to(tl.int64) * COLUMNS + column, value, mask=inside)
    tl.store(table + slot, number.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["num_keys"])
def inverse_kernel(slot_of_key, table, num_keys, BLOCK: tl.constexpr):
    """Replace each slot by the number it holds."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_keys
    slot = tl.load(slot_of_key + index, mask=inside, other=0)
    tl.store(slot_of_key + index, tl.load(table + slot, mask=inside, other=0).to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["capacity", "num_targets"])
def find_rows_kernel(
    source_keys, table, target_keys, offsets, neighbors, capacity, num_targets,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = tl.program_id(0) // blocks
    target = (tl.program_id(0) - tap * blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = target < num_targets
    base = tl.minimum(target, num_targets - 1).to(tl.int64) * COLUMNS
    offset = offsets + tap * (COLUMNS - 1)
    slot = (hash_row(target_keys, base, offset, True, COLUMNS) & (capacity - 1).to(tl.uint32)).to(tl.int32)
    found = tl.full([BLOCK], -1, tl.int64)
    pending = inside
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        met = tl.load(table + slot, mask=pending, other=_NONE)
        taken = pending & (met != _NONE)
        equal = same_row(target_keys, base, source_keys, met * COLUMNS, taken, offset, True, COLUMNS)
        found = tl.where(equal, met, found)
        pending = taken & ~equal
        slot = tl.where(pending, (slot + 1) & (capacity - 1), slot)
    tl.store(neighbors + tap.to(tl.int64) * num_targets + target, found.to(tl.int32), mask=inside)


def _embed(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys `[points * (d + 1), 1 + d]` of all corners, weights `[points, d + 1]`."""
    points, d = features.shape
    device = features.device
    if points and d > LARGEST_TILE_DIMENSION:
        keys, barycentric = reference.embed(features)
        item = torch.zeros(points, dtype=torch.int32, device=device) if batch is None else batch
        keys = torch.cat([item[:, None, None].expand(-1, d + 1, 1), keys], dim=2)
        return keys.flatten(0, 1), barycentric
    keys = torch.empty(points * (d + 1), d + 1, dtype=torch.int32, device=device)
    barycentric = torch.empty(d + 1, points, dtype=features.dtype, device=device)
    if points:
        features = rows_contiguous(features)
        bad = torch.zeros(1, dtype=torch.int32, device=device)
        launch(
            embed_keys_kernel, (cdiv(points, 32),),
            (features, features if batch is None else batch, keys, barycentric, bad), (points,),
            STRIDE=features.stride(0), HAS_BATCH=batch is not None,
            D=d, ROWS=tile_rows(d), BLOCK=32, num_warps=1,
        )  # fmt: skip
        if int(bad):
            raise range_error(features, key_limit(features.dtype))
    return keys, barycentric.T


def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if batch is not None:
        check_items(batch)
    keys, barycentric = _embed(features, batch)
    unique_keys, inverse, table = index_keys(keys)
    return unique_keys, inverse.view(barycentric.shape), barycentric, table


@on_device
def index_keys(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keys = keys.contiguous()
    num_keys, columns = keys.shape
    device = keys.device
    capacity = capacity_for(num_keys)
    table = torch.full((capacity,), -1, dtype=torch.int64, device=device)
    slot_of_key = torch.empty(num_keys, dtype=torch.int32, device=device)
    if num_keys == 0:
        return keys, slot_of_key, table
    _insert_rows(keys, table, slot_of_key)
    slots = torch.empty(num_keys, dtype=torch.int32, device=device)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    launch(number_slots_kernel, (cdiv(capacity, 1024),), (table, slots, count), (capacity,), BLOCK=1024)
    num_unique = int(count)
    slots = slots[:num_unique]
    if torch.are_deterministic_algorithms_enabled():
        slots = _sort_slots(slots, keys, table)
    unique_keys = torch.empty(num_unique, columns, dtype=torch.int32, device=device)
    launch(
        gather_rows_kernel, (cdiv(num_unique, 256),), (keys, table, slots, unique_keys), (num_unique,),
        COLUMNS=columns, BLOCK=256,
    )  # fmt: skip
    launch(inverse_kernel, (cdiv(num_keys, 1024),), (slot_of_key, table), (num_keys,), BLOCK=1024)
    return unique_keys, slot_of_key, table


def _sort_slots(slots: Tensor, keys: Tensor, table: Tensor) -> Tensor:
    """Order the slots by their keys, so that the numbering does not depend on scheduling."""
    unique_keys = keys[table[slots.long()]]
    order = torch.arange(slots.numel(), device=slots.device)
    for column in reversed(range(keys.shape[1])):
        order = order[torch.argsort(unique_keys[order, column], stable=True)]
    return slots[order]


def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    targets = target_keys.shape[0]
    neighbors = torch.empty(offsets.shape[0], targets, dtype=torch.int32, device=source_keys.device)
    if neighbors.numel():
        launch(
            find_rows_kernel, (cdiv(targets, 64) * offsets.shape[0],),
            (source_keys, table, target_keys, offsets, neighbors), (table.numel(), targets),
            COLUMNS=source_keys.shape[1], BLOCK=64, num_warps=2,
        )  # fmt: skip
    return neighbors


def build_table(keys: Tensor) -> Tensor:
    """The table of distinct `keys`."""
    capacity = capacity_for(keys.shape[0])
    table = torch.full((capacity,), -1, dtype=torch.int64, device=keys.device)
    if keys.shape[0]:
        _insert_rows(keys, table, torch.empty(keys.shape[0], dtype=torch.int32, device=keys.device))
    return table


def _insert_rows(keys: Tensor, table: Tensor, slot_of_key: Tensor) -> None:
    num_keys, columns = keys.shape
    launch(
        insert_rows_kernel, (cdiv(num_keys, 64),), (keys, table, slot_of_key), (num_keys, table.numel()),
        PTX=HAS_PTX, COLUMNS=columns, BLOCK=64, num_warps=2,
    )  # fmt: skip
