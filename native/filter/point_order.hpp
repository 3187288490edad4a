// The order in which splat and slice go through the points, in blocks.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "filter/channel_vectors.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

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

constexpr int64_t sampled_steps = 1024;
// a lattice of fewer bytes mostly stays in the caches, in whatever order its points are read
constexpr int64_t cached_lattice_bytes = int64_t{1} << 24;
// handing out a single block would take longer than planning it
constexpr int64_t planned_blocks_per_task = 16;
// distance from the vertex of one point to that of the next: beyond it, the level-one cache likely misses
constexpr int64_t near_step_bytes = int64_t{1} << 16;
// size of the values of a bucket: with its neighbors they stay in a level-two cache
constexpr int64_t bucket_bytes = int64_t{1} << 18, max_buckets = 256;
constexpr int64_t sorted_per_task = 16384;

// Whether most steps from a point to the next lead far away, on a lattice that exceeds the caches.
template <class T>
bool is_scattered(const Simplices<T>& simplices, const LatticeShape& shape) {
    if (shape.num_lattice_points * shape.row_bytes < cached_lattice_bytes || simplices.num_points < 2 * sampled_steps)
        return false;
    if (simplices.num_points > int64_t(UINT32_MAX)) return false;
    int64_t num_far = 0;
    for (int64_t s = 0; s < sampled_steps; ++s) {
        const int64_t point = block_range(simplices.num_points - 1, sampled_steps, s).begin;
        const int32_t* vertex = simplices.vertices + point * simplices.num_corners;
        const int64_t step = int64_t(vertex[simplices.num_corners]) - vertex[0];
        num_far += (step < 0 ? -step : step) * shape.row_bytes > near_step_bytes;
    }
    return 2 * num_far > sampled_steps;
}

// Calls function(point, place) with the place of each point, at most 2^32 - 1 of them, in a stable sort by
// bucket_of(point), which is in [0, num_buckets). The result does not depend on the number of threads.
template <class BucketOf, class Function>
void sort_by_buckets(int64_t num_points, int64_t num_buckets, int threads, BucketOf&& bucket_of, Function&& function) {
    const int64_t num_parts = divide_up(num_points, sorted_per_task);
    const Memory memory(sizeof(uint32_t) * num_buckets * num_parts);
    // how many points of each part are in each bucket, then where these begin
    uint32_t* places = as<uint32_t>(memory);
    std::memset(places, 0, memory.size());
    parallel_ranges(threads, num_points, sorted_per_task, [&](int64_t begin, int64_t end, int) {
        uint32_t* counts = places + begin / sorted_per_task * num_buckets;
        for (int64_t i = begin; i < end; ++i) ++counts[bucket_of(i)];
    });
    uint32_t before = 0;
    for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
        for (int64_t part = 0; part < num_parts; ++part) {
            uint32_t& count = places[part * num_buckets + bucket];
            std::swap(before, count);
            before += count;
        }
    }
    parallel_ranges(threads, num_points, sorted_per_task, [&](int64_t begin, int64_t end, int) {
        uint32_t* next = places + begin / sorted_per_task * num_buckets;
        for (int64_t i = begin; i < end; ++i) function(i, int64_t(next[bucket_of(i)]++));
    });
}

// Copies the simplices into the order of their first vertices, roughly.
template <class T>
void sort_simplices(const Simplices<T>& simplices, const LatticeShape& shape, PointOrder<T>& order, int threads) {
    const int64_t count = simplices.num_points * simplices.num_corners;
    order.memory = Memory((sizeof(int32_t) + sizeof(T)) * count + sizeof(uint32_t) * simplices.num_points);
    T* weights = as<T>(order.memory);
    int32_t* vertices = reinterpret_cast<int32_t*>(weights + count);
    uint32_t* point_at = reinterpret_cast<uint32_t*>(vertices + count);
    const int64_t num_buckets =
        std::clamp<int64_t>(shape.num_lattice_points * shape.row_bytes / bucket_bytes, 2, max_buckets);
    const uint64_t factor = (uint64_t(num_buckets) << 32) / uint64_t(shape.num_lattice_points);
    dispatch_small(simplices.num_corners, [&](auto corners) {
        const Extent<decltype(corners)::value> size(simplices.num_corners);
        auto bucket_of = [&](int64_t point) { return uint64_t(simplices.vertices[point * size]) * factor >> 32; };
        sort_by_buckets(simplices.num_points, num_buckets, threads, bucket_of, [&](int64_t point, int64_t place) {
            point_at[place] = uint32_t(point);
            std::memcpy(vertices + place * size, simplices.vertices + point * size, sizeof(int32_t) * size);
            std::memcpy(weights + place * size, simplices.barycentric + point * size, sizeof(T) * size);
        });
    });
    order.simplices.vertices = vertices;
    order.simplices.barycentric = weights;
    order.point_at = point_at;
}

// Returns the range from the lowest of `count` vertices to the highest.
Range find_extent(const int32_t* vertices, int64_t count) {
    using V = VectorOf<int32_t, lanes<int32_t>>::type;
    int32_t low = vertices[0], high = low;
    V lows = V{} + low, highs = lows;
    int64_t i = 0;
    for (; i + lanes<int32_t> <= count; i += lanes<int32_t>) {
        const V next = load<int32_t, lanes<int32_t>>(vertices + i);
        lows = next < lows ? next : lows;
        highs = next > highs ? next : highs;
    }
    for (; i < count; ++i) {
        low = std::min(low, vertices[i]);
        high = std::max(high, vertices[i]);
    }
    for (int l = 0; l < lanes<int32_t>; ++l) {
        low = std::min(low, int32_t(lows[l]));
        high = std::max(high, int32_t(highs[l]));
    }
    return {low, int64_t(high) + 1};
}

// Plans the order of the points of some simplices. Without `with_vertices` the range of a block is all vertices.
template <class T>
PointOrder<T> plan_order(const Simplices<T>& simplices, const LatticeShape& shape, bool with_vertices, int threads) {
    PointOrder<T> order;
    order.simplices = simplices;
    if (is_scattered(simplices, shape)) sort_simplices(simplices, shape, order, threads);
    order.num_blocks = divide_up(simplices.num_points, block_points);
    order.block_memory = Memory(sizeof(PointBlock) * order.num_blocks);
    PointBlock* blocks = as<PointBlock>(order.block_memory);
    order.blocks = blocks;
    parallel_ranges(
        with_vertices ? threads : 1, order.num_blocks, planned_blocks_per_task, [&](int64_t first, int64_t last, int) {
            for (int64_t b = first; b < last; ++b) {
                const int64_t begin = b * block_points, end = std::min(begin + block_points, simplices.num_points);
                const int32_t* vertices = order.simplices.vertices + begin * simplices.num_corners;
                const int64_t count = (end - begin) * simplices.num_corners;
                blocks[b] = {{begin, end},
                             with_vertices ? find_extent(vertices, count) : Range{0, shape.num_lattice_points}};
            }
        });
    return order;
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
