// Products of small matrices whose results stay in registers: tiles of R rows by N vectors of V channels. The sums and
// their operands fill the registers.
#pragma once

#include <algorithm>

#include "filter/channel_vectors.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

#if defined(__AVX512F__)
constexpr int tile_rows = 8, tile_vectors = 2;
// of a tile whose rows lie anywhere in memory
constexpr int widest_vectors = 2;
template <int N>
constexpr int rows_anywhere = 8;
constexpr int most_rows_anywhere = 8;
#else
constexpr int tile_rows = 6, tile_vectors = 2;
// of a tile whose rows lie anywhere in memory: reading one number of each at once is what takes time, so few of them
constexpr int widest_vectors = 4;
template <int N>
constexpr int rows_anywhere = N == widest_vectors ? 3 : 4;
constexpr int most_rows_anywhere = 4;
#endif
// of what is left where tiles of full height do not fit
constexpr int small_tile_rows = 4;

// out[r] += in[r] . weight, for R rows in [depth] and out [N * V] anywhere in memory; weight [depth, N * V].
template <class T, int V, int N>
inline void multiply_tile(const T* const* in, const T* weight, int64_t depth, T* const* out) {
    constexpr int R = rows_anywhere<N>;
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

// Tiles of up to `widest` vectors, wider ones only where they need no more padding.
template <class T>
inline Tiling tile_channels(int64_t channels, int64_t widest) {
    int64_t vector = lanes<T>;
    while (vector > 2 && vector / 2 >= channels) vector /= 2;
    int64_t vectors = channels > vector ? tile_vectors : 1;
    const int64_t used = (channels + vector - 1) / vector;
    if (widest > tile_vectors && (used + 1) / tile_vectors * tile_vectors % widest == 0) vectors = widest;
    return {vector, vectors, (channels + vector * vectors - 1) / (vector * vectors)};
}

inline int64_t tile_width(const Tiling& tiling) { return tiling.vector_channels * tiling.num_vectors; }
inline int64_t padded_channels(const Tiling& tiling) { return tiling.num_tiles * tile_width(tiling); }

// Calls function(Constant<V>, Constant<N>) with the constants of a tiling.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void dispatch_tiling(const Tiling& tiling, Function&& function) {
    constexpr int L = lanes<T>;
    if (tiling.num_vectors == tile_vectors) return function(Constant<L>{}, Constant<tile_vectors>{});
    if (tiling.num_vectors == widest_vectors) return function(Constant<L>{}, Constant<widest_vectors>{});
    dispatch<L, std::min(L, 8), std::min(L, 4), 2>(tiling.vector_channels,
                                                   [&](auto vector) { function(vector, Constant<1>{}); });
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
