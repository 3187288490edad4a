// sum_axis_neighbors: the sum over a lattice point, as often as it can have axis neighbors, and these.
#pragma once

#include "kernels.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// lattice points of one task: their sums stay in the nearest cache
constexpr int64_t rows_per_block = 2048;

// Writes the sums of the lattice points of a range to `sums`, [range, channels].
template <class T, int C>
PERMUTOHEDRAL_INLINE void sum_axis_neighbors_of(const T* rows, const NeighborTable& neighbors, Range range,
                                                Extent<C> channels, T* sums) {
    const int64_t count = range.end - range.begin;
    const T own = T(neighbors.filter_size);
    for (int64_t i = 0; i < count * channels; ++i) sums[i] = own * rows[range.begin * channels + i];
    for (int64_t k = 0; k < neighbors.filter_size; ++k) {
        const int32_t* row = neighbors.data + k * neighbors.num_targets + range.begin;
        for (int64_t i = 0; i < count; ++i) {
            // read row 0 in place of a missing neighbor: a load on no condition is part of a vector
            const bool missing = row[i] < 0;
            const T* from = rows + (missing ? 0 : row[i]) * channels;
            for (int64_t c = 0; c < channels; ++c) sums[i * channels + c] += missing ? T(0) : from[c];
        }
    }
}

template <class T>
void sum_axis_neighbors(Matrix<const T> rows, NeighborTable neighbors, Matrix<T> out, int threads) {
    dispatch<1, 2, 0>(rows.num_channels, [&](auto constant) {
        constexpr int C = decltype(constant)::value;
        const Extent<C> channels(rows.num_channels);
        parallel_ranges(threads, rows.num_rows, rows_per_block, [&](int64_t begin, int64_t end, int) {
            sum_axis_neighbors_of<T, C>(rows.data, neighbors, {begin, end}, channels, out.data + begin * channels);
        });
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
