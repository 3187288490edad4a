// splat: from points to the vertices around them.
#pragma once

#include <algorithm>

#include "filter/channel_panels.hpp"
#include "kernels.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t balance_sample = 4096, balance_bins = 1024;
// corners per lattice point from which on a second lattice costs little
constexpr int64_t halved_corners = 64, sampled_blocks = 16;
constexpr int64_t added_per_task = 1 << 15;

// Values to splat. With mass, the lattice has one more channel, the last, in which every point has the value one.
template <class T>
struct SplatValues {
    const T* data;  // [num_points, num_channels]
    int64_t num_points, num_channels;
    bool has_mass;
};

// How the last panel of a lattice with mass is made of a value: `keep` masks the channels of the value, `add` puts the
// one after them.
template <class T>
struct MassMask {
    Integer<T> keep[panel_channels<T>];
    T add[panel_channels<T>];

    explicit MassMask(int64_t channels) {
        for (int64_t c = 0; c < panel_channels<T>; ++c) {
            keep[c] = c < channels ? -1 : 0;
            add[c] = c == channels ? T(1) : T(0);
        }
    }

    template <int N>
    ChannelVector<T, N> apply(ChannelVector<T, N> channels, int64_t c) const {
        if constexpr (N == 1) {
            return keep[c] != 0 ? channels : add[c];
        } else {
            using I = typename VectorOf<Integer<T>, N>::type;
            // bitwise: what follows the value in memory may be NaN
            return (ChannelVector<T, N>)(((I)channels & load<Integer<T>, N>(keep + c)) | (I)load<T, N>(add + c));
        }
    }
};

// Adds the value of a point to all corners of its simplex, in one panel.
template <class T, int C, bool Mass, int K>
PERMUTOHEDRAL_INLINE void add_value(const PointSimplex<T, K>& simplex, const T* value, const MassMask<T>& mask,
                                    const Panel<T>& panel) {
    for_channel_vectors<T, C>(panel.width, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
        constexpr int N = decltype(width)::value;
        ChannelVector<T, N> channels = load_channels<T, N>(value + c);
        if constexpr (Mass) channels = mask.template apply<N>(channels, c);
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            T* to = panel.data + simplex.vertices[j] * panel.stride + c;
            store_channels<T, N>(to, load_channels<T, N>(to) + simplex.barycentric[j] * channels);
        }
    });
}

// The points of a block with corners in a range of vertices.
struct TouchingPoints {
    int32_t place[block_points];       // within the block
    int32_t num_inside[block_points];  // how many of its corners lie in the range
    int64_t count;
};

// K is the number of corners if known at compile time, else 0.
template <class T, int K>
void find_touching(const Simplices<T>& simplices, Range places, Range vertices, TouchingPoints& touching) {
    const Extent<K> num_corners(simplices.num_corners);
    const uint32_t first = uint32_t(vertices.begin), size = uint32_t(vertices.end - vertices.begin);
    int64_t count = 0;
    for (int64_t i = places.begin; i < places.end; ++i) {
        int32_t inside = 0;
        for (int64_t j = 0; j < num_corners; ++j) {
            inside += uint32_t(simplices.vertices[i * num_corners + j]) - first < size;
        }
        // no branch: which points touch the range may not be predictable
        touching.place[count] = int32_t(i - places.begin);
        touching.num_inside[count] = inside;
        count += inside > 0;
    }
    touching.count = count;
}

// Adds values to some panels of a lattice, at a range of vertices, block by block.
template <class T>
class Splatter {
public:
    Splatter(const PointOrder<T>& order, const SplatValues<T>& values, const ChannelPanels<T>& panels, Range chosen)
        : order_(order),
          simplices_(order.simplices),
          values_(values),
          panels_(panels),
          chosen_(chosen),
          last_(panels[chosen.end - 1]),
          full_(panels.full(chosen.begin, chosen.end - 1)),
          mask_(values.num_channels % panel_channels<T>) {}

    // Every lattice point adds up its points in their order, so the result does not depend on the range of vertices.
    void splat(Range blocks, Range vertices) {
        for (int64_t p = chosen_.begin; p < chosen_.end; ++p) clear(panels_[p], vertices);
        for (int64_t b = blocks.begin; b < blocks.end; ++b) {
            const PointBlock& block = order_.blocks[b];
            if (block.vertices.begin >= vertices.end || block.vertices.end <= vertices.begin) continue;
            check_interruption();
            const bool inside = block.vertices.begin >= vertices.begin && block.vertices.end <= vertices.end;
            if (!inside) {
                dispatch_small(simplices_.num_corners, [&](auto corners) {
                    find_touching<T, decltype(corners)::value>(simplices_, block.places, vertices, touching_);
                });
            }
            auto splat_last = [&](auto constant, auto mass) {
                constexpr int C = decltype(constant)::value;
                constexpr bool Mass = decltype(mass)::value == 1;
                if (!inside) return splat_touching<C, Mass>(block.places.begin, vertices);
                dispatch_corners(simplices_.num_corners,
                                 [&](auto corners) { splat_block<C, Mass, decltype(corners)::value>(block.places); });
            };
            if (values_.has_mass && last_.first + last_.width > values_.num_channels) {
                dispatch_padded_width<T>(last_.width, [&](auto constant) { splat_last(constant, Constant<1>{}); });
            } else {
                dispatch_width<T>(last_.width, [&](auto constant) { splat_last(constant, Constant<0>{}); });
            }
        }
    }

private:
    void clear(const Panel<T>& panel, Range vertices) {
        if (panel.stride == panel.width) {
            std::memset(panel.data + vertices.begin * panel.stride, 0,
                        sizeof(T) * (vertices.end - vertices.begin) * panel.stride);
            return;
        }
        for (int64_t v = vertices.begin; v < vertices.end; ++v) {
            std::memset(panel.data + v * panel.stride, 0, sizeof(T) * panel.width);
        }
    }

    PERMUTOHEDRAL_INLINE const T* value_at(int64_t place) const {
        return values_.data + (order_.point_at == nullptr ? place : order_.point_at[place]) * values_.num_channels;
    }

    // Where the points were sorted, their values lie anywhere in memory.
    PERMUTOHEDRAL_INLINE void prefetch_value(int64_t place) const {
        if (order_.point_at != nullptr && place < simplices_.num_points) {
            prefetch_bytes(value_at(place), int64_t(sizeof(T)) * values_.num_channels);
        }
    }

    // C is the width of the last panel, which holds the mass if there is one.
    template <int C, bool Mass, int K>
    void splat_block(Range places) {
        for (int64_t i = places.begin; i < places.end; ++i) {
            prefetch_value(i + prefetch_distance);
            splat_point<C, Mass>(simplex_at<K>(simplices_, i), value_at(i));
        }
    }

    template <int C, bool Mass>
    void splat_touching(int64_t begin, Range range) {
        for (int64_t n = 0; n < touching_.count; ++n) {
            const int64_t place = begin + touching_.place[n];
            const PointSimplex<T, 0> simplex = simplex_at<0>(simplices_, place);
            prefetch_value(place + prefetch_distance);
            if (touching_.num_inside[n] == simplex.num_corners) {
                splat_point<C, Mass>(simplex, value_at(place));
                continue;
            }
            int32_t vertices[max_dimension + 2];
            T weights[max_dimension + 2];
            int64_t count = 0;
            for (int64_t j = 0; j < simplex.num_corners; ++j) {
                if (count == max_dimension + 1) {
                    splat_point<C, Mass>(PointSimplex<T, 0>{vertices, weights, count}, value_at(place));
                    count = 0;
                }
                vertices[count] = simplex.vertices[j];
                weights[count] = simplex.barycentric[j];
                count += simplex.vertices[j] >= range.begin && simplex.vertices[j] < range.end;
            }
            splat_point<C, Mass>(PointSimplex<T, 0>{vertices, weights, count}, value_at(place));
        }
    }

    template <int C, bool Mass, int K>
    PERMUTOHEDRAL_INLINE void splat_point(const PointSimplex<T, K>& simplex, const T* value) {
        Panel<T> panel{full_.data, full_.stride, 0, panel_channels<T>};
        const T* from = value + full_.first;
        for (int64_t p = 0; p < full_.count; ++p) {
            add_value<T, panel_channels<T>, false>(simplex, from, mask_, panel);
            from += panel_channels<T>;
            panel.data += full_.step;
        }
        T padded[panel_channels<T>];
        panel = last_;
        if constexpr (Mass) {
            panel.stride = C;
            // the panel is wider than the rest of the value: it reads past its end, which must not leave the memory
            if (last_.first == values_.num_channels) {
                from = mask_.add;
            } else if (__builtin_expect(from + C > values_.data + values_.num_points * values_.num_channels, 0)) {
                std::memset(padded, 0, sizeof(padded));
                std::memcpy(padded, from, sizeof(T) * (values_.num_channels - last_.first));
                from = padded;
            }
        }
        add_value<T, C, Mass>(simplex, from, mask_, panel);
    }

    const PointOrder<T>& order_;
    const Simplices<T> simplices_;
    const SplatValues<T> values_;
    const ChannelPanels<T> panels_;
    const Range chosen_;
    const Panel<T> last_;
    const FullPanels<T> full_;
    const MassMask<T> mask_;
    TouchingPoints touching_;
};

// Bounds of `parts` ranges of vertices with about the same number of corners, judging by a sample of the points.
template <class T>
void balance_vertices(const Simplices<T>& simplices, int64_t num_vertices, int64_t parts, int64_t* bounds) {
    int64_t bins[balance_bins] = {0};
    int64_t total = 0;
    const int64_t stride = std::max<int64_t>(1, simplices.num_points / balance_sample);
    for (int64_t i = 0; i < simplices.num_points; i += stride) {
        for (int64_t j = 0; j < simplices.num_corners; ++j) {
            ++bins[simplices.vertices[i * simplices.num_corners + j] * balance_bins / num_vertices];
            ++total;
        }
    }
    int64_t bin = 0, below = 0;
    for (int64_t part = 0; part < parts; ++part) {
        while (bin < balance_bins && below * parts < total * part) below += bins[bin++];
        bounds[part] = divide_up(bin * num_vertices, balance_bins);
    }
    bounds[0] = 0;
    bounds[parts] = num_vertices;
}

// Whether many blocks touch more than one range of vertices.
template <class T>
bool share_blocks(const PointOrder<T>& order, const int64_t* bounds, int64_t parts) {
    int64_t uses = 0;
    for (int64_t b = 0; b < order.num_blocks; ++b) {
        const Range vertices = order.blocks[b].vertices;
        for (int64_t part = 0; part < parts; ++part) {
            uses += bounds[part] < vertices.end && bounds[part + 1] > vertices.begin;
        }
    }
    return 4 * uses > 5 * order.num_blocks;
}

// Whether there are few vertices, and consecutive points touch many of them, so that threads can hardly divide the
// vertices among them. Then two lattices are made, of half of the points each, and added: on one thread, too, so that
// the sums have the same bits on any number of threads.
template <class T>
bool is_halved(const Simplices<T>& simplices, int64_t num_vertices) {
    if (simplices.num_points < sampled_blocks * block_points) return false;
    if (simplices.num_points * simplices.num_corners < halved_corners * num_vertices) return false;
    int64_t num_wide = 0;
    for (int64_t s = 0; s < sampled_blocks; ++s) {
        const int64_t begin = block_range(simplices.num_points - block_points, sampled_blocks, s).begin;
        const Range extent =
            find_extent(simplices.vertices + begin * simplices.num_corners, block_points * simplices.num_corners);
        num_wide += 8 * (extent.end - extent.begin) > num_vertices;
    }
    return 2 * num_wide > sampled_blocks;
}

// Threads divide the vertices among them; or the panels, where most points would have corners in the ranges of several
// threads.
template <class T>
void splat_into(const PointOrder<T>& order, const SplatValues<T>& values, const ChannelPanels<T>& panels, int threads) {
    const int64_t halves = is_halved(order.simplices, panels.num_rows) ? 2 : 1, size = panels.size();
    const Memory second(halves == 2 ? sizeof(T) * size : 0);
    int64_t parts = divide_up(threads, halves), shares = 1;
    const Memory memory(sizeof(int64_t) * (parts + 1));
    int64_t* bounds = as<int64_t>(memory);
    balance_vertices(order.simplices, panels.num_rows, parts, bounds);
    if (parts > 1 && panels.num_panels > 1 && share_blocks(order, bounds, parts)) {
        shares = panels.num_panels;
        parts = divide_up(parts, shares);
        balance_vertices(order.simplices, panels.num_rows, parts, bounds);
    }
    parallel_for(threads, halves * parts * shares, [&](int64_t task, int) {
        const int64_t half = task / (parts * shares), part = task / shares % parts;
        ChannelPanels<T> to = panels;
        if (half == 1) to.data = as<T>(second);
        const Range chosen = block_range(panels.num_panels, shares, task % shares);
        const Range blocks = block_range(order.num_blocks, halves, half);
        Splatter<T>(order, values, to, chosen).splat(blocks, {bounds[part], bounds[part + 1]});
    });
    if (halves == 1) return;
    parallel_ranges(threads, size, added_per_task, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) panels.data[i] += as<T>(second)[i];
    });
}

// Adds the values of the points to the vertices around them, by weight.
template <class T>
void splat(Matrix<const T> values, Simplices<T> simplices, Matrix<T> out, int threads) {
    const LatticeShape shape{out.num_rows, int64_t(sizeof(T)) * out.num_channels};
    const PointOrder<T> order = plan_order(simplices, shape, threads > 1, threads);
    const SplatValues<T> splatted{values.data, values.num_rows, values.num_channels, false};
    splat_into(order, splatted, panels_of_matrix(out.data, out.num_rows, out.num_channels), threads);
}

// The same on consecutive panels (channel_panels.hpp); the last channel of the lattice is the mass.
template <class T>
void splat_with_mass(const PointOrder<T>& order, Matrix<const T> values, Matrix<T> out, int threads) {
    const SplatValues<T> splatted{values.data, values.num_rows, values.num_channels, true};
    splat_into(order, splatted, consecutive_panels(out.data, out.num_rows, out.num_channels), threads);
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
