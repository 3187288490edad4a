// The separable blur of lattice values, pass by pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "filter/channel_panels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t blurred_per_task = 2048;

// The row of a neighbor, or `zero` where it is missing: branch-free, since missing neighbors are unpredictable.
template <class T>
PERMUTOHEDRAL_INLINE const T* neighbor_row(const T* rows, int32_t neighbor, int64_t channels, const T* zero) {
    const uintptr_t missing = uintptr_t(intptr_t(neighbor >> 31));
    const uintptr_t row = reinterpret_cast<uintptr_t>(rows) + uintptr_t(neighbor * channels * int64_t(sizeof(T)));
    return reinterpret_cast<const T*>((row & ~missing) | (reinterpret_cast<uintptr_t>(zero) & missing));
}

// One pass: l + (l(ahead) + l(behind)) / 2; a missing neighbor reads the values `zero`.
template <class T, int C>
void blur_axis(Matrix<const T> in, const int32_t* ahead, const int32_t* behind, const T* zero, Range vertices, T* out) {
    const Extent<C> channels(in.num_channels);
    for (int64_t v = vertices.begin; v < vertices.end; ++v) {
        const T* a = neighbor_row<T>(in.data, ahead[v], channels, zero);
        const T* b = neighbor_row<T>(in.data, behind[v], channels, zero);
        for_channel_vectors<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int N = decltype(width)::value;
            const ChannelVector<T, N> sum = load_channels<T, N>(a + c) + load_channels<T, N>(b + c);
            store_channels<T, N>(out + v * channels + c,
                                 load_channels<T, N>(in.data + v * channels + c) + T(0.5) * sum);
        });
    }
}

inline int64_t num_axes(const NeighborTable& axis_neighbors) { return axis_neighbors.filter_size / 2; }

// Channels that are blurred together: the passes write to `first` and `second` in turn.
template <class T>
struct BlurredPanel {
    Matrix<const T> in;
    T* first;
    T* second;
};

// Blurs all panels; panel_at(p) is the p-th.
template <class T, class PanelAt>
void blur_passes(int64_t num_panels, PanelAt&& panel_at, const NeighborTable& axis_neighbors, bool reverse,
                 int threads) {
    const int64_t rows = axis_neighbors.num_targets, blocks = divide_up(rows, blurred_per_task);
    const int64_t axes = num_axes(axis_neighbors);
    const Memory zero(sizeof(T) * panel_at(0).in.num_channels);
    std::memset(zero.data(), 0, zero.size());
    for (int64_t pass = 0; pass < axes; ++pass) {
        const int64_t axis = reverse ? axes - 1 - pass : pass;
        const int32_t* ahead = axis_neighbors.data + 2 * axis * rows;
        parallel_for(threads, num_panels * blocks, [&](int64_t task, int) {
            const BlurredPanel<T> panel = panel_at(task % num_panels);
            const int64_t begin = task / num_panels * blurred_per_task;
            const Range range{begin, std::min(begin + blurred_per_task, rows)};
            Matrix<const T> in = panel.in;
            if (pass > 0) in.data = pass % 2 == 0 ? panel.second : panel.first;
            T* out = pass % 2 == 0 ? panel.first : panel.second;
            // those of a panel, and of the rows of a mean field
            constexpr int wide = panel_channels<T>;
            dispatch<wide, 1, 2, 3, 4, 5, 6, 7, 8, 3 * wide / 2, 2 * wide, 0>(in.num_channels, [&](auto constant) {
                blur_axis<T, decltype(constant)::value>(in, ahead, ahead + rows, as<T>(zero), range, out);
            });
        });
    }
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
