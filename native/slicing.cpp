// slice and barycentric_gradient. Compiled once per instruction set.
#include <algorithm>

#include "panels.hpp"
#include "variant.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

// results of so many bytes would only drive the lattice out of the caches
constexpr int64_t streamed_bytes = int64_t{1} << 24;
// blocks of one task
constexpr int64_t blocks_at_once = 4;

// sum_j b_j l_j for the channels of a panel, by pieces.
template <class T, int C, class Function>
PERMUTOHEDRAL_INLINE void sum_corners(const Corners<T>& corners, const Panel<const T>& panel, Function&& function) {
    for_pieces<T, C>(panel.width, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
        constexpr int N = decltype(width)::value;
        Piece<T, N> sum = {};
        for (int64_t j = 0; j < corners.corners; ++j) {
            sum += corners.barycentric[j] * load_piece<T, N>(panel.data + corners.vertices[j] * panel.stride + c);
        }
        function(c, width, sum);
    });
}

// points ahead whose rows are fetched
constexpr int64_t points_ahead = 8;

template <class T>
class Slicer {
public:
    Slicer(const Corners<T>& corners, const Panels<const T>& panels, Rows<T> out)
        : corners_(corners), panels_(panels), last_(panels[panels.num_panels - 1]), out_(out),
          streams_(out.channels % panel_channels<T> == 0 && reinterpret_cast<uintptr_t>(out.data) % 64 == 0 &&
                   int64_t(sizeof(T)) * out.rows * out.channels >= streamed_bytes) {}

    void slice(const Blocks& blocks, Range range) {
        with_width<T>(last_.width, [&](auto constant) {
            for_points(blocks, range, [&](const Corners<T>& corners, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                slice_whole(corners, T(1), to);
                slice_panel<decltype(constant)::value>(corners, last_, T(1), to);
            });
        });
    }

    // The last channel of the lattice is the mass: the others, divided by it and what is added so that it is never
    // zero.
    void slice_normalized(const Blocks& blocks, Range range, T added) {
        with_padded_width<T>(last_.width, [&](auto constant) {
            for_points(blocks, range, [&](const Corners<T>& corners, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                const T scale = normalize_panel<decltype(constant)::value>(corners, added, to);
                slice_whole(corners, scale, to);
            });
        });
    }

private:
    // Calls function(corners, row of the result) for the points of blocks.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_points(const Blocks& blocks, Range range, Function&& function) {
        const int64_t begin = blocks.data[range.begin].points.begin, end = blocks.data[range.end - 1].points.end;
        const Range all{0, panels_.num_panels};
        const int64_t fetched = blocks.scattered ? corners_.points - points_ahead : 0;
        for (int64_t i = begin; i < end; ++i) {
            if (i < fetched) fetch_rows(corners_at(corners_, i + points_ahead), panels_, all);
            function(corners_at(corners_, i), out_.data + i * out_.channels);
        }
        if (streams_) finish_streams();
    }

    template <int C>
    PERMUTOHEDRAL_INLINE void slice_panel(const Corners<T>& corners, const Panel<const T>& panel, T scale, T* out) {
        sum_corners<T, C>(corners, panel, [&](int64_t c, auto width, auto sum) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            if constexpr (C == panel_channels<T> && N > 1) {
                if (streams_) return stream<T, N>(out + panel.first + c, sum * scale);
            }
            store_piece<T, N>(out + panel.first + c, sum * scale);
        });
    }

    // All panels but the last.
    PERMUTOHEDRAL_INLINE void slice_whole(const Corners<T>& corners, T scale, T* out) {
        for (int64_t p = 0; p < panels_.num_panels - 1; ++p) {
            slice_panel<panel_channels<T>>(corners, panels_[p], scale, out);
        }
    }

    // The panel with the mass; returns what to multiply the others with.
    template <int C>
    PERMUTOHEDRAL_INLINE T normalize_panel(const Corners<T>& corners, T added, T* out) {
        T sums[panel_channels<T>];
        const Panel<const T> last{last_.data, C, last_.first, C};
        sum_corners<T, C>(corners, last, [&](int64_t c, auto width, auto sum) PERMUTOHEDRAL_INLINE_LAMBDA {
            store_piece<T, decltype(width)::value>(sums + c, sum);
        });
        const int64_t rest = out_.channels - last_.first;
        const T scale = T(1) / (sums[rest] + added);
        auto divide = [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            store_piece<T, N>(out + last_.first + c, load_piece<T, N>(sums + c) * scale);
        };
        if (C > 1 && rest == C - 1) {
            for_pieces<T, C - 1>(rest, divide);
        } else {
            for_pieces<T, 0>(rest, divide);
        }
        return scale;
    }

    const Corners<T> corners_;
    const Panels<const T> panels_;
    const Panel<const T> last_;
    const Rows<T> out_;
    const bool streams_;
};

template <class T, int N>
inline T add_up(Piece<T, N> piece) {
    if constexpr (N == 1) {
        return piece;
    } else {
        T sum = 0;
        for (int l = 0; l < N; ++l) sum += piece[l];
        return sum;
    }
}

}  // namespace

template <class T>
void slice(const Corners<T>& corners, Rows<const T> lattice_values, Rows<T> out, int threads) {
    const LatticeShape shape{lattice_values.rows, int64_t(sizeof(T)) * out.channels};
    const Blocks blocks = cut_blocks(corners, shape, false, threads);
    const auto panels = panels_of_rows(lattice_values.data, lattice_values.rows, lattice_values.channels);
    parallel_ranges(threads, blocks.count, blocks_at_once, [&](int64_t first, int64_t last, int) {
        Slicer<T>(corners, panels, out).slice(blocks, {first, last});
    });
}

template <class T>
void slice_normalized(const Blocks& blocks, const Corners<T>& corners, Rows<const T> lattice_values, T added_mass,
                      Rows<T> out, int threads) {
    const auto panels = panels_in(lattice_values.data, lattice_values.rows, lattice_values.channels);
    parallel_ranges(threads, blocks.count, blocks_at_once, [&](int64_t first, int64_t last, int) {
        Slicer<T>(corners, panels, out).slice_normalized(blocks, {first, last}, added_mass);
    });
}

template <class T>
void barycentric_gradient(const Corners<T>& corners, Rows<const T> values, const T* lattice_values, T* out,
                          int threads) {
    const int64_t channels = values.channels;
    parallel_ranges(threads, corners.points, block_points, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = 0; j < corners.corners; ++j) {
                const T* value = values.data + i * channels;
                const T* row = lattice_values + corners.vertices[i * corners.corners + j] * channels;
                T sum = 0;
                Vector<T> whole = {};
                for_pieces<T, 0>(channels, [&](int64_t c, auto width) {
                    constexpr int N = decltype(width)::value;
                    const Piece<T, N> product = load_piece<T, N>(value + c) * load_piece<T, N>(row + c);
                    if constexpr (N == lanes<T>) {
                        whole += product;
                    } else {
                        sum += add_up<T, N>(product);
                    }
                });
                out[i * corners.corners + j] = sum + add_up<T, lanes<T>>(whole);
            }
        }
    });
}

template void slice(const Corners<float>&, Rows<const float>, Rows<float>, int);
template void slice(const Corners<double>&, Rows<const double>, Rows<double>, int);
template void slice_normalized(const Blocks&, const Corners<float>&, Rows<const float>, float, Rows<float>, int);
template void slice_normalized(const Blocks&, const Corners<double>&, Rows<const double>, double, Rows<double>, int);
template void barycentric_gradient(const Corners<float>&, Rows<const float>, const float*, float*, int);
template void barycentric_gradient(const Corners<double>&, Rows<const double>, const double*, double*, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
