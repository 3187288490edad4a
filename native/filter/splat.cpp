// splat. Compiled once per instruction set.
#include <algorithm>

#include "filter/channel_panels.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t sampled_points = 4096;
constexpr int64_t sample_bins = 1024;
// corners of a row for which a second lattice costs little
constexpr int64_t halved_corners = 64, sampled_blocks = 16;
constexpr int64_t added_at_once = 1 << 15;

// Values to splat. With mass, the lattice has one channel more, the last, where every value is one.
template <class T>
struct Values {
    const T* data;
    int64_t points, channels;
    bool mass;
};

// How the last panel of a lattice with mass reads a value: which channels are the value's, and the one behind them.
template <class T>
struct MassMask {
    Whole<T> keep[panel_channels<T>];
    T add[panel_channels<T>];

    explicit MassMask(int64_t channels) {
        for (int64_t c = 0; c < panel_channels<T>; ++c) {
            keep[c] = c < channels ? -1 : 0;
            add[c] = c == channels ? T(1) : T(0);
        }
    }

    template <int N>
    Piece<T, N> apply(Piece<T, N> piece, int64_t c) const {
        if constexpr (N == 1) {
            return keep[c] != 0 ? piece : add[c];
        } else {
            using I = typename VectorOf<Whole<T>, N>::type;
            // bit by bit, since what follows the value may be NaN
            return (Piece<T, N>)(((I)piece & load<Whole<T>, N>(keep + c)) | (I)load<T, N>(add + c));
        }
    }
};

// Adds a value to all corners of a point.
template <class T, int C, bool Mass, int K>
PERMUTOHEDRAL_INLINE void add_value(const VisitCorners<T, K>& corners, const T* value, const MassMask<T>& mask,
                                    const Panel<T>& panel) {
    for_pieces<T, C>(panel.width, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
        constexpr int N = decltype(width)::value;
        Piece<T, N> piece = load_piece<T, N>(value + c);
        if constexpr (Mass) piece = mask.template apply<N>(piece, c);
        for (int64_t j = 0; j < corners.corners; ++j) {
            T* row = panel.data + corners.vertices[j] * panel.stride + c;
            store_piece<T, N>(row, load_piece<T, N>(row) + corners.barycentric[j] * piece);
        }
    });
}

// Points with corners in a range of rows.
struct Touching {
    int32_t point[block_points];    // within the block
    int32_t corners[block_points];  // how many of its corners lie inside
    int64_t count;
};

// K is the number of corners if known at compile time, else 0.
template <class T, int K>
void find_touching(const Corners<T>& corners, Range points, Range rows, Touching& touching) {
    const int64_t num_corners = K > 0 ? K : corners.corners;
    const uint32_t first = uint32_t(rows.begin), size = uint32_t(rows.end - rows.begin);
    int64_t count = 0;
    for (int64_t i = points.begin; i < points.end; ++i) {
        int32_t inside = 0;
        for (int64_t j = 0; j < num_corners; ++j) {
            inside += uint32_t(corners.vertices[i * num_corners + j]) - first < size;
        }
        // no branch: which points touch the rows may not be predictable
        touching.point[count] = int32_t(i - points.begin);
        touching.corners[count] = inside;
        count += inside > 0;
    }
    touching.count = count;
}

// Adds values to some panels and rows of a lattice, block by block.
template <class T>
class Splatter {
public:
    Splatter(const Visits<T>& visits, const Values<T>& values, const Panels<T>& panels, Range chosen)
        : visits_(visits), corners_(visits.corners), values_(values), panels_(panels), chosen_(chosen),
          last_(panels[chosen.end - 1]), whole_(panels.whole(chosen.begin, chosen.end - 1)),
          mask_(values.channels % panel_channels<T>) {}

    // Every row adds its points in the order of the visits, so the result does not depend on the range of rows.
    void splat(Range blocks, Range rows) {
        for (int64_t p = chosen_.begin; p < chosen_.end; ++p) clear(panels_[p], rows);
        for (int64_t b = blocks.begin; b < blocks.end; ++b) {
            const Block& block = visits_.blocks[b];
            if (block.rows.begin >= rows.end || block.rows.end <= rows.begin) continue;
            check_interruption();
            const bool inside = block.rows.begin >= rows.begin && block.rows.end <= rows.end;
            if (!inside) {
                with_constant(corners_.corners, [&](auto constant) {
                    find_touching<T, decltype(constant)::value>(corners_, block.visits, rows, touching_);
                });
            }
            auto splat_last = [&](auto constant, auto mass) {
                constexpr int C = decltype(constant)::value;
                constexpr bool Mass = decltype(mass)::value == 1;
                if (!inside) return splat_touching<C, Mass>(block.visits.begin, rows);
                with_corners(corners_.corners, [&](auto corners) {
                    splat_block<C, Mass, decltype(corners)::value>(block.visits);
                });
            };
            if (values_.mass && last_.first + last_.width > values_.channels) {
                with_padded_width<T>(last_.width, [&](auto constant) { splat_last(constant, Width<1>{}); });
            } else {
                with_width<T>(last_.width, [&](auto constant) { splat_last(constant, Width<0>{}); });
            }
        }
    }

private:
    void clear(const Panel<T>& panel, Range rows) {
        if (panel.stride == panel.width) {
            std::memset(panel.data + rows.begin * panel.stride, 0,
                        sizeof(T) * (rows.end - rows.begin) * panel.stride);
            return;
        }
        for (int64_t v = rows.begin; v < rows.end; ++v) {
            std::memset(panel.data + v * panel.stride, 0, sizeof(T) * panel.width);
        }
    }

    PERMUTOHEDRAL_INLINE const T* value_of(int64_t visit) const {
        return values_.data + (visits_.order == nullptr ? visit : visits_.order[visit]) * values_.channels;
    }

    // Values come in no order where the points were brought into one.
    PERMUTOHEDRAL_INLINE void fetch_ahead(int64_t visit) const {
        if (visits_.order != nullptr && visit < corners_.points) {
            fetch(value_of(visit), int64_t(sizeof(T)) * values_.channels);
        }
    }

    // C is the width of the last panel, which holds the mass if there is one.
    template <int C, bool Mass, int K>
    void splat_block(Range visits) {
        for (int64_t i = visits.begin; i < visits.end; ++i) {
            fetch_ahead(i + visits_ahead);
            splat_point<C, Mass>(corners_at<K>(corners_, i), value_of(i));
        }
    }

    template <int C, bool Mass>
    void splat_touching(int64_t begin, Range rows) {
        for (int64_t n = 0; n < touching_.count; ++n) {
            const int64_t visit = begin + touching_.point[n];
            const VisitCorners<T, 0> all = corners_at<0>(corners_, visit);
            fetch_ahead(visit + visits_ahead);
            if (touching_.corners[n] == all.corners) {
                splat_point<C, Mass>(all, value_of(visit));
                continue;
            }
            int32_t vertices[max_dimension + 2];
            T weights[max_dimension + 2];
            int64_t count = 0;
            for (int64_t j = 0; j < all.corners; ++j) {
                vertices[count] = all.vertices[j];
                weights[count] = all.barycentric[j];
                count += all.vertices[j] >= rows.begin && all.vertices[j] < rows.end;
            }
            splat_point<C, Mass>(VisitCorners<T, 0>{vertices, weights, count}, value_of(visit));
        }
    }

    template <int C, bool Mass, int K>
    PERMUTOHEDRAL_INLINE void splat_point(const VisitCorners<T, K>& corners, const T* value) {
        Panel<T> panel{whole_.data, whole_.stride, 0, panel_channels<T>};
        const T* from = value + whole_.first;
        for (int64_t p = 0; p < whole_.count; ++p) {
            add_value<T, panel_channels<T>, false>(corners, from, mask_, panel);
            from += panel_channels<T>;
            panel.data += whole_.step;
        }
        T padded[panel_channels<T>];
        panel = last_;
        if constexpr (Mass) {
            panel.stride = C;
            // wider than what is left of the value, if anything is: there must be something behind it to read
            if (last_.first == values_.channels) {
                from = mask_.add;
            } else if (__builtin_expect(from + C > values_.data + values_.points * values_.channels, 0)) {
                std::memset(padded, 0, sizeof(padded));
                std::memcpy(padded, from, sizeof(T) * (values_.channels - last_.first));
                from = padded;
            }
        }
        add_value<T, C, Mass>(corners, from, mask_, panel);
    }

    const Visits<T>& visits_;
    const Corners<T> corners_;
    const Values<T> values_;
    const Panels<T> panels_;
    const Range chosen_;
    const Panel<T> last_;
    const WholePanels<T> whole_;
    const MassMask<T> mask_;
    Touching touching_;
};

// Bounds of `parts` ranges of rows with about the same number of corners, from a sample of the points.
template <class T>
void balance_rows(const Corners<T>& corners, int64_t rows, int64_t parts, int64_t* bounds) {
    int64_t bins[sample_bins] = {0};
    int64_t total = 0;
    const int64_t stride = std::max<int64_t>(1, corners.points / sampled_points);
    for (int64_t i = 0; i < corners.points; i += stride) {
        for (int64_t j = 0; j < corners.corners; ++j) {
            ++bins[corners.vertices[i * corners.corners + j] * sample_bins / rows];
            ++total;
        }
    }
    int64_t bin = 0, below = 0;
    for (int64_t part = 0; part < parts; ++part) {
        while (bin < sample_bins && below * parts < total * part) below += bins[bin++];
        bounds[part] = divide_up(bin * rows, sample_bins);
    }
    bounds[0] = 0;
    bounds[parts] = rows;
}

// Whether many blocks would be visited for more than one range of rows.
template <class T>
bool share_blocks(const Visits<T>& visits, const int64_t* bounds, int64_t parts) {
    int64_t uses = 0;
    for (int64_t b = 0; b < visits.num_blocks; ++b) {
        const Range rows = visits.blocks[b].rows;
        for (int64_t part = 0; part < parts; ++part) {
            uses += bounds[part] < rows.end && bounds[part + 1] > rows.begin;
        }
    }
    return 4 * uses > 5 * visits.num_blocks;
}

// Whether there are few rows, and points that follow each other lie in many of them, so that threads can hardly share
// the rows. Two lattices are made then, of half of the points each, and added: on one thread, too, so that the sums are
// the same on any number of them.
template <class T>
bool is_halved(const Corners<T>& corners, int64_t rows) {
    if (corners.points < sampled_blocks * block_points) return false;
    if (corners.points * corners.corners < halved_corners * rows) return false;
    int64_t num_wide = 0;
    for (int64_t s = 0; s < sampled_blocks; ++s) {
        const int64_t begin = block_range(corners.points - block_points, sampled_blocks, s).begin;
        const Range extent = find_extent(corners.vertices + begin * corners.corners, block_points * corners.corners);
        num_wide += 8 * (extent.end - extent.begin) > rows;
    }
    return 2 * num_wide > sampled_blocks;
}

// Threads share the rows; or the panels, where most points would have corners in the rows of several threads.
template <class T>
void splat_in(const Visits<T>& visits, const Values<T>& values, const Panels<T>& panels, int threads) {
    const int64_t halves = is_halved(visits.corners, panels.rows) ? 2 : 1, size = panels.size();
    const Memory second(halves == 2 ? sizeof(T) * size : 0);
    int64_t parts = divide_up(threads, halves), shares = 1;
    const Memory memory(sizeof(int64_t) * (parts + 1));
    int64_t* bounds = as<int64_t>(memory);
    balance_rows(visits.corners, panels.rows, parts, bounds);
    if (parts > 1 && panels.num_panels > 1 && share_blocks(visits, bounds, parts)) {
        shares = panels.num_panels;
        parts = divide_up(parts, shares);
        balance_rows(visits.corners, panels.rows, parts, bounds);
    }
    parallel_for(threads, halves * parts * shares, [&](int64_t task, int) {
        const int64_t half = task / (parts * shares), part = task / shares % parts;
        Panels<T> to = panels;
        if (half == 1) to.data = as<T>(second);
        const Range chosen = block_range(panels.num_panels, shares, task % shares);
        const Range blocks = block_range(visits.num_blocks, halves, half);
        Splatter<T>(visits, values, to, chosen).splat(blocks, {bounds[part], bounds[part + 1]});
    });
    if (halves == 1) return;
    parallel_ranges(threads, size, added_at_once, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) panels.data[i] += as<T>(second)[i];
    });
}

}  // namespace

template <class T>
void splat(const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads) {
    const LatticeShape shape{out.rows, int64_t(sizeof(T)) * out.channels};
    const Visits<T> visits = plan_visits(corners, shape, threads > 1, threads);
    const Values<T> splatted{values.data, values.rows, values.channels, false};
    splat_in(visits, splatted, panels_of_rows(out.data, out.rows, out.channels), threads);
}

template <class T>
void splat_with_mass(const Visits<T>& visits, Rows<const T> values, Rows<T> out, int threads) {
    const Values<T> splatted{values.data, values.rows, values.channels, true};
    splat_in(visits, splatted, panels_in(out.data, out.rows, out.channels), threads);
}

template void splat(const Corners<float>&, Rows<const float>, Rows<float>, int);
template void splat(const Corners<double>&, Rows<const double>, Rows<double>, int);
template void splat_with_mass(const Visits<float>&, Rows<const float>, Rows<float>, int);
template void splat_with_mass(const Visits<double>&, Rows<const double>, Rows<double>, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
