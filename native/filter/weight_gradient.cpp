// convolve_weight_gradient: sums over all targets, in a fixed number of segments that does not depend on the threads.
// Compiled once per instruction set.
//
// Scratch memory: one partial gradient per segment, at most 64 MiB in all or a single one, and per thread two panels of
// gathered rows.
#include <algorithm>

#include "runtime/memory.hpp"
#include "runtime/threads.hpp"
#include "filter/register_tiles.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t partial_bytes = int64_t{64} << 20;
constexpr int64_t max_segments = 64, min_segment = 2048;
constexpr int64_t panel_rows = 128;

struct Shape {
    int64_t groups, in_channels, out_channels;  // channels of one group
    int64_t padded_in, padded_out;
};

template <class T>
struct Panels {
    T* left;   // [panel_rows, padded_in]
    T* right;  // [panel_rows, padded_out]
};

// Copies up to panel_rows existing pairs, from target `v` on, into the panels; returns their number.
template <class T>
int64_t gather_pairs(Rows<const T> in, Rows<const T> gradient, const int32_t* rows, int64_t& v, int64_t end,
                     const Shape& shape, const Panels<T>& panels) {
    int64_t count = 0;
    for (; v < end && count < panel_rows; ++v) {
        if (rows[v] < 0) continue;
        std::memcpy(panels.left + count * shape.padded_in, in.data + rows[v] * in.channels,
                    sizeof(T) * shape.in_channels);
        std::memcpy(panels.right + count * shape.padded_out, gradient.data + v * gradient.channels,
                    sizeof(T) * shape.out_channels);
        ++count;
    }
    return count;
}

// One tap, group and segment: out [padded_in, padded_out].
template <class T, int V, int N>
void sum_segment(Rows<const T> in, Rows<const T> gradient, const int32_t* rows, Range targets, const Shape& shape,
                 const Panels<T>& panels, T* out) {
    std::memset(out, 0, sizeof(T) * shape.padded_in * shape.padded_out);
    for (int64_t v = targets.begin; v < targets.end;) {
        const int64_t pairs = gather_pairs(in, gradient, rows, v, targets.end, shape, panels);
        for (int64_t i = 0; i < shape.padded_in; i += tile_rows) {
            for (int64_t o = 0; o < shape.padded_out; o += V * N) {
                add_products<T, V, N>(panels.left + i, shape.padded_in, panels.right + o, shape.padded_out, pairs,
                                      out + i * shape.padded_out + o, shape.padded_out);
            }
        }
    }
}

// Every channel by itself: out [channels].
template <class T, int C>
void sum_channels(Rows<const T> in, Rows<const T> gradient, const int32_t* rows, Range targets, T* out) {
    const int64_t channels = C > 0 ? C : in.channels;
    std::memset(out, 0, sizeof(T) * channels);
    for (int64_t v = targets.begin; v < targets.end; ++v) {
        if (rows[v] < 0) continue;
        const T* left = in.data + rows[v] * channels;
        const T* right = gradient.data + v * channels;
        for_pieces<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int W = decltype(width)::value;
            const Piece<T, W> product = load_piece<T, W>(left + c) * load_piece<T, W>(right + c);
            store_piece<T, W>(out + c, load_piece<T, W>(out + c) + product);
        });
    }
}

// Segments of targets; a function of the sizes alone.
int64_t count_segments(int64_t targets, int64_t bytes_per_segment) {
    const int64_t wanted = std::min(max_segments, divide_up(targets, min_segment));
    return std::max<int64_t>(1, std::min(wanted, partial_bytes / std::max<int64_t>(1, bytes_per_segment)));
}

// Adds the segments in order: partial [filter_size, groups, segments, size] to weight layout.
template <class T>
void add_segments(const T* partial, int64_t segments, int64_t filter_size, const Shape& shape, T* out, int threads) {
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
void channel_gradient(Rows<const T> in, Rows<const T> gradient, const Neighbors& neighbors, T* out, int threads) {
    const int64_t channels = in.channels;
    const Shape shape{1, 1, channels, 1, channels};
    const int64_t segments = count_segments(neighbors.targets, sizeof(T) * neighbors.filter_size * channels);
    const Memory partial(sizeof(T) * neighbors.filter_size * segments * channels);
    with_constant(channels, [&](auto constant) {
        parallel_for(threads, neighbors.filter_size * segments, [&](int64_t task, int) {
            const int32_t* rows = neighbors.data + task / segments * neighbors.targets;
            const Range range = block_range(neighbors.targets, segments, task % segments);
            sum_channels<T, decltype(constant)::value>(in, gradient, rows, range, as<T>(partial) + task * channels);
        });
    });
    add_segments(as<T>(partial), segments, neighbors.filter_size, shape, out, threads);
}

}  // namespace

template <class T>
void convolve_weight_gradient(Rows<const T> in, Rows<const T> gradient, const Neighbors& neighbors, int64_t groups,
                              T* out, int threads) {
    if (groups == in.channels && groups == gradient.channels) {
        return channel_gradient(in, gradient, neighbors, out, threads);
    }
    const Tiling tiling = tile_channels<T>(gradient.channels / groups);
    const int64_t in_channels = in.channels / groups;
    const Shape shape{groups, in_channels, gradient.channels / groups, divide_up(in_channels, tile_rows) * tile_rows,
                      padded_channels(tiling)};
    const int64_t size = shape.padded_in * shape.padded_out, slots = neighbors.filter_size * groups;
    const int64_t segments = count_segments(neighbors.targets, sizeof(T) * slots * size);
    const Memory partial(sizeof(T) * slots * segments * size);
    const int64_t panel_size = panel_rows * (shape.padded_in + shape.padded_out);
    const Memory panel_memory(sizeof(T) * panel_size * threads);
    // the padding is multiplied too, and must be finite
    std::memset(panel_memory.data(), 0, panel_memory.size());
    with_tiling<T>(tiling, [&](auto vector, auto vectors) {
        constexpr int V = decltype(vector)::value, N = decltype(vectors)::value;
        parallel_for(threads, slots * segments, [&](int64_t task, int worker) {
            const int64_t slot = task / segments, k = slot / groups, g = slot % groups;
            T* left = as<T>(panel_memory) + worker * panel_size;
            const Panels<T> panels{left, left + panel_rows * shape.padded_in};
            const Rows<const T> group_in{in.data + g * shape.in_channels, in.rows, in.channels};
            const Rows<const T> group_gradient{gradient.data + g * shape.out_channels, gradient.rows,
                                               gradient.channels};
            sum_segment<T, V, N>(group_in, group_gradient, neighbors.data + k * neighbors.targets,
                                 block_range(neighbors.targets, segments, task % segments), shape, panels,
                                 as<T>(partial) + task * size);
        });
    });
    add_segments(as<T>(partial), segments, neighbors.filter_size, shape, out, threads);
}

template void convolve_weight_gradient(Rows<const float>, Rows<const float>, const Neighbors&, int64_t, float*, int);
template void convolve_weight_gradient(Rows<const double>, Rows<const double>, const Neighbors&, int64_t, double*,
                                       int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
