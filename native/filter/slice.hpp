// slice and barycentric_gradient.
#pragma once

#include <algorithm>

#include "filter/channel_panels.hpp"
#include "kernels.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// results of this size would evict the lattice from the caches, and are written past them
constexpr int64_t streamed_bytes = int64_t{1} << 24;
constexpr int64_t sliced_blocks_per_task = 4;

// The interpolated value, sum_j b_j l_j, of N channels from c on.
template <class T, int N, int K>
PERMUTOHEDRAL_INLINE ChannelVector<T, N> sum_corners(const PointSimplex<T, K>& simplex, const Panel<const T>& panel,
                                                     int64_t c) {
    ChannelVector<T, N> sum = {};
    for (int64_t j = 0; j < simplex.num_corners; ++j) {
        sum += simplex.barycentric[j] * load_channels<T, N>(panel.data + simplex.vertices[j] * panel.stride + c);
    }
    return sum;
}

template <class T>
class Slicer {
public:
    Slicer(const PointOrder<T>& order, const ChannelPanels<const T>& panels, Matrix<T> out)
        : order_(order),
          last_(panels[panels.num_panels - 1]),
          full_(panels.full(0, panels.num_panels - 1)),
          out_(out),
          streams_(out.num_channels % panel_channels<T> == 0 &&
                   reinterpret_cast<uintptr_t>(out.data) % cache_line_bytes == 0 &&
                   int64_t(sizeof(T)) * out.num_rows * out.num_channels >= streamed_bytes) {}

    void slice(Range range) {
        dispatch_width<T>(last_.width, [&](auto constant) {
            for_points(range, [&](const auto& simplex, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                slice_full(simplex, T(1), to);
                slice_panel<decltype(constant)::value>(simplex, last_, T(1), to);
            });
        });
    }

    // The last channel of the lattice is the mass: the others are divided by mass + added, which is never zero.
    void slice_normalized(Range range, T added) {
        dispatch_padded_width<T>(last_.width, [&](auto constant) {
            for_points(range, [&](const auto& simplex, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                const T scale = normalize_panel<decltype(constant)::value>(simplex, added, to);
                slice_full(simplex, scale, to);
            });
        });
    }

private:
    // Calls function(simplex, where its result goes) for the points of some blocks.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_points(Range blocks, Function&& function) {
        dispatch_corners(order_.simplices.num_corners, [&](auto corners) PERMUTOHEDRAL_INLINE_LAMBDA {
            for_points_with<decltype(corners)::value>(blocks, function);
        });
    }

    template <int K, class Function>
    PERMUTOHEDRAL_INLINE void for_points_with(Range blocks, Function&& function) {
        const int64_t begin = order_.blocks[blocks.begin].places.begin;
        const int64_t end = order_.blocks[blocks.end - 1].places.end;
        const bool prefetches = order_.point_at != nullptr && !streams_;
        for (int64_t i = begin; i < end; ++i) {
            if (prefetches && i + prefetch_distance < end) {
                prefetch_bytes(result_at(i + prefetch_distance), int64_t(sizeof(T)) * out_.num_channels);
            }
            function(simplex_at<K>(order_.simplices, i), result_at(i));
        }
        if (streams_) finish_streams();
    }

    T* result_at(int64_t place) const {
        return out_.data + (order_.point_at == nullptr ? place : order_.point_at[place]) * out_.num_channels;
    }

    template <int C, int K>
    PERMUTOHEDRAL_INLINE void slice_panel(const PointSimplex<T, K>& simplex, const Panel<const T>& panel, T scale,
                                          T* out) {
        for_channel_vectors<T, C>(panel.width, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            const ChannelVector<T, N> sum = sum_corners<T, N>(simplex, panel, c);
            if constexpr (C == panel_channels<T> && N > 1) {
                if (streams_) return stream<T, N>(out + panel.first + c, sum * scale);
            }
            store_channels<T, N>(out + panel.first + c, sum * scale);
        });
    }

    // All panels but the last.
    template <int K>
    PERMUTOHEDRAL_INLINE void slice_full(const PointSimplex<T, K>& simplex, T scale, T* out) {
        Panel<const T> panel{full_.data, full_.stride, 0, panel_channels<T>};
        for (int64_t p = 0; p < full_.count; ++p) {
            slice_panel<panel_channels<T>>(simplex, panel, scale, out);
            panel.data += full_.step;
            panel.first += panel_channels<T>;
        }
    }

    // The panel with the mass, divided by it; returns the factor for the other panels.
    template <int C, int K>
    PERMUTOHEDRAL_INLINE T normalize_panel(const PointSimplex<T, K>& simplex, T added, T* out) {
        const Panel<const T> last{last_.data, C, last_.first, C};
        // the width is the least power of two, so a panel of one or two channels has no padding
        const int64_t rest = C <= 2 ? C - 1 : out_.num_channels - last_.first;
        T* to = out + last_.first;
        T sums[panel_channels<T>] = {};
        for_channel_vectors<T, C>(C, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            store_channels<T, N>(sums + c, sum_corners<T, N>(simplex, last, c));
        });
        const T scale = T(1) / (sums[rest] + added);
        if constexpr (C > 2 && C <= lanes<T>) {
            store_first<T, C>(to, load_channels<T, C>(sums) * scale, rest);
        } else {
            for (int64_t c = 0; c < rest; ++c) to[c] = sums[c] * scale;
        }
        return scale;
    }

    const PointOrder<T>& order_;
    const Panel<const T> last_;
    const FullPanels<const T> full_;
    const Matrix<T> out_;
    const bool streams_;
};

template <class T, int N>
inline T sum_lanes(ChannelVector<T, N> vector) {
    if constexpr (N == 1) {
        return vector;
    } else {
        T sum = 0;
        for (int l = 0; l < N; ++l) sum += vector[l];
        return sum;
    }
}

// Interpolates at the points from the vertices around them.
template <class T>
void slice(Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out, int threads) {
    const LatticeShape shape{lattice_values.num_rows, int64_t(sizeof(T)) * out.num_channels};
    const PointOrder<T> order = plan_order(simplices, shape, false, threads);
    const auto panels = panels_of_matrix(lattice_values.data, lattice_values.num_rows, lattice_values.num_channels);
    parallel_ranges(threads, order.num_blocks, sliced_blocks_per_task,
                    [&](int64_t first, int64_t last, int) { Slicer<T>(order, panels, out).slice({first, last}); });
}

// The same from consecutive panels, whose last channel is the mass: divides by mass + added_mass.
template <class T>
void slice_normalized(const PointOrder<T>& order, Matrix<const T> lattice_values, T added_mass, Matrix<T> out,
                      int threads) {
    const auto panels = consecutive_panels(lattice_values.data, lattice_values.num_rows, lattice_values.num_channels);
    parallel_ranges(threads, order.num_blocks, sliced_blocks_per_task, [&](int64_t first, int64_t last, int) {
        Slicer<T>(order, panels, out).slice_normalized({first, last}, added_mass);
    });
}

// Writes the products of the value of each point with the values of its vertices.
template <class T>
void barycentric_gradient(Matrix<const T> values, Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out,
                          int threads) {
    const int64_t channels = values.num_channels;
    parallel_ranges(threads, simplices.num_points, block_points, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = 0; j < simplices.num_corners; ++j) {
                const T* value = values.data + i * channels;
                const T* row = lattice_values.data + simplices.vertices[i * simplices.num_corners + j] * channels;
                T sum = 0;
                Vector<T> full = {};
                for_channel_vectors<T, 0>(channels, [&](int64_t c, auto width) {
                    constexpr int N = decltype(width)::value;
                    const ChannelVector<T, N> product = load_channels<T, N>(value + c) * load_channels<T, N>(row + c);
                    if constexpr (N == lanes<T>) {
                        full += product;
                    } else {
                        sum += sum_lanes<T, N>(product);
                    }
                });
                out.data[i * simplices.num_corners + j] = sum + sum_lanes<T, lanes<T>>(full);
            }
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
