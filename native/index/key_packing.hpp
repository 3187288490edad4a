// Keys packed into few 64-bit words, exactly and linearly: the key of a neighbor is one addition per word.
//
// A key has 1 + d columns: the batch item and d coordinates c_0 .. c_{d-1}. Each column gives one digit,
//   lattice form: item, c_0, (c_0 - c_i) / (d+1) for i >= 1, whole numbers since the coordinates are congruent
//                 modulo d+1: fewer bits;
//   plain form:   the columns themselves, for rows that need not be vertices of the lattice.
// In the lattice form a digit may take whole multiples of more significant ones (reduction.hpp): fewer bits again.
// A digit takes bits(n + 2 margin) bits, where n is the number of values from its lowest to its highest and
// the margin lies empty on both sides. Adding an offset of at most the margin to a key in this range, or within the
// margin around it, gives either the right packed key or one with a digit in an empty margin, which equals no key.
//
// Packed keys are compared as numbers, word by word. The item is the most significant digit, so items stay apart;
// then, in the lattice form, the digit of c_1, which grows with the first feature and depends on it alone: for an image
// whose first feature is y, the order is roughly that of its pixels.
#pragma once

#include <cstdint>

#include "index/digit_reduction.hpp"

namespace permutohedral {

struct Packing {
    int64_t columns;  // 1 + d
    int64_t words;    // 64-bit words of a packed key
    int64_t lattice;  // 1 for the lattice form, 0 for the plain one
    int64_t low[max_columns];     // digit value that packs to 0: the lowest less the margin
    int64_t margin[max_columns];
    int64_t bits[max_columns];
    int64_t word[max_columns];
    int64_t shift[max_columns];
    Reduction reduction;
};

Packing plan_packing(int64_t columns, bool lattice, const DigitRange& range, const Reduction& reduction);

// Packs a row; false if it is no vertex or lies outside of range and margin.
bool pack_row(const Packing& packing, const int64_t* row, uint64_t* key);

// The packed key is linear in the row, apart from what a row of zeros packs to; neither is checked for range.
void pack_origin(const Packing& packing, uint64_t* key);
void pack_linear(const Packing& packing, const int64_t* row, uint64_t* addend);

void unpack_rows(const Packing& packing, const uint64_t* keys, int64_t count, int32_t* rows);

// What to add to a packed key to move by `offset [columns - 1]`; false if it may leave the margin.
bool pack_offset(const Packing& packing, const int32_t* offset, uint64_t* addend);

// A packing as int64 words, at the front of a table.
int64_t packing_size(int64_t columns);
void write_packing(const Packing& packing, int64_t* out);
bool read_packing(const int64_t* in, int64_t available, Packing& packing);

// Linear keys of neighbors differ in few bits: two rounds of multiplication spread them over the word.
static inline uint64_t mix(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
}

// W is the number of words if known at compile time, else 0.
template <int W>
static inline uint64_t hash_key(const uint64_t* key, int64_t words) {
    uint64_t hash = mix(key[0]);
    const int64_t count = W > 0 ? W : words;
    for (int64_t w = 1; w < count; ++w) hash = mix(hash + key[w]);
    return hash;
}

template <int W>
static inline bool same_key(const uint64_t* a, const uint64_t* b, int64_t words) {
    const int64_t count = W > 0 ? W : words;
    for (int64_t w = 0; w < count; ++w) {
        if (a[w] != b[w]) return false;
    }
    return true;
}

template <int W>
static inline bool less_key(const uint64_t* a, const uint64_t* b, int64_t words) {
    const int64_t count = W > 0 ? W : words;
    for (int64_t w = 0; w < count - 1; ++w) {
        if (a[w] != b[w]) return a[w] < b[w];
    }
    return a[count - 1] < b[count - 1];
}

}  // namespace permutohedral
