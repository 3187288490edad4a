// convolve: the neighbors along each tap are gathered block by block and multiplied in registers.
//
// Scratch memory, whatever the number of lattice points: one padded copy of the weight where it needs padding or another
// order, and per thread one block of results (at most 64 KiB, or 32 rows) with its list of neighbors.
#pragma once

#include <algorithm>

#include "filter/register_tiles.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t block_bytes = 65536;
constexpr int64_t min_block = 32, max_block = 512;
// input channels multiplied together, so that the weights of a tile stay in the level-one cache
constexpr int64_t depth_block = 128;
constexpr int most_scattered_rows = std::max(scattered_rows, wide_scattered_rows);

// Depthwise, each channel by itself: out[v, c] = sum_k weight[k, c] in[neighbors[k, v], c].
template <class T, int C>
void convolve_channels(Matrix<const T> in, const T* weight, const NeighborTable& neighbors, Range targets, T* out) {
    const Extent<C> channels(in.num_channels);
    std::memset(out + targets.begin * channels, 0, sizeof(T) * (targets.end - targets.begin) * channels);
    for (int64_t k = 0; k < neighbors.filter_size; ++k) {
        const int32_t* rows = neighbors.data + k * neighbors.num_targets;
        for (int64_t v = targets.begin; v < targets.end; ++v) {
            if (rows[v] < 0) continue;
            const T* from = in.data + rows[v] * channels;
            for_channel_vectors<T, C>(channels, [&](int64_t c, auto width) {
                constexpr int N = decltype(width)::value;
                T* to = out + v * channels + c;
                const ChannelVector<T, N> product =
                    load_channels<T, N>(weight + k * channels + c) * load_channels<T, N>(from + c);
                store_channels<T, N>(to, load_channels<T, N>(to) + product);
            });
        }
    }
}

struct GroupShape {
    int64_t filter_size, groups, in_channels, out_channels;  // channels of one group
};

// The weight as [groups, filter_size, tiles, in_channels, tile width], zero in the padding.
template <class T>
Memory arrange_weight(const T* weight, const GroupShape& shape, const Tiling& tiling) {
    const int64_t width = tile_width(tiling), all_out = shape.out_channels * shape.groups;
    const int64_t panel = tiling.num_tiles * shape.in_channels * width;
    Memory arranged(sizeof(T) * shape.groups * shape.filter_size * panel);
    std::memset(arranged.data(), 0, arranged.size());
    for (int64_t g = 0; g < shape.groups; ++g) {
        for (int64_t row = 0; row < shape.filter_size * shape.in_channels; ++row) {
            const int64_t k = row / shape.in_channels, i = row % shape.in_channels;
            T* to = as<T>(arranged) + (g * shape.filter_size + k) * panel + i * width;
            const T* from = weight + row * all_out + g * shape.out_channels;
            for (int64_t c = 0; c < shape.out_channels; c += width) {
                std::memcpy(to + c * shape.in_channels, from + c, sizeof(T) * std::min(width, shape.out_channels - c));
            }
        }
    }
    return arranged;
}

// The existing neighbors along one tap of one block of targets, and which target of the block each belongs to. The last
// tile is filled up with pairs whose target is a row behind those of the block.
struct TapPairs {
    int32_t source[max_block + most_scattered_rows];
    int32_t target[max_block + most_scattered_rows];
    int64_t count;
};

inline void find_pairs(const int32_t* rows, int64_t size, TapPairs& pairs) {
    int64_t count = 0;
    for (int64_t v = 0; v < size; ++v) {
        pairs.source[count] = rows[v];
        pairs.target[count] = int32_t(v);
        count += rows[v] >= 0;
    }
    pairs.count = count;
    for (int r = 0; r < most_scattered_rows; ++r) {
        pairs.source[count + r] = pairs.source[0];
        pairs.target[count + r] = int32_t(size);
    }
}

// One tap and group of a block: sums [block + 1, padded] += in[pairs] . weight.
template <class T, int V, int N>
void multiply_pairs(Matrix<const T> in, const TapPairs& pairs, const T* weight, int64_t depth, int64_t tiles, T* sums) {
    constexpr int R = rows_of_scattered<N>;
    const T* from[R];
    T* to[R];
    const int64_t padded = tiles * V * N;
    for (int64_t d = 0; d < depth; d += depth_block) {
        const int64_t part = std::min(depth_block, depth - d);
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const T* panel = weight + (tile * depth + d) * V * N;
            for (int64_t p = 0; p < pairs.count; p += R) {
                for (int r = 0; r < R; ++r) {
                    from[r] = in.data + pairs.source[p + r] * in.num_channels + d;
                    to[r] = sums + pairs.target[p + r] * padded + tile * V * N;
                }
                multiply_tile<T, V, N>(from, panel, part, to);
            }
        }
    }
}

template <class T, int V, int N>
void convolve_block(Matrix<const T> in, const T* weight, const NeighborTable& neighbors, const GroupShape& shape,
                    Range targets, T* sums, Matrix<T> out) {
    const int64_t tiles = (shape.out_channels + V * N - 1) / (V * N), padded = tiles * V * N;
    const int64_t size = targets.end - targets.begin;
    const int64_t panel = padded * shape.in_channels;
    TapPairs pairs;
    for (int64_t g = 0; g < shape.groups; ++g) {
        std::memset(sums, 0, sizeof(T) * size * padded);
        const Matrix<const T> group{in.data + g * shape.in_channels, in.num_rows, in.num_channels};
        for (int64_t k = 0; k < shape.filter_size; ++k) {
            find_pairs(neighbors.data + k * neighbors.num_targets + targets.begin, size, pairs);
            const T* tap_weight = weight + (g * shape.filter_size + k) * panel;
            multiply_pairs<T, V, N>(group, pairs, tap_weight, shape.in_channels, tiles, sums);
        }
        for (int64_t v = 0; v < size; ++v) {
            T* to = out.data + (targets.begin + v) * out.num_channels + g * shape.out_channels;
            std::memcpy(to, sums + v * padded, sizeof(T) * shape.out_channels);
        }
    }
}

// Correlates with `weight [filter_size, in_channels / groups, out_channels]`.
template <class T>
void convolve(Matrix<const T> in, View<const T, 3> weight, NeighborTable neighbors, int64_t groups, Matrix<T> out,
              int threads) {
    if (groups == in.num_channels && groups == out.num_channels) {
        dispatch_small(in.num_channels, [&](auto constant) {
            parallel_ranges(threads, out.num_rows, max_block, [&](int64_t begin, int64_t end, int) {
                convolve_channels<T, decltype(constant)::value>(in, weight.data, neighbors, {begin, end}, out.data);
            });
        });
        return;
    }
    const GroupShape shape{neighbors.filter_size, groups, in.num_channels / groups, out.num_channels / groups};
    const Tiling tiling = tile_channels<T, wide_vectors>(shape.out_channels);
    const int64_t row_bytes = sizeof(T) * padded_channels(tiling);
    const int64_t block = std::clamp(block_bytes / row_bytes, min_block, max_block);
    // of one group and one tile without padding it is arranged already
    const bool in_place = groups == 1 && tile_width(tiling) == out.num_channels;
    const Memory arranged = in_place ? Memory(0) : arrange_weight(weight.data, shape, tiling);
    const T* panels = in_place ? weight.data : as<T>(arranged);
    const Memory sums((block + 1) * row_bytes * threads);
    dispatch_tiling<T, wide_vectors>(tiling, [&](auto vector, auto vectors) {
        constexpr int V = decltype(vector)::value, N = decltype(vectors)::value;
        parallel_ranges(threads, out.num_rows, block, [&](int64_t begin, int64_t end, int worker) {
            T* own = as<T>(sums) + worker * (block + 1) * padded_channels(tiling);
            convolve_block<T, V, N>(in, panels, neighbors, shape, {begin, end}, own, out);
        });
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
