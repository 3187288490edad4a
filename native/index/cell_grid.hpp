// A grid over the box of all digits that the vertices of some points may have, one cell for each possible vertex. Where
// it is small, vertices are numbered without hashing: mark the cells that occur, and count the marks before each.
#pragma once

#include <cstdint>

#include "index/key_packing.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {

// a grid of more cells would take longer to clear and to count than hashing takes
constexpr int64_t cells_per_corner = 16, max_cells = int64_t{1} << 29;

// in more dimensions the box of digits is never that small
constexpr int64_t max_grid_dimension = 6;

constexpr int64_t group_cells = 32;

struct CellGroup {
    uint32_t occupied;    // one bit per cell: whether it is a vertex
    uint32_t num_before;  // vertices in all groups before this one
};

struct CellGrid {
    static constexpr int64_t num_words = 1;
    int64_t num_columns = 0, num_cells = 0;
    int64_t low[max_columns], stride[max_columns];  // by column
    DigitReduction reduction;
    Memory groups;  // CellGroup [num_groups]

    int64_t num_groups() const { return (num_cells + group_cells - 1) / group_cells; }
};

// Cells in the order of the packed keys; false if there would be too many for `num_corners` corners.
bool plan_grid(int64_t num_columns, const DigitRange& range, const DigitReduction& reduction, int64_t num_corners,
               CellGrid& grid);

// The number of a cell is affine in the key, like a packed key of one word.
void pack_origin(const CellGrid& grid, uint64_t* cell);
void pack_linear(const CellGrid& grid, const int64_t* key, uint64_t* addend);

// The packed keys, of one word each, of the vertices in order; for up to max_grid_dimension dimensions.
void write_packed_keys(const CellGrid& grid, const KeyPacking& packing, uint64_t* packed, int threads);

}  // namespace permutohedral
