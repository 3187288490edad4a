// sum_axis_neighbors: the sum over a lattice point, as often as it can have axis neighbors, and these.
#pragma once

#include <algorithm>

#include "kernels.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// lattice points of one task, and those whose sums are in registers together
constexpr int64_t rows_per_block = 2048;
template <int C>
constexpr int rows_together = C == 1 ? 16 : 8;

// Writes the sums of W lattice points from v on, [W, C]. A row of zeros before the first one stands for missing neighbors.
template <class T, int C, int W>
PERMUTOHEDRAL_INLINE void sum_axis_rows(const T* rows, const NeighborTable& neighbors, int64_t v, T* out) {
    T sums[W * C];
    for (int i = 0; i < W * C; ++i) sums[i] = T(neighbors.filter_size) * rows[v * C + i];
    for (int64_t k = 0; k < neighbors.filter_size; ++k) {
        const int32_t* neighbor = neighbors.data + k * neighbors.num_targets + v;
        for (int w = 0; w < W; ++w) {
            for (int c = 0; c < C; ++c) sums[w * C + c] += rows[int64_t(neighbor[w]) * C + c];
        }
    }
    for (int i = 0; i < W * C; ++i) out[i] = sums[i];
}

// Writes the sums of the lattice points of a range, [range, C].
template <class T, int C>
PERMUTOHEDRAL_INLINE void sum_axis_range(const T* rows, const NeighborTable& neighbors, Range range, T* out) {
    constexpr int W = rows_together<C>;
    int64_t v = range.begin;
    for (; v + W <= range.end; v += W) sum_axis_rows<T, C, W>(rows, neighbors, v, out + (v - range.begin) * C);
    for (; v < range.end; ++v) sum_axis_rows<T, C, 1>(rows, neighbors, v, out + (v - range.begin) * C);
}

// Writes filter_size times each row plus those of its neighbors.
template <class T>
void sum_axis_neighbors(Matrix<const T> values, NeighborTable axis_neighbors, Matrix<T> out, int threads) {
    const int64_t channels = values.num_channels;
    // C channels at a time, of which the last may be padding
    const auto run = [&](int64_t first, auto constant) {
        constexpr int C = decltype(constant)::value;
        const int64_t width = std::min<int64_t>(C, channels - first);
        const Memory memory(size_t((values.num_rows + 1) * C) * sizeof(T));
        T* rows = as<T>(memory) + C;
        std::fill_n(rows - C, C, T(0));
        parallel_ranges(threads, values.num_rows, rows_per_block, [&](int64_t begin, int64_t end, int) {
            for (int64_t v = begin; v < end; ++v) {
                for (int c = 0; c < C; ++c) {
                    rows[v * C + c] = c < width ? values.data[v * channels + first + c] : T(0);
                }
            }
        });
        parallel_ranges(threads, values.num_rows, rows_per_block, [&](int64_t begin, int64_t end, int) {
            T sums[rows_per_block * C];
            sum_axis_range<T, C>(rows, axis_neighbors, {begin, end}, sums);
            for (int64_t v = begin; v < end; ++v) {
                for (int64_t c = 0; c < width; ++c) out.data[v * channels + first + c] = sums[(v - begin) * C + c];
            }
        });
    };
    for (int64_t first = 0; first < channels; first += 4) {
        dispatch<1, 4>(channels - first, [&](auto constant) { run(first, constant); });
    }
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
