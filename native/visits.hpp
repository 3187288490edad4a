// The order in which splat and slice visit the points, in blocks. Compiled once per instruction set.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {

// Visits, and the range of the rows of their corners.
struct Block {
    Range visits, rows;
};

constexpr int64_t block_points = 1024;

struct LatticeShape {
    int64_t rows, row_bytes;
};

// Points in the order of their visits. Where successive points lie far apart on a lattice that exceeds the caches, those
// that share rows are visited one after another. The order does not depend on the number of threads.
template <class T>
struct Visits {
    Corners<T> corners;               // by visit
    const uint32_t* order = nullptr;  // point of each visit; null if it is the visit's number
    const Block* blocks = nullptr;
    int64_t num_blocks = 0;
    Memory memory, block_memory;
};

// Without `with_rows` the rows of a block are all rows. Corners that have an `order` already keep it.
template <class T>
Visits<T> plan_visits(const Corners<T>& corners, const LatticeShape& shape, bool with_rows, int threads,
                      const uint32_t* order = nullptr);

namespace {

template <class T>
PERMUTOHEDRAL_INLINE Corners<T> corners_at(const Corners<T>& corners, int64_t visit) {
    return {corners.vertices + visit * corners.corners, corners.barycentric + visit * corners.corners, 1,
            corners.corners};
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
