// Products of small matrices whose results stay in registers: tiles of R rows by N vectors of V channels. The sums and
// their operands fill the registers.
#pragma once

#include <algorithm>

#include "filter/channel_vectors.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int tile_vectors = 2;
#if defined(__AVX512F__)
constexpr int tile_rows = 8;
constexpr int wide_vectors = tile_vectors, scattered_rows = 8, wide_scattered_rows = 8;
#else
constexpr int tile_rows = 6;
// Tiles whose rows lie anywhere in memory have few of them, since one number of each is read in every step, and more
// vectors where there are as many channels.
constexpr int wide_vectors = 4, scattered_rows = 4, wide_scattered_rows = 3;
#endif
// of the remaining rows, where tiles of full height do not fit
constexpr int small_tile_rows = 4;
template <int N>
constexpr int rows_of_scattered = N == wide_vectors ? wide_scattered_rows : scattered_rows;

// out[r] += in[r] . weight, for R rows in [depth] and out [N * V] anywhere in memory; weight [depth, N * V].
template <class T, int V, int N>
inline void multiply_tile(const T* const* in, const T* weight, int64_t depth, T* const* out) {
    constexpr int R = rows_of_scattered<N>;
    ChannelVector<T, V> sum[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) sum[r][n] = load_channels<T, V>(out[r] + n * V);
    }
    for (int64_t i = 0; i < depth; ++i) {
        ChannelVector<T, V> column[N];
        for (int n = 0; n < N; ++n) column[n] = load_channels<T, V>(weight + (i * N + n) * V);
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < N; ++n) sum[r][n] += in[r][i] * column[n];
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) store_channels<T, V>(out[r] + n * V, sum[r][n]);
    }
}

// out += left^T right, for left [pairs, R], right [pairs, N * V] and out [R, N * V], each with its own row stride.
template <class T, int R, int V, int N>
inline void add_products(const T* left, int64_t left_stride, const T* right, int64_t right_stride, int64_t pairs,
                         T* out, int64_t out_stride) {
    ChannelVector<T, V> sum[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) sum[r][n] = load_channels<T, V>(out + r * out_stride + n * V);
    }
    for (int64_t p = 0; p < pairs; ++p) {
        ChannelVector<T, V> column[N];
        for (int n = 0; n < N; ++n) column[n] = load_channels<T, V>(right + p * right_stride + n * V);
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < N; ++n) sum[r][n] += left[p * left_stride + r] * column[n];
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) store_channels<T, V>(out + r * out_stride + n * V, sum[r][n]);
    }
}

// Calls function(first row, Constant<height>) for tiles that cover `rows`, a multiple of small_tile_rows.
template <class Function>
PERMUTOHEDRAL_INLINE void for_tiles(int64_t rows, Function&& function) {
    int64_t i = 0;
    for (; (rows - i) % tile_rows != 0; i += small_tile_rows) function(i, Constant<small_tile_rows>{});
    for (; i < rows; i += tile_rows) function(i, Constant<tile_rows>{});
}

// How the output channels of a group are cut into tiles, the last one padded.
struct Tiling {
    int64_t vector_channels, num_vectors, num_tiles;
};

// Tiles of Widest vectors where they need no more padding than those of tile_vectors.
template <class T, int Widest>
inline Tiling tile_channels(int64_t channels) {
    int64_t vector = lanes<T>;
    while (vector > 2 && vector / 2 >= channels) vector /= 2;
    int64_t vectors = channels > vector ? tile_vectors : 1;
    const auto padded = [&](int64_t width) { return divide_up(channels, width * vector) * width; };
    if (channels > vector && padded(Widest) == padded(tile_vectors)) vectors = Widest;
    return {vector, vectors, divide_up(channels, vector * vectors)};
}

inline int64_t tile_width(const Tiling& tiling) { return tiling.vector_channels * tiling.num_vectors; }
inline int64_t padded_channels(const Tiling& tiling) { return tiling.num_tiles * tile_width(tiling); }

// Calls function(Constant<V>, Constant<N>) with the constants of a tiling.
template <class T, int Widest, class Function>
PERMUTOHEDRAL_INLINE void dispatch_tiling(const Tiling& tiling, Function&& function) {
    constexpr int L = lanes<T>;
    if (tiling.num_vectors == Widest) return function(Constant<L>{}, Constant<Widest>{});
    if (tiling.num_vectors == tile_vectors) return function(Constant<L>{}, Constant<tile_vectors>{});
    dispatch<L, std::min(L, 8), std::min(L, 4), 2>(tiling.vector_channels,
                                                   [&](auto vector) { function(vector, Constant<1>{}); });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
