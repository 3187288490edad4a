"""The hash table of packed keys: its layout, and the device functions that every kernel on it shares.

A lattice point is an item, a corner class j and d quotients q_i; its coordinates are (d+1) q_i + j. One positive int64,
the *code*, holds them all. Equal codes are equal keys, so the table needs no second comparison. The header holds
how many bits each part gets, and is written on the device. (The core on the CPU packs other digits, differences of
coordinates: `native/index/key_packing.hpp`.)

The table is one int64 tensor: a header of `HEADER` words, then `capacity` slots of two words each. The words are the
code (0: empty slot) and the row number plus one (0: not known yet), so that one memory access reads both. All zeros are
an empty table. It uses open addressing, and the capacity is a power of two.

Lattice points that follow each other along the last axis lie in adjacent slots, eight in one cache line. For images and
volumes without colors that axis is the one of memory. So the corners of consecutive points, and the neighbors of
consecutive lattice points, share cache lines.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.kernel import power_of_two, zeros

# not a difference of two powers of two, so that the size of the whole table is not a power of two
HEADER = tl.constexpr(144)
# words of the header: for coordinate i the lowest quotient, the shift of its digit, the number of digits
LOW = tl.constexpr(0)
SHIFT = tl.constexpr(32)
EXTENT = tl.constexpr(64)
ITEM_SHIFT = tl.constexpr(96)
ITEM_EXTENT = tl.constexpr(97)
# increase of a code when all quotients grow by one
UNIT = tl.constexpr(98)
# flags, 1 after a failure: a feature or item that has no key, a key that has no code, too many keys
BAD_FEATURE = tl.constexpr(101)
NO_ROOM = tl.constexpr(102)
FULL = tl.constexpr(103)
# number of lattice points: in a cache line of its own, since many threads add to it while others read flags
COUNT = tl.constexpr(112)
# a probe of this length means that the table is too small
MAX_PROBES = tl.constexpr(256)
EMPTY = tl.constexpr(0)
# adjacent slots; a probe continues in the next group, and its step is odd, so that it reaches every slot
GROUP = tl.constexpr(8)
STEP = tl.constexpr(9)
# slots are numbered in 32 bits
LARGEST_CAPACITY = 1 << 30
# state of a lane of `insert`
MADE = tl.constexpr(-2)
PENDING = tl.constexpr(-3)


class PackedTable(NamedTuple):
    """A table of packed keys."""

    storage: Tensor  # int64 [HEADER + 2 capacity]

    @staticmethod
    def empty(capacity: int, device: torch.device) -> PackedTable:
        return PackedTable(zeros(int(HEADER.value) + 2 * capacity, dtype=torch.int64, device=device))

    @staticmethod
    def holds(storage: Tensor) -> bool:
        """Return whether `storage` is a table; the reference, which numbers keys of several words, makes empty ones."""
        return storage.numel() > 0

    @property
    def capacity(self) -> int:
        return (self.storage.numel() - int(HEADER.value)) // 2


def capacity_for(num_keys: int) -> int:
    """Return the slots for `num_keys` distinct keys: the table is at most half full, unless it is the largest."""
    return min(power_of_two(2 * num_keys, 64), LARGEST_CAPACITY)


@triton.jit
def entry_of(table, slot):
    """Return the pointer to the code in a slot; the row number is the next word."""
    return table + HEADER + 2 * slot.to(tl.int64)


@triton.jit
def count_rows(table, most, COUNTED: tl.constexpr):
    """Return the number of rows: `most`, or with COUNTED that of the table, 0 if it exceeds `most`."""
    if COUNTED:
        count = tl.load(table + COUNT).to(tl.int32)
        return tl.where(count <= most, count, 0)
    else:
        return most


@triton.jit
def is_any(lanes):
    """Return whether any element of a tile `[ROWS, BLOCK]` is true; rows first, which lie in one thread."""
    return tl.max(tl.max(lanes.to(tl.int32), axis=0), axis=0) > 0


@triton.jit
def floor_quotient(coordinate, D: tl.constexpr):
    """Return coordinate / (d+1) rounded down, and the remainder: a digit and the corner of a key."""
    quotient = coordinate // (D + 1)
    rest = coordinate - quotient * (D + 1)
    below = rest < 0
    return tl.where(below, quotient - 1, quotient), tl.where(below, rest + D + 1, rest)


@triton.jit
def mix(word, other):
    """Hash two 32-bit words into a uint32."""
    mixed = word.to(tl.uint32, bitcast=True) * 0x9E3779B1 + other.to(tl.uint32, bitcast=True) * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39
    return mixed ^ (mixed >> 15)


@triton.jit
def home_slot(code, unit, capacity, CORNER_BITS: tl.constexpr, D: tl.constexpr):
    """Return the slot where the probe for `code` begins, int32; `unit` is that of the header.

    One step along the last axis adds one to every coordinate (d+1) q_i + j but the last, which no key holds. So the
    first coordinate gives the place in a group. The rest of it and the differences of the quotients give the group.

    `code` is corner + sum_i q_i 2^(bits below digit i), so with the sum of these powers, the unit, code - q_0 unit has
    the differences q_i - q_0 as its digits: the same for all vertices on a line along the last axis.
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
def load_entry(pointers, lanes, PTX: tl.constexpr):
    """Load code and row number plus one, int64, where `lanes` is true; zeros elsewhere."""
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
    """Load a row number plus one, int64, past the first cache, where `lanes` is true; 0 elsewhere."""
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
        # volatile, so that it is not moved out of the loop that waits for the number
        return tl.load(pointers, mask=lanes, other=EMPTY, volatile=True)


@triton.jit
def store_lanes(pointers, values, lanes, PTX: tl.constexpr):
    """Store scattered int64 values; with PTX without moving them between threads first.

    A plain store suffices for a row number. Only the thread that made the slot writes it, an aligned word is never
    torn, and the number is the whole message: readers wait until it is not zero, with relaxed loads, and read no other
    memory because of it.
    """
    if PTX:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.b64 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,l,r",
            [pointers.to(tl.int64), values, lanes.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(pointers, values, mask=lanes)


# Continues a probe after the first access to a slot, where most probes end: each lane on its own.
#     met, number = $5, $6
#     repeat up to 32 times:
#         if met is empty: met = compare-and-swap(slot, empty, code); number = 0; if it was empty: MADE, end
#         if met is the code: found = number, end
#         slot = STEP slots on; met, number = its content
# $0 slot; $1 result: a row number plus one, 0 not known yet, MADE or PENDING; $2 address of the first slot,
# $3 code, $4 slot, $5 and $6 its content, $7 capacity - 1, $8 result before
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
    """Find or make the slot of each code of a tile `[ROWS, BLOCK]`; `unit` is that of the header.

    Without PTX every lane takes part; a lane that is not `wanted` must carry a code that may be inserted.

    Returns: slot int32, its row number int32 (-1 if not known yet), whether this lane made it int1, whether the table
    was too full int1.
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
            vacant = pending & (met == EMPTY)
            if is_any(vacant):
                swapped = tl.atomic_cas(place, tl.full(code.shape, EMPTY, tl.int64), code, sem="relaxed")
                met = tl.where(vacant, swapped, met)
            found = tl.where(pending & (met == code), number.to(tl.int32), found)
            found = tl.where(pending & (met == EMPTY), MADE, found)
            slot = tl.where(found == PENDING, (slot + STEP) & (capacity - 1), slot)
            probes += 1
    return slot, tl.maximum(found, 0) - 1, found == MADE, found == PENDING


# The same without making slots: each lane continues until it meets its code or an empty slot.
# $0 slot; $1 row number plus one, 0 if there is none; $2 address of the first slot, $3 code, $4 slot, $5 and $6 its
# content, $7 capacity - 1, $8 whether the lane takes part
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
    """Return slot and row number of each code of a tile `[ROWS, BLOCK]`, -1 where it is absent or not wanted.

    `unit` is that of the header. An empty slot ends every probe.
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
