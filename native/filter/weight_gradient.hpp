// convolve_weight_gradient: sums over all targets. They are added in segments, whose number does not depend on the
// threads, so neither do the bits of the result.
//
// Scratch memory: one partial gradient per segment, at most 64 MiB in all or a single one, and two buffers of gathered
// values per thread.
#pragma once

#include <algorithm>

#include "filter/register_tiles.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t partial_bytes = int64_t{64} << 20;
constexpr int64_t max_segments = 64, min_segment = 2048;
constexpr int64_t max_gathered = 64;

struct PaddedGroupShape {
    int64_t groups, in_channels, out_channels;  // channels of one group
    int64_t padded_in, padded_out;
};

// Values of lattice points and gradients of their targets, pair by pair, side by side.
template <class T>
struct GatheredPairs {
    T* left;   // [max_gathered, padded_in]
    T* right;  // [max_gathered, padded_out]
};

// A call of memcpy would take longer than a row of a few vectors.
template <class T>
inline void copy_row(const T* from, int64_t channels, T* to) {
    for_channel_vectors<T, 0>(channels, [&](int64_t c, auto width) {
        constexpr int N = decltype(width)::value;
        store_channels<T, N>(to + c, load_channels<T, N>(from + c));
    });
}

// Gathers up to max_gathered existing pairs, from target `v` on; returns their number.
template <class T>
int64_t gather_pairs(Matrix<const T> in, Matrix<const T> gradient, const int32_t* rows, int64_t& v, int64_t end,
                     const PaddedGroupShape& shape, const GatheredPairs<T>& gathered) {
    int64_t target[max_gathered + 1], count = 0;
    // without branches, which would be taken at random
    for (; v < end && count < max_gathered; ++v) {
        target[count] = v;
        count += rows[v] >= 0;
    }
    for (int64_t p = 0; p < count; ++p) {
        copy_row(in.data + rows[target[p]] * in.num_channels, shape.in_channels, gathered.left + p * shape.padded_in);
        copy_row(gradient.data + target[p] * gradient.num_channels, shape.out_channels,
                 gathered.right + p * shape.padded_out);
    }
    return count;
}

// One tap, group and segment: out [padded_in, padded_out].
template <class T, int V, int N>
void sum_segment(Matrix<const T> in, Matrix<const T> gradient, const int32_t* rows, Range targets,
                 const PaddedGroupShape& shape, const GatheredPairs<T>& gathered, T* out) {
    std::memset(out, 0, sizeof(T) * shape.padded_in * shape.padded_out);
    for (int64_t v = targets.begin; v < targets.end;) {
        const int64_t pairs = gather_pairs(in, gradient, rows, v, targets.end, shape, gathered);
        for_tiles(shape.padded_in, [&](int64_t i, auto height) {
            for (int64_t o = 0; o < shape.padded_out; o += V * N) {
                add_products<T, decltype(height)::value, V, N>(gathered.left + i, shape.padded_in, gathered.right + o,
                                                               shape.padded_out, pairs, out + i * shape.padded_out + o,
                                                               shape.padded_out);
            }
        });
    }
}

// Depthwise, each channel by itself: out [channels].
template <class T, int C>
void sum_channels(Matrix<const T> in, Matrix<const T> gradient, const int32_t* rows, Range targets, T* out) {
    const Extent<C> channels(in.num_channels);
    std::memset(out, 0, sizeof(T) * channels);
    for (int64_t v = targets.begin; v < targets.end; ++v) {
        if (rows[v] < 0) continue;
        const T* left = in.data + rows[v] * channels;
        const T* right = gradient.data + v * channels;
        for_channel_vectors<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int W = decltype(width)::value;
            const ChannelVector<T, W> product = load_channels<T, W>(left + c) * load_channels<T, W>(right + c);
            store_channels<T, W>(out + c, load_channels<T, W>(out + c) + product);
        });
    }
}

// The number of segments, a function of the sizes alone.
int64_t count_segments(int64_t targets, int64_t bytes_per_segment) {
    const int64_t wanted = std::min(max_segments, divide_up(targets, min_segment));
    return std::max<int64_t>(1, std::min(wanted, partial_bytes / std::max<int64_t>(1, bytes_per_segment)));
}

// Adds the segments in order: from partial [filter_size, groups, segments, padded_in, padded_out] to the layout of the
// weight.
template <class T>
void add_segments(const T* partial, int64_t segments, int64_t filter_size, const PaddedGroupShape& shape, T* out,
                  int threads) {
    const int64_t size = shape.padded_in * shape.padded_out, all_out = shape.groups * shape.out_channels;
    parallel_for(threads, filter_size * shape.groups, [&](int64_t task, int) {
        const int64_t k = task / shape.groups, g = task % shape.groups;
        const T* first = partial + task * segments * size;
        for (int64_t i = 0; i < shape.in_channels; ++i) {
            T* to = out + (k * shape.in_channels + i) * all_out + g * shape.out_channels;
            for (int64_t o = 0; o < shape.out_channels; ++o) {
                T sum = 0;
                for (int64_t s = 0; s < segments; ++s) sum += first[s * size + i * shape.padded_out + o];
                to[o] = sum;
            }
        }
    });
}

template <class T>
void depthwise_gradient(Matrix<const T> in, Matrix<const T> gradient, const NeighborTable& neighbors, T* out,
                        int threads) {
    const int64_t channels = in.num_channels;
    const PaddedGroupShape shape{1, 1, channels, 1, channels};
    const int64_t segments = count_segments(neighbors.num_targets, sizeof(T) * neighbors.filter_size * channels);
    const Memory partial(sizeof(T) * neighbors.filter_size * segments * channels);
    dispatch_small(channels, [&](auto constant) {
        parallel_for(threads, neighbors.filter_size * segments, [&](int64_t task, int) {
            const int32_t* rows = neighbors.data + task / segments * neighbors.num_targets;
            const Range range = block_range(neighbors.num_targets, segments, task % segments);
            sum_channels<T, decltype(constant)::value>(in, gradient, rows, range, as<T>(partial) + task * channels);
        });
    });
    add_segments(as<T>(partial), segments, neighbors.filter_size, shape, out, threads);
}

template <class T>
void convolve_weight_gradient(Matrix<const T> in, Matrix<const T> gradient, NeighborTable neighbors, int64_t groups,
                              View<T, 3> out, int threads) {
    if (groups == in.num_channels && groups == gradient.num_channels) {
        return depthwise_gradient(in, gradient, neighbors, out.data, threads);
    }
    const Tiling tiling = tile_channels<T, tile_vectors>(gradient.num_channels / groups);
    const int64_t in_channels = in.num_channels / groups;
    const PaddedGroupShape shape{groups, in_channels, gradient.num_channels / groups,
                                 divide_up(in_channels, small_tile_rows) * small_tile_rows, padded_channels(tiling)};
    const int64_t size = shape.padded_in * shape.padded_out, slots = neighbors.filter_size * groups;
    const int64_t segments = count_segments(neighbors.num_targets, sizeof(T) * slots * size);
    const Memory partial(sizeof(T) * slots * segments * size);
    const int64_t panel_size = max_gathered * (shape.padded_in + shape.padded_out);
    const Memory panel_memory(sizeof(T) * panel_size * threads);
    // the padding is multiplied too, and must be finite
    std::memset(panel_memory.data(), 0, panel_memory.size());
    dispatch_tiling<T, tile_vectors>(tiling, [&](auto vector, auto vectors) {
        constexpr int V = decltype(vector)::value, N = decltype(vectors)::value;
        parallel_for(threads, slots * segments, [&](int64_t task, int worker) {
            const int64_t slot = task / segments, k = slot / groups, g = slot % groups;
            T* left = as<T>(panel_memory) + worker * panel_size;
            const GatheredPairs<T> gathered{left, left + max_gathered * shape.padded_in};
            const Matrix<const T> group_in{in.data + g * shape.in_channels, in.num_rows, in.num_channels};
            const Matrix<const T> group_gradient{gradient.data + g * shape.out_channels, gradient.num_rows,
                                                 gradient.num_channels};
            sum_segment<T, V, N>(group_in, group_gradient, neighbors.data + k * neighbors.num_targets,
                                 block_range(neighbors.num_targets, segments, task % segments), shape, gathered,
                                 as<T>(partial) + task * size);
        });
    });
    add_segments(as<T>(partial), segments, neighbors.filter_size, shape, out.data, threads);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
