// The order in which splat and slice visit the points, in blocks. Compiled once per instruction set.
#pragma once

#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"
#include "filter/channel_vectors.hpp"

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

// Points in the order of their visits. Where successive points lie far apart on a lattice that exceeds the caches,
// those that share rows are visited one after another. The order does not depend on the number of threads.
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

// From the lowest of `count` vertices up to the highest.
Range find_extent(const int32_t* vertices, int64_t count);

namespace {

// The corners of one visit. K is their number if known at compile time, else 0.
template <class T, int K>
struct VisitCorners {
    const int32_t* vertices;
    const T* barycentric;
    static constexpr int64_t corners = K;
};
template <class T>
struct VisitCorners<T, 0> {
    const int32_t* vertices;
    const T* barycentric;
    int64_t corners;
};

template <int K, class T>
PERMUTOHEDRAL_INLINE VisitCorners<T, K> corners_at(const Corners<T>& corners, int64_t visit) {
    const int64_t number = K > 0 ? K : corners.corners;
    const int32_t* vertices = corners.vertices + visit * number;
    const T* barycentric = corners.barycentric + visit * number;
    if constexpr (K > 0) {
        return {vertices, barycentric};
    } else {
        return {vertices, barycentric, number};
    }
}

// Calls function(Width<K>) with the number of corners where it is common, else Width<0>.
template <class Function>
PERMUTOHEDRAL_INLINE void with_corners(int64_t number, Function&& function) {
    switch (number) {
        case 3: return function(Width<3>{});
        case 4: return function(Width<4>{});
        case 6: return function(Width<6>{});
        default: return function(Width<0>{});
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
