#include "index/coarsen.hpp"

#include <algorithm>
#include <vector>

#include "runtime/dispatch.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t vertices_per_task = 4096, connected_per_task = 512;

// Which n_j - n_1 are odd, a bit for each of the d+1 coordinates. C is the number of columns if known at compile time,
// else 0; there are as many coordinates, since the last takes the place of the item.
template <int C>
inline uint64_t odd_coordinates(const int32_t* key, Extent<C> columns) {
    uint64_t odd = 0;
    int64_t sum = 0;
    // x_j - x_1 is a multiple of d+1, so that the quotient is exact
    for (int64_t j = 1; j < columns; ++j) {
        sum += key[j];
        odd |= uint64_t((int64_t(key[j]) - key[1]) / columns & 1) << (j - 1);
    }
    return odd | uint64_t((-sum - key[1]) / columns & 1) << (columns - 1);
}

template <int C>
void write_parents(const int32_t* keys, Extent<C> columns, Range range, int32_t* out) {
    for (int64_t v = range.begin; v < range.end; ++v) {
        const int32_t* key = keys + v * columns;
        int32_t* low = out + 2 * v * columns;
        int32_t* high = low + columns;
        const uint64_t odd = odd_coordinates<C>(key, columns);
        int64_t number = 0;
        for (int64_t j = 0; j < columns; ++j) number += int64_t(odd >> j & 1);
        low[0] = high[0] = key[0];
        for (int64_t j = 1; j < columns; ++j) {
            const int64_t step = columns * int64_t(odd >> (j - 1) & 1) - number;
            low[j] = int32_t((key[j] - step) >> 1);
            high[j] = int32_t((key[j] + step) >> 1);
        }
    }
}

// The tap whose offset is e_S, for every set S as bits.
std::vector<int32_t> taps_by_set(const int32_t* offsets, int64_t columns) {
    const int64_t d = columns - 1, taps = (int64_t{1} << columns) - 1;
    std::vector<int32_t> found(taps + 1, 0);
    for (int64_t tap = 0; tap < taps; ++tap) {
        const int32_t* offset = offsets + tap * d;
        // e_S is congruent to -|S| modulo d+1
        const int64_t number = ((-int64_t(offset[0]) % columns) + columns) % columns;
        uint64_t set = 0;
        int64_t members = 0;
        for (int64_t j = 0; j < d; ++j) {
            if (offset[j] + number != columns) continue;
            set |= uint64_t{1} << j;
            ++members;
        }
        if (members < number) set |= uint64_t{1} << d;
        found[set] = int32_t(tap);
    }
    return found;
}

}  // namespace

void index_parents(VertexIndex& index, const int32_t* keys, int64_t num_vertices, int64_t num_columns) {
    const Memory memory(sizeof(int32_t) * 2 * num_vertices * num_columns);
    int32_t* parents = as<int32_t>(memory);
    parallel_ranges(index.threads, num_vertices, vertices_per_task, [&](int64_t begin, int64_t end, int) {
        dispatch<3, 4, 5, 6, 0>(num_columns, [&](auto columns) {
            write_parents<decltype(columns)::value>(keys, num_columns, {begin, end}, parents);
        });
    });
    index_keys(index, parents, num_columns);
}

void connect_levels(Matrix<const int32_t> keys, Matrix<const int32_t> parents, Matrix<const int32_t> offsets,
                    Matrix<int32_t> down, Matrix<int32_t> up, int threads) {
    const int64_t columns = keys.num_channels, taps = offsets.num_rows, num_fine = keys.num_rows;
    const int64_t num_coarse = down.num_channels;
    const std::vector<int32_t> tap_of = taps_by_set(offsets.data, columns);
    parallel_for(threads, taps, [&](int64_t tap, int) { std::fill_n(down.data + tap * num_coarse, num_coarse, -1); });
    // every entry is written by one vertex
    parallel_ranges(threads, num_fine, connected_per_task, [&](int64_t begin, int64_t end, int) {
        // few vertices at a time, which stay in the cache until the taps are filled in
        for (int64_t tap = 0; tap < taps; ++tap) {
            std::fill(up.data + tap * num_fine + begin, up.data + tap * num_fine + end, -1);
        }
        dispatch<3, 4, 5, 6, 0>(columns, [&](auto constant) {
            constexpr int C = decltype(constant)::value;
            for (int64_t x = begin; x < end; ++x) {
                const uint64_t odd = odd_coordinates<C>(keys.data + x * columns, columns);
                const int64_t low = parents.data[2 * x], high = parents.data[2 * x + 1];
                // the opposite of e_S is that of the other coordinates
                const int64_t tap = tap_of[odd], opposite = tap_of[odd == 0 ? 0 : odd ^ uint64_t(taps)];
                down.data[tap * num_coarse + low] = int32_t(x);
                down.data[opposite * num_coarse + high] = int32_t(x);
                up.data[opposite * num_fine + x] = int32_t(low);
                up.data[tap * num_fine + x] = int32_t(high);
            }
        });
    });
}

}  // namespace permutohedral
