// Keys packed into few 64-bit words, exactly and linearly, so that the key of a neighbor is one addition per word away.
//
// A key has 1 + d columns: the batch item and d coordinates c_0 .. c_{d-1}. Each column gives one digit: the item, c_0,
// and (c_0 - c_i) / (d+1) for i >= 1. These are integers, since the coordinates of a vertex are congruent modulo d+1.
// The digits are then reduced to smaller ranges (digit_reduction.hpp).
// The hash table of GPUs has other digits, the quotients q_i = floor(c_i / (d+1)), and next to them the corner they share,
// c_i mod (d+1). A key has a code as soon as its own quotients are known. The differences here need no corner, so that an
// offset is one number to add, whatever the key; there it may carry from the corner into all quotients.
// A digit that takes n values from its lowest to its highest gets the bits for n + 2 margin values, with an empty
// margin on both sides. Adding an offset of at most the margin to a key in the range, or within the margin around it,
// gives either the right packed key or one with a digit in an empty margin, which equals no key that occurs: no carry
// can turn one key into another.
//
// Packed keys are compared as numbers, word by word. The item is the most significant digit, so items stay apart;
// then the digit of c_1, which grows with the first feature and depends on it alone: for an image
// whose first feature is y, the order is roughly that of its pixels.
#pragma once

#include <cstdint>

#include "index/digit_reduction.hpp"
#include "runtime/dispatch.hpp"

namespace permutohedral {

struct KeyPacking {
    int64_t num_columns;  // 1 + d
    int64_t num_words;    // 64-bit words of a packed key
    // by column
    int64_t low[max_columns];     // the digit that packs to 0: the lowest less the margin
    int64_t margin[max_columns];  // values left empty on either side
    int64_t bits[max_columns];
    int64_t word[max_columns];   // which word holds the digit
    int64_t shift[max_columns];  // and from which bit on
    DigitReduction reduction;
};

// The widest margin for which keys of this range fit one word; the smallest if none does.
KeyPacking plan_packing(int64_t num_columns, const DigitRange& range, const DigitReduction& reduction);

// Packs a key; false if it is no vertex, or lies outside of range and margin.
bool pack_key(const KeyPacking& packing, const int64_t* key, uint64_t* packed);

// Packing is affine: a key packs to the origin plus the linear part. Neither is checked for range.
void pack_origin(const KeyPacking& packing, uint64_t* packed);
void pack_linear(const KeyPacking& packing, const int64_t* key, uint64_t* addend);

void unpack_keys(const KeyPacking& packing, const uint64_t* packed, int64_t count, int32_t* keys);

// What to add to a packed key to move it by `offset [d]`; false if that may leave the margin.
bool pack_offset(const KeyPacking& packing, const int32_t* offset, uint64_t* addend);

// A packing in int64 words, as it stands at the front of a lookup table; reading fails where it does not start with one.
int64_t packing_size(int64_t num_columns);
void write_packing(const KeyPacking& packing, int64_t* out);
bool read_packing(const int64_t* in, int64_t available, KeyPacking& packing);

// Hash of a word: packed keys of neighbors differ in few bits, which two multiplications spread over the word.
static inline uint64_t mix(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 29);
}

// W is the number of words of a packed key if known at compile time, else 0.
template <int W>
static inline uint64_t hash_key(const uint64_t* key, Extent<W> num_words) {
    uint64_t hash = mix(key[0]);
    for (int64_t w = 1; w < num_words; ++w) hash = mix(hash + key[w]);
    return hash;
}

template <int W>
static inline bool same_key(const uint64_t* a, const uint64_t* b, Extent<W> num_words) {
    for (int64_t w = 0; w < num_words; ++w) {
        if (a[w] != b[w]) return false;
    }
    return true;
}

template <int W>
static inline bool less_key(const uint64_t* a, const uint64_t* b, Extent<W> num_words) {
    for (int64_t w = 0; w < num_words - 1; ++w) {
        if (a[w] != b[w]) return a[w] < b[w];
    }
    return a[num_words - 1] < b[num_words - 1];
}

// keys behind the last one that may be read; they are larger than all others
constexpr int64_t table_padding = 4;

// The lookup table of a lattice, as Python holds it, an int64 vector without pointers:
// packing | num_lattice_points | sorted packed keys | padding | order
// The order, uint32 [num_lattice_points], two to a word, is the number of the vertex with each sorted key; it is missing
// where the vertices are numbered in this order.
struct LookupTable {
    KeyPacking packing;
    int64_t num_lattice_points;
    const uint64_t* packed;  // [num_lattice_points + table_padding, num_words]
    const uint32_t* order;   // or null
};

// Words of a table without order.
int64_t lookup_table_size(const KeyPacking& packing, int64_t num_lattice_points);

// Writes all but the keys; returns where those go.
uint64_t* begin_lookup_table(const KeyPacking& packing, int64_t num_lattice_points, int64_t* table);

// Throws std::invalid_argument if `data [size]` is no table.
LookupTable view_lookup_table(const int64_t* data, int64_t size);

}  // namespace permutohedral
