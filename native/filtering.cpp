// splat, slice, barycentric_gradient and blur. Compiled once per instruction set.
#include <algorithm>

#include "memory.hpp"
#include "parallel.hpp"
#include "pieces.hpp"
#include "variant.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

constexpr int64_t point_block = 2048;
constexpr int64_t row_block = 2048;
constexpr int64_t sampled_points = 4096;
constexpr int64_t sample_bins = 1024;

// points ahead whose rows are fetched: worth it where a row fills cache lines of its own
constexpr int64_t points_ahead = 8;
constexpr int64_t cache_line = 64;

template <class T, int C>
inline void prefetch_rows(const Corners<T>& corners, const T* rows, int64_t channels, int64_t point) {
    if constexpr (C == 0) {
        if (point >= corners.points) return;
        const int32_t* vertices = corners.vertices + point * corners.corners;
        for (int64_t j = 0; j < corners.corners; ++j) {
            const char* row = reinterpret_cast<const char*>(rows + vertices[j] * channels);
            for (int64_t at = 0; at < int64_t(sizeof(T)) * channels; at += cache_line) __builtin_prefetch(row + at);
        }
    }
}

// Values to splat. With Mass, the rows of the lattice have one channel more, the last, where every value is one.
template <class T>
struct Values {
    const T* data;
    int64_t channels;  // of the lattice
};

// Adds channels [0, count) of a value to all corners of a point.
template <class T, int C>
inline void add_value(const Corners<T>& corners, const T* value, int64_t count, int64_t channels, T* out) {
    for_pieces<T, C>(count, [&](int64_t c, auto width) {
        constexpr int N = decltype(width)::value;
        const Piece<T, N> piece = load_piece<T, N>(value + c);
        for (int64_t j = 0; j < corners.corners; ++j) {
            T* row = out + corners.vertices[j] * channels + c;
            store_piece<T, N>(row, load_piece<T, N>(row) + corners.barycentric[j] * piece);
        }
    });
}

// Adds one point to all of its corners; `corners` are those of the point alone.
template <class T, int C, bool Mass>
inline void splat_point(const Corners<T>& corners, const Values<T>& values, int64_t point, T* out) {
    const int64_t channels = C > 0 ? C : values.channels;
    const T* value = values.data + point * (channels - Mass);
    if constexpr (!Mass) {
        add_value<T, C>(corners, value, channels, channels, out);
    } else if constexpr (C > 0) {
        T padded[C];
        for (int c = 0; c < C - 1; ++c) padded[c] = value[c];
        padded[C - 1] = T(1);
        add_value<T, C>(corners, padded, channels, channels, out);
    } else {
        add_value<T, 0>(corners, value, channels - 1, channels, out);
        for (int64_t j = 0; j < corners.corners; ++j) {
            out[corners.vertices[j] * channels + channels - 1] += corners.barycentric[j];
        }
    }
}

template <class T>
inline Corners<T> corners_at(const Corners<T>& corners, int64_t point) {
    return {corners.vertices + point * corners.corners, corners.barycentric + point * corners.corners, 1,
            corners.corners};
}

template <class T, int C, bool Mass>
void splat_points(const Corners<T>& corners, const Values<T>& values, Range points, T* out) {
    for (int64_t i = points.begin; i < points.end; ++i) {
        prefetch_rows<T, C>(corners, out, values.channels, i + points_ahead);
        splat_point<T, C, Mass>(corners_at(corners, i), values, i, out);
    }
}

// Points with corners in a range of rows.
struct Touching {
    int32_t point[point_block];   // within the block
    int32_t corners[point_block];  // how many of its corners lie inside
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

// The same as splat_points, for corners in `rows` only.
template <class T, int C, bool Mass>
void splat_some(const Corners<T>& corners, const Values<T>& values, Range points, Range rows, T* out) {
    Touching touching;
    with_constant(corners.corners, [&](auto constant) {
        find_touching<T, decltype(constant)::value>(corners, points, rows, touching);
    });
    for (int64_t n = 0; n < touching.count; ++n) {
        const int64_t i = points.begin + touching.point[n];
        if (n + points_ahead < touching.count) {
            prefetch_rows<T, C>(corners, out, values.channels, points.begin + touching.point[n + points_ahead]);
        }
        const Corners<T> all = corners_at(corners, i);
        if (touching.corners[n] == corners.corners) {
            splat_point<T, C, Mass>(all, values, i, out);
            continue;
        }
        int32_t vertices[max_dimension + 2];
        T weights[max_dimension + 2];
        int64_t count = 0;
        for (int64_t j = 0; j < corners.corners; ++j) {
            vertices[count] = all.vertices[j];
            weights[count] = all.barycentric[j];
            count += all.vertices[j] >= rows.begin && all.vertices[j] < rows.end;
        }
        splat_point<T, C, Mass>(Corners<T>{vertices, weights, 1, count}, values, i, out);
    }
}

// Lowest and highest vertex of each block of points.
template <class T>
void find_extents(const Corners<T>& corners, int threads, Range* extents) {
    parallel_ranges(threads, corners.points, point_block, [&](int64_t begin, int64_t end, int) {
        using V = typename VectorOf<int32_t, lanes<int32_t>>::type;
        const int32_t* vertices = corners.vertices + begin * corners.corners;
        const int64_t count = (end - begin) * corners.corners;
        int32_t low = vertices[0], high = low;
        V lows = V{} + low, highs = lows;
        int64_t i = 0;
        for (; i + lanes<int32_t> <= count; i += lanes<int32_t>) {
            const V next = load<int32_t, lanes<int32_t>>(vertices + i);
            lows = next < lows ? next : lows;
            highs = next > highs ? next : highs;
        }
        for (; i < count; ++i) {
            low = std::min(low, vertices[i]);
            high = std::max(high, vertices[i]);
        }
        for (int l = 0; l < lanes<int32_t>; ++l) {
            low = std::min(low, int32_t(lows[l]));
            high = std::max(high, int32_t(highs[l]));
        }
        extents[begin / point_block] = {low, high + 1};
    });
}

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

// Rows [begin, end) of the lattice, summed by one thread: every row adds its points in their order, so the result
// does not depend on where the parts begin or how many there are.
template <class T, int C, bool Mass>
void splat_part(const Corners<T>& corners, const Values<T>& values, Range rows, const Range* extents, T* out) {
    std::memset(out + rows.begin * values.channels, 0, sizeof(T) * (rows.end - rows.begin) * values.channels);
    for (int64_t begin = 0; begin < corners.points; begin += point_block) {
        const Range block{begin, std::min(begin + point_block, corners.points)};
        const Range extent = extents[begin / point_block];
        if (extent.begin >= rows.end || extent.end <= rows.begin) continue;
        if (extent.begin >= rows.begin && extent.end <= rows.end) {
            splat_points<T, C, Mass>(corners, values, block, out);
        } else {
            splat_some<T, C, Mass>(corners, values, block, rows, out);
        }
    }
}

template <class T, int C, bool Mass>
void splat_all(const Corners<T>& corners, const Values<T>& values, Rows<T> out, int threads) {
    if (threads == 1) {
        std::memset(out.data, 0, sizeof(T) * out.rows * out.channels);
        return splat_points<T, C, Mass>(corners, values, {0, corners.points}, out.data);
    }
    const Memory extents(sizeof(Range) * divide_up(corners.points, point_block));
    const Memory bounds(sizeof(int64_t) * (threads + 1));
    find_extents(corners, threads, as<Range>(extents));
    balance_rows(corners, out.rows, threads, as<int64_t>(bounds));
    parallel_for(threads, threads, [&](int64_t part, int) {
        const Range rows{as<int64_t>(bounds)[part], as<int64_t>(bounds)[part + 1]};
        splat_part<T, C, Mass>(corners, values, rows, as<Range>(extents), out.data);
    });
}

}  // namespace

template <class T>
void splat(const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads) {
    const Values<T> splatted{values.data, out.channels};
    with_constant(out.channels, [&](auto constant) {
        constexpr int C = decltype(constant)::value;
        if (out.channels > values.channels) {
            splat_all<T, C, true>(corners, splatted, out, threads);
        } else {
            splat_all<T, C, false>(corners, splatted, out, threads);
        }
    });
}

namespace {

// sum_j b_j l_j for channels [0, count).
template <class T, int C>
inline void slice_point(const Corners<T>& corners, Rows<const T> lattice_values, int64_t count, T scale, T* out) {
    const int64_t channels = lattice_values.channels;
    for_pieces<T, C>(count, [&](int64_t c, auto width) {
        constexpr int N = decltype(width)::value;
        Piece<T, N> sum = {};
        for (int64_t j = 0; j < corners.corners; ++j) {
            sum += corners.barycentric[j] * load_piece<T, N>(lattice_values.data + corners.vertices[j] * channels + c);
        }
        store_piece<T, N>(out + c, sum * scale);
    });
}

template <class T, int C>
void slice_points(const Corners<T>& corners, Rows<const T> lattice_values, Range points, T* out) {
    const int64_t channels = C > 0 ? C : lattice_values.channels;
    const Rows<const T> rows{lattice_values.data, lattice_values.rows, channels};
    for (int64_t i = points.begin; i < points.end; ++i) {
        prefetch_rows<T, C>(corners, rows.data, channels, i + points_ahead);
        slice_point<T, C>(corners_at(corners, i), rows, channels, T(1), out + i * channels);
    }
}

// The last channel is the mass: the others, divided by it and what is added so that it is never zero.
template <class T, int C>
void slice_normalized(const Corners<T>& corners, Rows<const T> lattice_values, T added, Range points, T* out) {
    const int64_t channels = C > 0 ? C : lattice_values.channels;
    const Rows<const T> rows{lattice_values.data, lattice_values.rows, channels};
    for (int64_t i = points.begin; i < points.end; ++i) {
        prefetch_rows<T, C>(corners, rows.data, channels, i + points_ahead);
        const Corners<T> own = corners_at(corners, i);
        T* to = out + i * (channels - 1);
        if constexpr (C > 0) {
            T sums[C];
            slice_point<T, C>(own, rows, channels, T(1), sums);
            const T scale = T(1) / (sums[C - 1] + added);
            for (int c = 0; c < C - 1; ++c) to[c] = sums[c] * scale;
        } else {
            T mass = added;
            for (int64_t j = 0; j < own.corners; ++j) {
                mass += own.barycentric[j] * rows.data[own.vertices[j] * channels + channels - 1];
            }
            slice_point<T, 0>(own, rows, channels - 1, T(1) / mass, to);
        }
    }
}

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
void slice(const Corners<T>& corners, Rows<const T> lattice_values, T added_mass, Rows<T> out, int threads) {
    with_constant(lattice_values.channels, [&](auto constant) {
        constexpr int C = decltype(constant)::value;
        parallel_ranges(threads, corners.points, point_block, [&](int64_t begin, int64_t end, int) {
            if (out.channels < lattice_values.channels) {
                slice_normalized<T, C>(corners, lattice_values, added_mass, {begin, end}, out.data);
            } else {
                slice_points<T, C>(corners, lattice_values, {begin, end}, out.data);
            }
        });
    });
}

template <class T>
void barycentric_gradient(const Corners<T>& corners, Rows<const T> values, const T* lattice_values, T* out,
                          int threads) {
    const int64_t channels = values.channels;
    parallel_ranges(threads, corners.points, point_block, [&](int64_t begin, int64_t end, int) {
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

namespace {

// One pass: l + (l(ahead) + l(behind)) / 2; a missing neighbor reads the row `zero`.
template <class T, int C>
void blur_axis(Rows<const T> in, const int32_t* ahead, const int32_t* behind, const T* zero, Range rows, T* out) {
    const int64_t channels = C > 0 ? C : in.channels;
    for (int64_t v = rows.begin; v < rows.end; ++v) {
        const T* a = ahead[v] < 0 ? zero : in.data + ahead[v] * channels;
        const T* b = behind[v] < 0 ? zero : in.data + behind[v] * channels;
        for_pieces<T, C>(channels, [&](int64_t c, auto width) {
            constexpr int N = decltype(width)::value;
            const Piece<T, N> sum = load_piece<T, N>(a + c) + load_piece<T, N>(b + c);
            store_piece<T, N>(out + v * channels + c, load_piece<T, N>(in.data + v * channels + c) + T(0.5) * sum);
        });
    }
}

}  // namespace

template <class T>
void blur(Rows<const T> lattice_values, const int32_t* axis_neighbors, int64_t axes, bool reverse, T* out,
          int threads) {
    const int64_t rows = lattice_values.rows, channels = lattice_values.channels;
    const Memory scratch(sizeof(T) * rows * channels);
    const Memory zero(sizeof(T) * channels);
    std::memset(zero.data(), 0, zero.size());
    Rows<const T> in = lattice_values;
    for (int64_t pass = 0; pass < axes; ++pass) {
        const int64_t axis = reverse ? axes - 1 - pass : pass;
        const int32_t* ahead = axis_neighbors + 2 * axis * rows;
        // in turn, so that the last pass writes to out
        T* to = (axes - pass) % 2 == 1 ? out : as<T>(scratch);
        with_constant(channels, [&](auto constant) {
            parallel_ranges(threads, rows, row_block, [&](int64_t begin, int64_t end, int) {
                blur_axis<T, decltype(constant)::value>(in, ahead, ahead + rows, as<T>(zero), {begin, end}, to);
            });
        });
        in.data = to;
    }
}

template void splat(const Corners<float>&, Rows<const float>, Rows<float>, int);
template void splat(const Corners<double>&, Rows<const double>, Rows<double>, int);
template void slice(const Corners<float>&, Rows<const float>, float, Rows<float>, int);
template void slice(const Corners<double>&, Rows<const double>, double, Rows<double>, int);
template void barycentric_gradient(const Corners<float>&, Rows<const float>, const float*, float*, int);
template void barycentric_gradient(const Corners<double>&, Rows<const double>, const double*, double*, int);
template void blur(Rows<const float>, const int32_t*, int64_t, bool, float*, int);
template void blur(Rows<const double>, const int32_t*, int64_t, bool, double*, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
