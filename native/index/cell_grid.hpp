// A box of digits with room for all vertices of some points, cell by cell. Where it is small, the vertices are numbered
// without hashing: mark their cells, count the marks before each.
#pragma once

#include <cstdint>

#include "runtime/memory.hpp"
#include "index/key_packing.hpp"

namespace permutohedral {

constexpr int64_t entry_cells = 32;

struct GridEntry {
    uint32_t marks;  // bit by bit, which of 32 cells are vertices
    uint32_t base;   // how many vertices the cells before have
};

struct Grid {
    static constexpr int64_t words = 1;
    int64_t columns = 0, cells = 0;
    int64_t low[max_columns], stride[max_columns];
    Reduction reduction;
    Memory entries;  // GridEntry [cells / 32]

    int64_t num_entries() const { return (cells + entry_cells - 1) / entry_cells; }
};

// Cells in the order of the packed keys; false if there are more than `most`.
bool plan_grid(int64_t columns, const DigitRange& range, const Reduction& reduction, int64_t most, Grid& grid);

// The number of a cell is linear in the row, like a packed key of one word.
void pack_origin(const Grid& grid, uint64_t* cell);
void pack_linear(const Grid& grid, const int64_t* row, uint64_t* addend);

// The packed keys, of one word each, of the vertices in order; for at most 7 columns.
void write_packed_keys(const Grid& grid, const Packing& packing, uint64_t* packed, int threads);

}  // namespace permutohedral
