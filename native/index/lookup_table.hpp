// The lookup table of a lattice, as it is handed to Python: an int64 vector without pointers.
#pragma once

#include "index/key_packing.hpp"

namespace permutohedral {

// keys behind the last one that may be read; they are larger than all others
constexpr int64_t table_padding = 4;

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
