// The points in blocks, which splat and slice go through one after another. Compiled once per instruction set.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "parallel.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {

// Points, and the range of the rows of their corners.
struct Block {
    Range points, rows;
};

constexpr int64_t block_points = 1024;

struct LatticeShape {
    int64_t rows, row_bytes;
};

struct Blocks {
    Memory memory;
    const Block* data = nullptr;
    int64_t count = 0;
    // successive points share no rows of the lattice, which exceeds the caches: rows are worth fetching ahead
    bool scattered = false;
};

// Without `with_rows` the rows of a block are all rows.
template <class T>
Blocks cut_blocks(const Corners<T>& corners, const LatticeShape& shape, bool with_rows, int threads);

namespace {

template <class T>
inline Corners<T> corners_at(const Corners<T>& corners, int64_t point) {
    return {corners.vertices + point * corners.corners, corners.barycentric + point * corners.corners, 1,
            corners.corners};
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
