// coarsen_rows and refine_rows: rows of values from one level of a pyramid to the next, and back. Compiled once per
// instruction set.
#include <algorithm>

#include "filter/channel_vectors.hpp"
#include "runtime/cache_sizes.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t rows_per_task = 2048;

// Some channels of all rows. Where a fine row is a coarse one itself, both halves are added to that, one after the other.
template <class T, int C>
void add_halves(Matrix<const T> fine, const int32_t* parents, Range chosen, Matrix<T> coarse) {
    const Extent<C> width(chosen.end - chosen.begin);
    const int64_t channels = fine.num_channels;
    for (int64_t i = 0; i < coarse.num_rows; ++i) {
        std::fill_n(coarse.data + i * channels + chosen.begin, int64_t(width), T(0));
    }
    for (int64_t i = 0; i < fine.num_rows; ++i) {
        const T* from = fine.data + i * channels + chosen.begin;
        T* low = coarse.data + parents[2 * i] * channels + chosen.begin;
        T* high = coarse.data + parents[2 * i + 1] * channels + chosen.begin;
        for_channel_vectors<T, C>(width, [&](int64_t c, auto vector) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(vector)::value;
            const ChannelVector<T, N> half = T(0.5) * load_channels<T, N>(from + c);
            store_channels<T, N>(low + c, load_channels<T, N>(low + c) + half);
            store_channels<T, N>(high + c, load_channels<T, N>(high + c) + half);
        });
    }
}

template <class T, int C, bool Adds>
void take_means(Matrix<const T> coarse, const int32_t* parents, const T* added, Range rows, T* fine) {
    const Extent<C> channels(coarse.num_channels);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
        const T* low = coarse.data + parents[2 * i] * channels;
        const T* high = coarse.data + parents[2 * i + 1] * channels;
        for_channel_vectors<T, C>(channels, [&](int64_t c, auto vector) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(vector)::value;
            ChannelVector<T, N> mean = T(0.5) * (load_channels<T, N>(low + c) + load_channels<T, N>(high + c));
            if constexpr (Adds) mean += load_channels<T, N>(added + i * channels + c);
            store_channels<T, N>(fine + i * channels + c, mean);
        });
    }
}

// Calls function(Constant<C>) with a number of channels that networks have, else with Constant<0>.
template <class Function>
PERMUTOHEDRAL_INLINE void dispatch_channels(int64_t channels, Function&& function) {
    dispatch<16, 32, 64, 0>(channels, function);
}

}  // namespace

template <class T>
void coarsen_rows(Matrix<const T> fine, const int32_t* parents, Matrix<T> coarse, int threads) {
    // each task has some channels of all rows, so that sums are the same on any number of threads; no two of them write
    // to one cache line, if rows begin with one
    constexpr int64_t line = cache_line_bytes / sizeof(T);
    const int64_t width = divide_up(divide_up(fine.num_channels, threads), line) * line;
    parallel_for(threads, divide_up(fine.num_channels, width), [&](int64_t task, int) {
        const Range chosen{task * width, std::min((task + 1) * width, fine.num_channels)};
        dispatch_channels(chosen.end - chosen.begin, [&](auto constant) {
            add_halves<T, decltype(constant)::value>(fine, parents, chosen, coarse);
        });
    });
}

template <class T>
void refine_rows(Matrix<const T> coarse, const int32_t* parents, const T* added, Matrix<T> fine, int threads) {
    parallel_ranges(threads, fine.num_rows, rows_per_task, [&](int64_t begin, int64_t end, int) {
        dispatch_channels(fine.num_channels, [&](auto constant) {
            constexpr int C = decltype(constant)::value;
            if (added == nullptr) {
                take_means<T, C, false>(coarse, parents, added, {begin, end}, fine.data);
            } else {
                take_means<T, C, true>(coarse, parents, added, {begin, end}, fine.data);
            }
        });
    });
}

template void coarsen_rows(Matrix<const float>, const int32_t*, Matrix<float>, int);
template void coarsen_rows(Matrix<const double>, const int32_t*, Matrix<double>, int);
template void refine_rows(Matrix<const float>, const int32_t*, const float*, Matrix<float>, int);
template void refine_rows(Matrix<const double>, const int32_t*, const double*, Matrix<double>, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
