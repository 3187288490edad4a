// The order in which splat and slice go through the points, in blocks. Compiled once per instruction set.
#pragma once

#include "filter/channel_vectors.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

// Consecutive places of an order, and the range of the vertices that the points there touch.
struct PointBlock {
    Range places, vertices;
};

constexpr int64_t block_points = 1024;

struct LatticeShape {
    int64_t num_lattice_points, row_bytes;  // a row is the values of one lattice point
};

// The points in the order in which they are read. Where consecutive points lie far apart on a lattice that exceeds the
// caches, they are sorted so that those that share vertices follow each other; else they keep their order. The order
// does not depend on the number of threads.
template <class T>
struct PointOrder {
    Simplices<T> simplices;              // in this order
    const uint32_t* point_at = nullptr;  // the point at each place; null where the order is that of the points
    const PointBlock* blocks = nullptr;
    int64_t num_blocks = 0;
    Memory memory, block_memory;
};

// Without `with_vertices` the range of a block is all vertices. Simplices that come in another order than the points
// already, given as `point_at`, stay as they are.
template <class T>
PointOrder<T> plan_order(const Simplices<T>& simplices, const LatticeShape& shape, bool with_vertices, int threads,
                         const uint32_t* point_at = nullptr);

// From the lowest of `count` vertices to the highest.
Range find_extent(const int32_t* vertices, int64_t count);

namespace {

// The simplex of one point. K is the number of its corners if known at compile time, else 0.
template <class T, int K>
struct PointSimplex {
    const int32_t* vertices;
    const T* barycentric;
    Extent<K> num_corners;
};

template <int K, class T>
PERMUTOHEDRAL_INLINE PointSimplex<T, K> simplex_at(const Simplices<T>& simplices, int64_t place) {
    const Extent<K> num_corners(simplices.num_corners);
    return {simplices.vertices + place * num_corners, simplices.barycentric + place * num_corners, num_corners};
}

// Calls function(Constant<K>) with the number of corners where it is common (images, point clouds, volumes, images in
// color), else Constant<0>.
template <class Function>
PERMUTOHEDRAL_INLINE void dispatch_corners(int64_t num_corners, Function&& function) {
    dispatch<3, 4, 5, 6, 0>(num_corners, function);
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
