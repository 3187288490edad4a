// slice and barycentric_gradient. Compiled once per instruction set.
#include <algorithm>

#include "filter/channel_panels.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

// results of so many bytes would only drive the lattice out of the caches
constexpr int64_t streamed_bytes = int64_t{1} << 24;
// blocks of one task
constexpr int64_t blocks_at_once = 4;

// sum_j b_j l_j for N channels from c on.
template <class T, int N, int K>
PERMUTOHEDRAL_INLINE Piece<T, N> sum_corners(const VisitCorners<T, K>& corners, const Panel<const T>& panel,
                                             int64_t c) {
    Piece<T, N> sum = {};
    for (int64_t j = 0; j < corners.corners; ++j) {
        sum += corners.barycentric[j] * load_piece<T, N>(panel.data + corners.vertices[j] * panel.stride + c);
    }
    return sum;
}

template <class T>
class Slicer {
public:
    Slicer(const Visits<T>& visits, const Panels<const T>& panels, Rows<T> out)
        : visits_(visits), last_(panels[panels.num_panels - 1]),
          whole_(panels.whole(0, panels.num_panels - 1)), out_(out),
          streams_(out.channels % panel_channels<T> == 0 && reinterpret_cast<uintptr_t>(out.data) % 64 == 0 &&
                   int64_t(sizeof(T)) * out.rows * out.channels >= streamed_bytes) {}

    void slice(Range range) {
        with_width<T>(last_.width, [&](auto constant) {
            for_points(range, [&](const auto& corners, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                slice_whole(corners, T(1), to);
                slice_panel<decltype(constant)::value>(corners, last_, T(1), to);
            });
        });
    }

    // The last channel of the lattice is the mass: the others, divided by it and what is added so that it is never
    // zero.
    void slice_normalized(Range range, T added) {
        with_padded_width<T>(last_.width, [&](auto constant) {
            for_points(range, [&](const auto& corners, T* to) PERMUTOHEDRAL_INLINE_LAMBDA {
                const T scale = normalize_panel<decltype(constant)::value>(corners, added, to);
                slice_whole(corners, scale, to);
            });
        });
    }

private:
    // Calls function(corners, row of the result) for the points of blocks.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_points(Range blocks, Function&& function) {
        with_corners(visits_.corners.corners, [&](auto corners) PERMUTOHEDRAL_INLINE_LAMBDA {
            for_points_with<decltype(corners)::value>(blocks, function);
        });
    }

    template <int K, class Function>
    PERMUTOHEDRAL_INLINE void for_points_with(Range blocks, Function&& function) {
        const int64_t begin = visits_.blocks[blocks.begin].visits.begin;
        const int64_t end = visits_.blocks[blocks.end - 1].visits.end;
        const bool fetches = visits_.order != nullptr && !streams_;
        for (int64_t i = begin; i < end; ++i) {
            if (fetches && i + visits_ahead < end) fetch(row_of(i + visits_ahead), int64_t(sizeof(T)) * out_.channels);
            function(corners_at<K>(visits_.corners, i), row_of(i));
        }
        if (streams_) finish_streams();
    }

    T* row_of(int64_t visit) const {
        return out_.data + (visits_.order == nullptr ? visit : visits_.order[visit]) * out_.channels;
    }

    template <int C, int K>
    PERMUTOHEDRAL_INLINE void slice_panel(const VisitCorners<T, K>& corners, const Panel<const T>& panel, T scale,
                                          T* out) {
        for_pieces<T, C>(panel.width, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            const Piece<T, N> sum = sum_corners<T, N>(corners, panel, c);
            if constexpr (C == panel_channels<T> && N > 1) {
                if (streams_) return stream<T, N>(out + panel.first + c, sum * scale);
            }
            store_piece<T, N>(out + panel.first + c, sum * scale);
        });
    }

    // All panels but the last.
    template <int K>
    PERMUTOHEDRAL_INLINE void slice_whole(const VisitCorners<T, K>& corners, T scale, T* out) {
        Panel<const T> panel{whole_.data, whole_.stride, 0, panel_channels<T>};
        for (int64_t p = 0; p < whole_.count; ++p) {
            slice_panel<panel_channels<T>>(corners, panel, scale, out);
            panel.data += whole_.step;
            panel.first += panel_channels<T>;
        }
    }

    // The panel with the mass; returns what to multiply the others with.
    template <int C, int K>
    PERMUTOHEDRAL_INLINE T normalize_panel(const VisitCorners<T, K>& corners, T added, T* out) {
        const Panel<const T> last{last_.data, C, last_.first, C};
        // of a panel of one or two channels it is known how many are not the mass
        const int64_t rest = C <= 2 ? C - 1 : out_.channels - last_.first;
        T* to = out + last_.first;
        T sums[panel_channels<T>] = {};
        for_pieces<T, C>(C, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
            constexpr int N = decltype(width)::value;
            store_piece<T, N>(sums + c, sum_corners<T, N>(corners, last, c));
        });
        const T scale = T(1) / (sums[rest] + added);
        if constexpr (C > 2 && C <= lanes<T>) {
            store_first<T, C>(to, load_piece<T, C>(sums) * scale, rest);
        } else {
            for (int64_t c = 0; c < rest; ++c) to[c] = sums[c] * scale;
        }
        return scale;
    }

    const Visits<T>& visits_;
    const Panel<const T> last_;
    const WholePanels<const T> whole_;
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
    const Visits<T> visits = plan_visits(corners, shape, false, threads);
    const auto panels = panels_of_rows(lattice_values.data, lattice_values.rows, lattice_values.channels);
    parallel_ranges(threads, visits.num_blocks, blocks_at_once, [&](int64_t first, int64_t last, int) {
        Slicer<T>(visits, panels, out).slice({first, last});
    });
}

template <class T>
void slice_normalized(const Visits<T>& visits, Rows<const T> lattice_values, T added_mass, Rows<T> out, int threads) {
    const auto panels = panels_in(lattice_values.data, lattice_values.rows, lattice_values.channels);
    parallel_ranges(threads, visits.num_blocks, blocks_at_once, [&](int64_t first, int64_t last, int) {
        Slicer<T>(visits, panels, out).slice_normalized({first, last}, added_mass);
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
template void slice_normalized(const Visits<float>&, Rows<const float>, float, Rows<float>, int);
template void slice_normalized(const Visits<double>&, Rows<const double>, double, Rows<double>, int);
template void barycentric_gradient(const Corners<float>&, Rows<const float>, const float*, float*, int);
template void barycentric_gradient(const Corners<double>&, Rows<const double>, const double*, double*, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
