#include "blocks.hpp"

#include <algorithm>

#include "simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t sampled_points = 1024;
// blocks of one task: one alone takes less time than handing it out
constexpr int64_t blocks_at_once = 16;
// a lattice of so many bytes stays in a level-two cache; a step of so many bytes in it likely leaves the nearest one
constexpr int64_t small_lattice = int64_t{1} << 20, small_step = int64_t{1} << 16;

// Whether most steps from a point to the next lead far away.
template <class T>
bool is_scattered(const Corners<T>& corners, const LatticeShape& shape) {
    if (shape.rows * shape.row_bytes < small_lattice || corners.points < 2 * sampled_points) return false;
    int64_t num_far = 0;
    for (int64_t s = 0; s < sampled_points; ++s) {
        const int64_t point = block_range(corners.points - 1, sampled_points, s).begin;
        const int32_t* vertex = corners.vertices + point * corners.corners;
        const int64_t step = int64_t(vertex[corners.corners]) - vertex[0];
        num_far += (step < 0 ? -step : step) * shape.row_bytes > small_step;
    }
    return 2 * num_far > sampled_points;
}

// Lowest and highest of `count` vertices.
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

}  // namespace

template <class T>
Blocks cut_blocks(const Corners<T>& corners, const LatticeShape& shape, bool with_rows, int threads) {
    Blocks blocks;
    blocks.scattered = is_scattered(corners, shape);
    blocks.count = divide_up(corners.points, block_points);
    blocks.memory = Memory(sizeof(Block) * blocks.count);
    Block* data = as<Block>(blocks.memory);
    blocks.data = data;
    parallel_ranges(with_rows ? threads : 1, blocks.count, blocks_at_once, [&](int64_t first, int64_t last, int) {
        for (int64_t b = first; b < last; ++b) {
            const int64_t begin = b * block_points, end = std::min(begin + block_points, corners.points);
            const int32_t* vertices = corners.vertices + begin * corners.corners;
            const int64_t count = (end - begin) * corners.corners;
            data[b] = {{begin, end}, with_rows ? find_extent(vertices, count) : Range{0, shape.rows}};
        }
    });
    return blocks;
}

template Blocks cut_blocks(const Corners<float>&, const LatticeShape&, bool, int);
template Blocks cut_blocks(const Corners<double>&, const LatticeShape&, bool, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
