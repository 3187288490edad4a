// find_largest: the point with the largest value of each channel, among the points around a vertex.
#pragma once

#include <algorithm>

#include "filter/channel_panels.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Some channels of a point, at one of its corners; NaN is larger than any number.
template <class T>
inline void compare_point(const T* value, int32_t point, int64_t width, T* most, int32_t* winner) {
    for (int64_t c = 0; c < width; ++c) {
        const bool better = (winner[c] < 0) | (value[c] > most[c]) | ((value[c] != value[c]) & (most[c] == most[c]));
        most[c] = better ? value[c] : most[c];
        winner[c] = better ? point : winner[c];
    }
}

// Writes the first point that has the largest value of each channel at each vertex, -1 where there is none.
template <class T>
void find_largest(Matrix<const T> values, Simplices<T> simplices, Matrix<int32_t> winners, int threads) {
    const int64_t channels = values.num_channels;
    // each task has some channels of all lattice points, to which the points come in order
    parallel_for(threads, divide_up(channels, panel_channels<T>), [&](int64_t panel, int) {
        const int64_t first = panel * panel_channels<T>, width = std::min(panel_channels<T>, channels - first);
        const Memory largest(sizeof(T) * winners.num_rows * width);
        for (int64_t v = 0; v < winners.num_rows; ++v) std::fill_n(winners.data + v * channels + first, width, -1);
        for (int64_t i = 0; i < simplices.num_points; ++i) {
            const int32_t* vertices = simplices.vertices + i * simplices.num_corners;
            for (int64_t j = 0; j < simplices.num_corners; ++j) {
                compare_point(values.data + i * channels + first, int32_t(i), width,
                              as<T>(largest) + vertices[j] * width, winners.data + vertices[j] * channels + first);
            }
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
