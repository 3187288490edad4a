"""The hash table of packed keys: its layout, and the device functions that every kernel on it shares.

A lattice point is an item, a corner class j and d quotients q_i, its coordinates being (d+1) q_i + j. They are packed
into one positive int64, the *code*; equal codes are equal keys, so the table needs no second comparison. How many
bits each part gets is written into the header, on the device.

The table is one int64 tensor: a header of `HEADER` words, then `capacity` slots of two words each, the code (0: empty
slot) and the row number plus one (0: not known yet), so that one access to memory finds both. All zeros are an empty
table. Open addressing; the capacity is a power of two. Lattice points that follow each other along the last axis of
the lattice, which for pictures and volumes without colors is that of memory, lie in slots side by side, eight of them
in one line of the cache: so do the corners of consecutive points, and the neighbors of consecutive lattice points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import power_of_two
from permutohedral.ops.triton.zeros import zeros

# never the difference of two powers of two, so that the size of the whole table is no power of two
HEADER = tl.constexpr(144)
# words of the header: for coordinate i the lowest quotient, the shift of its digit, the number of digits
LOW = tl.constexpr(0)
SHIFT = tl.constexpr(32)
EXTENT = tl.constexpr(64)
ITEM_SHIFT = tl.constexpr(96)
ITEM_EXTENT = tl.constexpr(97)
# what a code grows by when all quotients grow by one
UNIT = tl.constexpr(98)
# flags that are 1 once something went wrong: a feature or item that has no key, a key that has no code, too many keys
BAD_FEATURE = tl.constexpr(101)
NO_ROOM = tl.constexpr(102)
FULL = tl.constexpr(103)
# number of lattice points: in a cache line of its own, since many threads add to it while others read flags
COUNT = tl.constexpr(112)
# a probe that goes on for so long has met a table that is too small
MAX_PROBES = tl.constexpr(256)
EMPTY = tl.constexpr(0)
# slots side by side; and where a probe goes on: in the next group, and odd, so that it comes to every slot
GROUP = tl.constexpr(8)
STEP = tl.constexpr(9)
# what `insert` knows of a lane
MADE = tl.constexpr(-2)
PENDING = tl.constexpr(-3)


class PackedTable(NamedTuple):
    """A table of packed keys."""

    storage: Tensor  # int64 [HEADER + 2 capacity]

    @staticmethod
    def words(capacity: int) -> int:
        """Size of the storage."""
        return int(HEADER.value) + 2 * capacity

    @staticmethod
    def uncleared(capacity: int, device: torch.device) -> PackedTable:
        """One that somebody has yet to fill with zeros."""
        return PackedTable(torch.empty(PackedTable.words(capacity), dtype=torch.int64, device=device))

    @staticmethod
    def empty(capacity: int, device: torch.device) -> PackedTable:
        return PackedTable(zeros(PackedTable.words(capacity), dtype=torch.int64, device=device))

    @staticmethod
    def holds(storage: Tensor) -> bool:
        """Whether `storage` is such a table, told by its size alone: a wide table's is a power of two."""
        words = storage.numel() - int(HEADER.value)
        return words > 0 and words & (words - 1) == 0

    @property
    def capacity(self) -> int:
        return (self.storage.numel() - int(HEADER.value)) // 2


def capacity_for(num_keys: int) -> int:
    """Room for `num_keys` distinct keys, the table at most half full."""
    return power_of_two(2 * num_keys, 64)


@triton.jit
def entry_of(table, slot):
    """Pointer to the code in a slot; the row number is the word after it."""
    return table + HEADER + 2 * slot.to(tl.int64)


@triton.jit
def count_rows(table, most, COUNTED: tl.constexpr):
    """How many rows there are: `most`; or, COUNTED, as many as the table holds, none if these are more."""
    if COUNTED:
        count = tl.load(table + COUNT).to(tl.int32)
        return tl.where(count <= most, count, 0)
    else:
        return most


@triton.jit
def is_any(lanes):
    """Whether a tile `[ROWS, BLOCK]` of int1 holds a true one; the rows first, which lie in one thread."""
    return tl.max(tl.max(lanes.to(tl.int32), axis=0), axis=0) > 0


@triton.jit
def mix(word, other):
    """A 32-bit hash of two 32-bit words, uint32."""
    mixed = word.to(tl.uint32, bitcast=True) * 0x9E3779B1 + other.to(tl.uint32, bitcast=True) * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39
    return mixed ^ (mixed >> 15)


@triton.jit
def home_slot(code, unit, capacity, CORNER_BITS: tl.constexpr, D: tl.constexpr):
    """Where the probe for `code` begins, int32; the `unit` is that of the header.

    One step along the last axis adds one to every coordinate (d+1) q_i + j but the last, which no key holds. So the
    first of them tells the place in a group, and the differences of the quotients, with the rest of it, the group.
    """
    low = code.to(tl.int32).to(tl.uint32, bitcast=True)
    corner = low & ((1 << CORNER_BITS) - 1)
    # the bits of the first quotient are those between the two lowest of the unit
    others = unit - (1 << CORNER_BITS)
    quotient = (low >> CORNER_BITS) & (((others & -others) - (1 << CORNER_BITS)) >> CORNER_BITS).to(tl.uint32)
    along = quotient * (D + 1) + corner
    line = code - quotient.to(tl.int64) * unit
    group = (line.to(tl.int32) & -(1 << CORNER_BITS)) + (along // GROUP).to(tl.int32)
    first = mix(group, (line >> 32).to(tl.int32)) & (capacity - GROUP).to(tl.uint32)
    return (first + (along % GROUP)).to(tl.int32)


@triton.jit
def swap_if_empty(pointers, desired, lanes, current, NOTHING: tl.constexpr, PTX: tl.constexpr):
    """Put `desired` where `lanes` point at NOTHING, an empty slot; the content met there, `current` on other lanes.

    Without PTX every lane swaps: lanes that need not must point at a slot that is taken, or be content to take it.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $4, 0; mov.b64 $0, $5; "
            "@p atom.relaxed.gpu.global.cas.b64 $0, [$1], $2, $3; }",
            "=&l,l,l,l,r,l",
            [pointers.to(tl.int64), tl.full([1, 1], NOTHING, tl.int64), desired, lanes.to(tl.int32), current],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    else:
        expected = tl.full(desired.shape, NOTHING, tl.int64)
        if is_any(lanes):
            met = tl.atomic_cas(pointers, expected, desired, sem="relaxed")
            current = tl.where(lanes, met, current)
        return current


@triton.jit
def load_entry(pointers, lanes, PTX: tl.constexpr):
    """Code and row number plus one, int64, where `lanes` point; zeros on the other lanes."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $3, 0; mov.b64 $0, 0; mov.b64 $1, 0; @p ld.global.v2.b64 {$0, $1}, [$2]; }",
            "=&l,=&l,l,r",
            [pointers.to(tl.int64), lanes.to(tl.int32)],
            dtype=(tl.int64, tl.int64),
            is_pure=False,
            pack=1,
        )
    else:
        code = tl.load(pointers, mask=lanes, other=EMPTY)
        return code, tl.load(pointers + 1, mask=lanes, other=EMPTY)


@triton.jit
def load_number(pointers, lanes, PTX: tl.constexpr):
    """A row number plus one, int64, as other multiprocessors see it, where `lanes` point; 0 on the other lanes."""
    if PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.b64 $0, 0; @p ld.relaxed.gpu.global.b64 $0, [$1]; }",
            "=&l,l,r",
            [pointers.to(tl.int64), lanes.to(tl.int32)],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    else:
        return tl.load(pointers, mask=lanes, other=EMPTY)


@triton.jit
def store_lanes(pointers, values, lanes, PTX: tl.constexpr):
    """Store scattered int64 or int32 values; with PTX from the threads that hold them, without an exchange before."""
    if PTX:
        if values.dtype == tl.int64:
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.b64 [$1], $2; mov.b32 $0, 0; }",
                "=r,l,l,r",
                [pointers.to(tl.int64), values, lanes.to(tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        else:
            tl.inline_asm_elementwise(
                "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.b32 [$1], $2; mov.b32 $0, 0; }",
                "=r,l,r,r",
                [pointers.to(tl.int64), values, lanes.to(tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
    else:
        tl.store(pointers, values, mask=lanes)


# What follows the access to a slot, where most probes end: each lane goes on alone, from the content met there.
#     met, number = $5, $6
#     repeat up to 32 times:
#         if met is empty: met = compare-and-swap(slot, empty, code); number = 0; if it was empty: MADE, end
#         if met is the code: number is what was found, end
#         slot = STEP slots on; met, number = its content
# $0 slot; $1 what was found: a row number plus one, 0 not known yet, MADE or PENDING; $2 address of the first slot,
# $3 code, $4 slot, $5 and $6 its content, $7 capacity - 1, $8 what was found before
_INSERT_PTX = tl.constexpr(
    """{ .reg .pred p; .reg .b64 met, number, place; .reg .b32 probes;
    mov.b32 $0, $4; mov.b32 $1, $8; setp.ne.s32 p, $8, -3; @p bra END;
    mov.b64 met, $5; mov.b64 number, $6; mov.b32 probes, 0;
    COMPARE: setp.eq.s64 p, met, $3; @p bra FOUND; setp.ne.s64 p, met, 0; @p bra NEXT;
    mul.wide.u32 place, $0, 16; add.s64 place, place, $2;
    atom.relaxed.gpu.global.cas.b64 met, [place], 0, $3; mov.b64 number, 0;
    setp.ne.s64 p, met, 0; @p bra COMPARE; mov.b32 $1, -2; bra END;
    NEXT: add.s32 $0, $0, 9; and.b32 $0, $0, $7; add.s32 probes, probes, 1; setp.ge.s32 p, probes, 32; @p bra END;
    mul.wide.u32 place, $0, 16; add.s64 place, place, $2; ld.global.v2.b64 {met, number}, [place]; bra COMPARE;
    FOUND: cvt.u32.u64 $1, number;
    END: }"""
)


@triton.jit
def insert(
    table, code, unit, wanted, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Find or make the slot of each code of a tile `[ROWS, BLOCK]`; the `unit` is that of the header.

    Without PTX every lane takes part; one that is not `wanted` must carry a code that another lane wants.

    Returns: slot int32, the row number in it int32 (-1 if not known yet), whether this lane made it int1, whether the
    table was too full int1.
    """
    slot = home_slot(code, unit, capacity, CORNER_BITS, D)
    found = tl.where(wanted, PENDING, 0)
    probes = 0
    # in a loop even where one round does: outside of it the compiler may run a swap twice
    while is_any(found == PENDING) & (probes < MAX_PROBES):
        place = entry_of(table, slot)
        met, number = load_entry(place, found == PENDING, PTX)
        if PTX:
            slot, found = tl.inline_asm_elementwise(
                _INSERT_PTX,
                "=&r,=&r,l,l,r,l,l,r,r",
                [(table + HEADER).to(tl.int64), code, slot, met, number, capacity - 1, found],
                dtype=(tl.int32, tl.int32),
                is_pure=False,
                pack=1,
            )
            probes += 32
        else:
            pending = found == PENDING
            met = swap_if_empty(place, code, pending & (met == EMPTY), met, EMPTY, PTX)
            found = tl.where(pending & (met == code), number.to(tl.int32), found)
            found = tl.where(pending & (met == EMPTY), MADE, found)
            slot = tl.where(found == PENDING, (slot + STEP) & (capacity - 1), slot)
            probes += 1
    return slot, tl.maximum(found, 0) - 1, found == MADE, found == PENDING


# The same without making slots: each lane goes on alone until it meets its code or an empty slot.
# $0 slot; $1 row number plus one, 0 if there is none; $2 address of the first slot, $3 code, $4 slot, $5 and $6 its
# content, $7 capacity - 1, $8 whether the lane looks for anything
_LOOK_UP_PTX = tl.constexpr(
    """{ .reg .pred p; .reg .b64 met, number, place;
    mov.b32 $0, $4; mov.b32 $1, 0; setp.eq.s32 p, $8, 0; @p bra END;
    mov.b64 met, $5; mov.b64 number, $6;
    COMPARE: setp.eq.s64 p, met, $3; @p bra FOUND; setp.eq.s64 p, met, 0; @p bra END;
    add.s32 $0, $0, 9; and.b32 $0, $0, $7;
    mul.wide.u32 place, $0, 16; add.s64 place, place, $2; ld.global.v2.b64 {met, number}, [place]; bra COMPARE;
    FOUND: cvt.u32.u64 $1, number;
    END: }"""
)


@triton.jit
def look_up(
    table, code, unit, wanted, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """The slot and the row number of each code of a tile `[ROWS, BLOCK]`, -1 where it is absent or not wanted; the
    `unit` is that of the header.

    A finished table is at most half full, so an empty slot ends every probe.
    """
    slot = home_slot(code, unit, capacity, CORNER_BITS, D)
    pending = wanted & (code > 0)
    if PTX:
        met, number = load_entry(entry_of(table, slot), pending, PTX)
        slot, found = tl.inline_asm_elementwise(
            _LOOK_UP_PTX,
            "=&r,=&r,l,l,r,l,l,r,r",
            [(table + HEADER).to(tl.int64), code, slot, met, number, capacity - 1, pending.to(tl.int32)],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
        return slot, found - 1
    else:
        row = tl.full(code.shape, -1, tl.int32)
        while is_any(pending):
            met, number = load_entry(entry_of(table, slot), pending, PTX)
            row = tl.where(pending & (met == code), number.to(tl.int32) - 1, row)
            pending = pending & (met != EMPTY) & (met != code)
            slot = tl.where(pending, (slot + STEP) & (capacity - 1), slot)
        return slot, row
