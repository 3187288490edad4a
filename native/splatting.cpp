// splat. Compiled once per instruction set.
#include <algorithm>

#include "panels.hpp"
#include "variant.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t sampled_points = 4096;
constexpr int64_t sample_bins = 1024;

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
template <class T, int C, bool Mass>
PERMUTOHEDRAL_INLINE void add_value(const Corners<T>& corners, const T* value, const MassMask<T>& mask,
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

// points ahead whose rows are fetched
constexpr int64_t points_ahead = 8;

// Adds values to some panels and rows of a lattice, block by block.
template <class T>
class Splatter {
public:
    Splatter(const Corners<T>& corners, const Values<T>& values, const Panels<T>& panels, Range chosen)
        : corners_(corners), values_(values), panels_(panels), chosen_(chosen), last_(panels[chosen.end - 1]),
          mask_(values.channels % panel_channels<T>) {}

    // Every row adds its points in their order, so the result does not depend on the ranges.
    void splat(const Blocks& blocks, Range rows) {
        for (int64_t p = chosen_.begin; p < chosen_.end; ++p) clear(panels_[p], rows);
        for (int64_t b = 0; b < blocks.count; ++b) {
            const Block& block = blocks.data[b];
            if (block.rows.begin >= rows.end || block.rows.end <= rows.begin) continue;
            check_interruption();
            const bool inside = block.rows.begin >= rows.begin && block.rows.end <= rows.end;
            if (!inside) {
                with_constant(corners_.corners, [&](auto constant) {
                    find_touching<T, decltype(constant)::value>(corners_, block.points, rows, touching_);
                });
            }
            auto splat_last = [&](auto constant, auto mass) {
                constexpr int C = decltype(constant)::value;
                constexpr bool Mass = decltype(mass)::value == 1;
                if (!inside) {
                    splat_touching<C, Mass>(block.points.begin, rows);
                } else if (blocks.scattered) {
                    splat_block<C, Mass, true>(block.points);
                } else {
                    splat_block<C, Mass, false>(block.points);
                }
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

    // C is the width of the last panel, which holds the mass if there is one.
    template <int C, bool Mass, bool Fetch>
    void splat_block(Range points) {
        for (int64_t i = points.begin; i < points.end; ++i) {
            if (Fetch && i + points_ahead < corners_.points) {
                fetch_rows(corners_at(corners_, i + points_ahead), panels_, chosen_);
            }
            splat_point<C, Mass>(corners_at(corners_, i), i);
        }
    }

    template <int C, bool Mass>
    void splat_touching(int64_t begin, Range rows) {
        for (int64_t n = 0; n < touching_.count; ++n) {
            const Corners<T> all = corners_at(corners_, begin + touching_.point[n]);
            if (n + points_ahead < touching_.count) {
                fetch_rows(corners_at(corners_, begin + touching_.point[n + points_ahead]), panels_, chosen_);
            }
            if (touching_.corners[n] == all.corners) {
                splat_point<C, Mass>(all, begin + touching_.point[n]);
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
            splat_point<C, Mass>(Corners<T>{vertices, weights, 1, count}, begin + touching_.point[n]);
        }
    }

    template <int C, bool Mass>
    PERMUTOHEDRAL_INLINE void splat_point(const Corners<T>& corners, int64_t point) {
        const T* value = values_.data + point * values_.channels;
        for (int64_t p = chosen_.begin; p < chosen_.end - 1; ++p) {
            const Panel<T> panel = panels_[p];
            add_value<T, panel_channels<T>, false>(corners, value + panel.first, mask_, panel);
        }
        Panel<T> last = last_;
        if constexpr (Mass) {
            last.stride = C;
            // the panel is wider than what is left of the value: there must be something behind it to read
            if (point * values_.channels + last_.first + C > values_.points * values_.channels) {
                T padded[panel_channels<T>] = {};
                for (int64_t c = 0; c < values_.channels - last_.first; ++c) padded[c] = value[last_.first + c];
                return add_value<T, C, true>(corners, padded, mask_, last);
            }
        }
        add_value<T, C, Mass>(corners, value + last.first, mask_, last);
    }

    const Corners<T> corners_;
    const Values<T> values_;
    const Panels<T> panels_;
    const Range chosen_;
    const Panel<T> last_;
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
bool share_blocks(const Blocks& blocks, const int64_t* bounds, int64_t parts) {
    int64_t visits = 0;
    for (int64_t b = 0; b < blocks.count; ++b) {
        const Range rows = blocks.data[b].rows;
        for (int64_t part = 0; part < parts; ++part) {
            visits += bounds[part] < rows.end && bounds[part + 1] > rows.begin;
        }
    }
    return 4 * visits > 5 * blocks.count;
}

// Threads share the rows; or the panels, where most points would have corners in the rows of several threads.
template <class T>
void splat_in(const Blocks& blocks, const Corners<T>& corners, const Values<T>& values, const Panels<T>& panels,
              int threads) {
    const Memory memory(sizeof(int64_t) * (threads + 1));
    int64_t* bounds = as<int64_t>(memory);
    balance_rows(corners, panels.rows, threads, bounds);
    int64_t parts = threads, shares = 1;
    if (threads > 1 && panels.num_panels > 1 && share_blocks(blocks, bounds, parts)) {
        shares = panels.num_panels;
        parts = divide_up(threads, shares);
        balance_rows(corners, panels.rows, parts, bounds);
    }
    parallel_for(threads, parts * shares, [&](int64_t task, int) {
        const Range rows{bounds[task / shares], bounds[task / shares + 1]};
        const Range chosen = block_range(panels.num_panels, shares, task % shares);
        Splatter<T>(corners, values, panels, chosen).splat(blocks, rows);
    });
}

}  // namespace

template <class T>
void splat(const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads) {
    const LatticeShape shape{out.rows, int64_t(sizeof(T)) * out.channels};
    const Blocks blocks = cut_blocks(corners, shape, threads > 1, threads);
    const Values<T> splatted{values.data, values.rows, values.channels, false};
    splat_in(blocks, corners, splatted, panels_of_rows(out.data, out.rows, out.channels), threads);
}

template <class T>
void splat_with_mass(const Blocks& blocks, const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads) {
    const Values<T> splatted{values.data, values.rows, values.channels, true};
    splat_in(blocks, corners, splatted, panels_in(out.data, out.rows, out.channels), threads);
}

template void splat(const Corners<float>&, Rows<const float>, Rows<float>, int);
template void splat(const Corners<double>&, Rows<const double>, Rows<double>, int);
template void splat_with_mass(const Blocks&, const Corners<float>&, Rows<const float>, Rows<float>, int);
template void splat_with_mass(const Blocks&, const Corners<double>&, Rows<const double>, Rows<double>, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
