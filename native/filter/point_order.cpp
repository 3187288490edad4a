#include "filter/point_order.hpp"

#include <algorithm>
#include <cstring>

#include "index/bucket_sort.hpp"
#include "filter/channel_vectors.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t sampled_points = 1024;
// blocks of one task: one alone takes less time than handing it out
constexpr int64_t blocks_at_once = 16;
// a lattice of so many bytes mostly stays in the caches; a step of so many bytes in it likely leaves the nearest one
constexpr int64_t small_lattice = int64_t{1} << 24, small_step = int64_t{1} << 16;
// rows of so many bytes stay in a level-two cache together with those next to them
constexpr int64_t bucket_bytes = int64_t{1} << 18, max_buckets = 256;

// Whether most steps from a point to the next lead far away.
template <class T>
bool is_scattered(const Corners<T>& corners, const LatticeShape& shape) {
    if (shape.rows * shape.row_bytes < small_lattice || corners.points < 2 * sampled_points) return false;
    if (corners.points > int64_t(UINT32_MAX)) return false;
    int64_t num_far = 0;
    for (int64_t s = 0; s < sampled_points; ++s) {
        const int64_t point = block_range(corners.points - 1, sampled_points, s).begin;
        const int32_t* vertex = corners.vertices + point * corners.corners;
        const int64_t step = int64_t(vertex[corners.corners]) - vertex[0];
        num_far += (step < 0 ? -step : step) * shape.row_bytes > small_step;
    }
    return 2 * num_far > sampled_points;
}

// Copies the corners into the order of the rows of the first ones.
template <class T>
void sort_visits(const Corners<T>& corners, const LatticeShape& shape, Visits<T>& visits, int threads) {
    const int64_t count = corners.points * corners.corners;
    visits.memory = Memory((sizeof(int32_t) + sizeof(T)) * count + sizeof(uint32_t) * corners.points);
    T* weights = as<T>(visits.memory);
    int32_t* vertices = reinterpret_cast<int32_t*>(weights + count);
    uint32_t* order = reinterpret_cast<uint32_t*>(vertices + count);
    const int64_t num_buckets = std::clamp<int64_t>(shape.rows * shape.row_bytes / bucket_bytes, 2, max_buckets);
    const uint64_t factor = (uint64_t(num_buckets) << 32) / uint64_t(shape.rows);
    with_constant(corners.corners, [&](auto constant) {
        const int64_t size = decltype(constant)::value > 0 ? decltype(constant)::value : corners.corners;
        auto bucket_of = [&](int64_t point) { return uint64_t(corners.vertices[point * size]) * factor >> 32; };
        Buckets<decltype(bucket_of)> buckets(corners.points, num_buckets, bucket_of);
        buckets.place(threads, [&](int64_t point, int64_t place) {
            order[place] = uint32_t(point);
            std::memcpy(vertices + place * size, corners.vertices + point * size, sizeof(int32_t) * size);
            std::memcpy(weights + place * size, corners.barycentric + point * size, sizeof(T) * size);
        });
    });
    visits.corners.vertices = vertices;
    visits.corners.barycentric = weights;
    visits.order = order;
}

}  // namespace

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

template <class T>
Visits<T> plan_visits(const Corners<T>& corners, const LatticeShape& shape, bool with_rows, int threads,
                      const uint32_t* order) {
    Visits<T> visits;
    visits.corners = corners;
    visits.order = order;
    if (order == nullptr && is_scattered(corners, shape)) sort_visits(corners, shape, visits, threads);
    visits.num_blocks = divide_up(corners.points, block_points);
    visits.block_memory = Memory(sizeof(Block) * visits.num_blocks);
    Block* blocks = as<Block>(visits.block_memory);
    visits.blocks = blocks;
    parallel_ranges(with_rows ? threads : 1, visits.num_blocks, blocks_at_once, [&](int64_t first, int64_t last, int) {
        for (int64_t b = first; b < last; ++b) {
            const int64_t begin = b * block_points, end = std::min(begin + block_points, corners.points);
            const int32_t* vertices = visits.corners.vertices + begin * corners.corners;
            const int64_t count = (end - begin) * corners.corners;
            blocks[b] = {{begin, end}, with_rows ? find_extent(vertices, count) : Range{0, shape.rows}};
        }
    });
    return visits;
}

template Visits<float> plan_visits(const Corners<float>&, const LatticeShape&, bool, int, const uint32_t*);
template Visits<double> plan_visits(const Corners<double>&, const LatticeShape&, bool, int, const uint32_t*);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
