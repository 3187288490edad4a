"""The hash table of packed keys: its layout, and the device functions that every kernel on it shares.

A lattice point is an item, a corner class j and d quotients q_i, its coordinates being (d+1) q_i + j. They are packed
into one non-negative int64, the *code*; equal codes are equal keys, so the table needs no second comparison. How many
bits each part gets is decided on the device and written into the header, so that building waits for the host only once.

The table is one int64 tensor, filled with -1: a header of `HEADER` words, `capacity` codes (-1: empty slot), then
`capacity` row numbers as int32. Open addressing with linear probing; the capacity is a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.launch import power_of_two

# a multiple of 3, so that the size of the whole table is one too, and never a power of two
HEADER = tl.constexpr(144)
# words of the header: for coordinate i the lowest quotient, the shift of its digit, the number of digits
LOW = tl.constexpr(0)
SHIFT = tl.constexpr(32)
EXTENT = tl.constexpr(64)
ITEM_SHIFT = tl.constexpr(96)
ITEM_EXTENT = tl.constexpr(97)
# number of lattice points minus one, then flags that are not -1 once something went wrong
COUNT = tl.constexpr(100)
BAD_FEATURE = tl.constexpr(101)
NO_ROOM = tl.constexpr(102)
FULL = tl.constexpr(103)
# of `SAMPLES` pairs of consecutive points, how many lie far apart
FAR_PAIRS = tl.constexpr(104)
SAMPLES = tl.constexpr(256)
# a probe that goes on for so long has met a table that is too small
MAX_PROBES = tl.constexpr(256)
EMPTY = tl.constexpr(-1)
_MOST_ROOMY_KEYS = 1 << 20


@dataclass(frozen=True)
class PackedTable:
    """A table of packed keys."""

    storage: Tensor  # int64 [HEADER + 3 capacity / 2]

    @staticmethod
    def words(capacity: int) -> int:
        """Size of the storage."""
        return int(HEADER.value) + capacity + capacity // 2

    @staticmethod
    def empty(capacity: int, device: torch.device) -> PackedTable:
        return PackedTable(torch.full((PackedTable.words(capacity),), -1, dtype=torch.int64, device=device))

    @staticmethod
    def holds(storage: Tensor) -> bool:
        """Whether `storage` is such a table, told by its size alone: a wide table's is a power of two."""
        return storage.numel() > 0 and storage.numel() % 3 == 0

    @property
    def capacity(self) -> int:
        return (self.storage.numel() - int(HEADER.value)) // 3 * 2


def capacity_for(num_keys: int) -> int:
    """Room for `num_keys` distinct keys, the table at most half full."""
    return power_of_two(2 * num_keys, 64)


def roomy_capacity(num_keys: int) -> int:
    """The same, at most a quarter full while that fits the cache of a large GPU: fewer probes meet another key."""
    return capacity_for(num_keys) if num_keys > _MOST_ROOMY_KEYS else power_of_two(4 * num_keys, 64)


@triton.jit
def codes_of(table):
    """Pointer to the codes."""
    return table + HEADER


@triton.jit
def rows_of(table, capacity):
    """Pointer to the row numbers."""
    return (table + HEADER + capacity).to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def mix(word, other):
    """A 32-bit hash of two 32-bit words, uint32."""
    mixed = word.to(tl.uint32, bitcast=True) * 0x9E3779B1 + other.to(tl.uint32, bitcast=True) * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39
    return mixed ^ (mixed >> 15)


@triton.jit
def home_slot(code, capacity):
    """Where the probe for `code` begins, int32."""
    return (mix(code.to(tl.int32), (code >> 32).to(tl.int32)) & (capacity - 1).to(tl.uint32)).to(tl.int32)


@triton.jit
def swap_if_empty(pointers, desired, lanes, current, PTX: tl.constexpr):
    """Put `desired` where `lanes` point at an empty slot; the content met there, `current` on the other lanes.

    Without PTX every lane swaps: lanes that need not must point at a slot that is taken, or be content to take it.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $4, 0; mov.b64 $0, $5; "
            "@p atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3; }",
            "=&l,l,l,l,r,l",
            [pointers.to(tl.int64), tl.full([1, 1], EMPTY, tl.int64), desired, lanes.to(tl.int32), current],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    else:
        expected = tl.full(desired.shape, EMPTY, tl.int64)
        if tl.max(tl.max(lanes.to(tl.int32), axis=1), axis=0) > 0:
            met = tl.atomic_cas(pointers, expected, desired, sem="relaxed")
            current = tl.where(lanes, met, current)
        return current


@triton.jit
def insert(codes, code, wanted, capacity, PTX: tl.constexpr):
    """Find or make the slot of each code of a tile `[ROWS, BLOCK]`.

    Every lane takes part; one that is not `wanted` must carry a code that another lane wants.

    Returns: slot int32, whether this lane made it int1, whether the table was too full int1.
    """
    slot = home_slot(code, capacity)
    pending = wanted
    created = wanted & (code < 0)
    probes = 0
    while (tl.max(tl.max(pending.to(tl.int32), axis=1), axis=0) > 0) & (probes < MAX_PROBES):
        met = tl.load(codes + slot, mask=pending, other=0)
        met = swap_if_empty(codes + slot, code, pending & (met == EMPTY), met, PTX)
        created = created | (pending & (met == EMPTY))
        pending = pending & (met != EMPTY) & (met != code)
        slot = tl.where(pending, (slot + 1) & (capacity - 1), slot)
        probes += 1
    return slot, created, pending


@triton.jit
def look_up(codes, rows, code, wanted, capacity):
    """The row number of each code of a tile `[BLOCK]`, -1 where it is absent or not wanted."""
    slot = home_slot(code, capacity)
    pending = wanted
    found = wanted & (code < 0)
    # a finished table is at most half full, so an empty slot ends every probe
    while tl.max(pending.to(tl.int32), axis=0) > 0:
        met = tl.load(codes + slot, mask=pending, other=EMPTY)
        found = found | (pending & (met == code))
        pending = pending & (met != EMPTY) & (met != code)
        slot = tl.where(pending, (slot + 1) & (capacity - 1), slot)
    return tl.load(rows + slot, mask=found, other=-1)
