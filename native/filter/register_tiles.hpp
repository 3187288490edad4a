// Products of small matrices, kept in registers: R rows by N vectors of V channels.
#pragma once

#include "filter/channel_vectors.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

// rows of a tile: with two vectors of columns they and their operands fill the registers
#if defined(__AVX512F__)
constexpr int tile_rows = 8;
#else
constexpr int tile_rows = 4;
#endif
constexpr int tile_vectors = 2;

// out[r] += in[r] . weight for R rows anywhere in memory; weight [depth, N * V].
template <class T, int V, int N>
inline void multiply_tile(const T* const* in, const T* weight, int64_t depth, T* const* out) {
    constexpr int R = tile_rows;
    Piece<T, V> sum[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) sum[r][n] = load_piece<T, V>(out[r] + n * V);
    }
    for (int64_t i = 0; i < depth; ++i) {
        Piece<T, V> column[N];
        for (int n = 0; n < N; ++n) column[n] = load_piece<T, V>(weight + (i * N + n) * V);
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < N; ++n) sum[r][n] += in[r][i] * column[n];
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) store_piece<T, V>(out[r] + n * V, sum[r][n]);
    }
}

// out [R, stride] += sum over pairs of left[pair] (x) right[pair]; R columns of left, N * V of right.
template <class T, int V, int N>
inline void add_products(const T* left, int64_t left_stride, const T* right, int64_t right_stride, int64_t pairs,
                         T* out, int64_t out_stride) {
    constexpr int R = tile_rows;
    Piece<T, V> sum[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) sum[r][n] = load_piece<T, V>(out + r * out_stride + n * V);
    }
    for (int64_t p = 0; p < pairs; ++p) {
        Piece<T, V> column[N];
        for (int n = 0; n < N; ++n) column[n] = load_piece<T, V>(right + p * right_stride + n * V);
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < N; ++n) sum[r][n] += left[p * left_stride + r] * column[n];
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) store_piece<T, V>(out + r * out_stride + n * V, sum[r][n]);
    }
}

// How out_channels of a group are cut into tiles: `tiles` of N vectors of V channels, the last one padded.
struct Tiling {
    int64_t vector, vectors, tiles;
};

template <class T>
inline Tiling tile_channels(int64_t channels) {
    int64_t vector = lanes<T>;
    while (vector > 2 && vector / 2 >= channels) vector /= 2;
    const int64_t vectors = channels > vector ? tile_vectors : 1;
    return {vector, vectors, (channels + vector * vectors - 1) / (vector * vectors)};
}

inline int64_t tile_width(const Tiling& tiling) { return tiling.vector * tiling.vectors; }
inline int64_t padded_channels(const Tiling& tiling) { return tiling.tiles * tile_width(tiling); }

// Calls function(Width<V>, Width<N>) with the constants of a tiling.
template <class T, class Function>
inline void with_tiling(const Tiling& tiling, Function&& function) {
    constexpr int L = lanes<T>;
    if (tiling.vectors == tile_vectors) return function(Width<L>{}, Width<tile_vectors>{});
    if (tiling.vector == L) return function(Width<L>{}, Width<1>{});
    if constexpr (L >= 16) {
        if (tiling.vector == 8) return function(Width<8>{}, Width<1>{});
    }
    if constexpr (L >= 8) {
        if (tiling.vector == 4) return function(Width<4>{}, Width<1>{});
    }
    if constexpr (L >= 4) return function(Width<2>{}, Width<1>{});
}

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
