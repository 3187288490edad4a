#include "index/coarsen.hpp"

#include "runtime/dispatch.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t vertices_per_task = 4096;

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

}  // namespace permutohedral
