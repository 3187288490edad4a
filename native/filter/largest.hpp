// splat_largest: the largest value of each channel among the points around a vertex.
#pragma once

#include <algorithm>

#include "filter/channel_panels.hpp"
#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The channels from `first` on of a point, at one of its corners; NaN is larger than any number.
template <class T>
inline void compare_point(const T* value, int32_t point, int64_t width, T* most, int32_t* winner) {
    for (int64_t c = 0; c < width; ++c) {
        const bool better = (winner[c] < 0) | (value[c] > most[c]) | ((value[c] != value[c]) & (most[c] == most[c]));
        most[c] = better ? value[c] : most[c];
        winner[c] = better ? point : winner[c];
    }
}

// Writes the largest value of each channel at each vertex, zero where there is none, and the first point that has it, or -1.
template <class T>
void splat_largest(Matrix<const T> values, Simplices<T> simplices, Matrix<T> out, Matrix<int32_t> winners,
                   int threads) {
    const int64_t channels = values.num_channels;
    // each task has some channels of all lattice points, to which the points come in order
    parallel_for(threads, divide_up(channels, panel_channels<T>), [&](int64_t panel, int) {
        const int64_t first = panel * panel_channels<T>, width = std::min(panel_channels<T>, channels - first);
        for (int64_t v = 0; v < out.num_rows; ++v) {
            std::fill_n(out.data + v * channels + first, width, T(0));
            std::fill_n(winners.data + v * channels + first, width, -1);
        }
        for (int64_t i = 0; i < simplices.num_points; ++i) {
            const int32_t* vertices = simplices.vertices + i * simplices.num_corners;
            for (int64_t j = 0; j < simplices.num_corners; ++j) {
                const int64_t at = vertices[j] * channels + first;
                compare_point(values.data + i * channels + first, int32_t(i), width, out.data + at, winners.data + at);
            }
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
