// The simplex around each point, one point per lane of a vector. Symbols as in ops/reference.py: y = E f is the point
// in the plane of R^{d+1} orthogonal to 1; a simplex is given by its corner congruent to 0 and a permutation.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/key_packing.hpp"
#include "kernels.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Throughout, D is the dimension if known at compile time, else 0.
template <int D>
constexpr int capacity = capacity_for<D, max_dimension>;

template <class T>
struct Elevation {
    T scale[max_dimension];  // alpha / sqrt(j (j+1)) for j = 1 .. d, alpha = sqrt(2/3) (d+1)
};

template <class T>
inline Elevation<T> make_elevation(int64_t d) {
    Elevation<T> elevation;
    const double alpha = std::sqrt(2.0 / 3.0) * double(d + 1);
    for (int64_t j = 1; j <= d; ++j) elevation.scale[j - 1] = T(alpha / std::sqrt(double(j) * double(j + 1)));
    return elevation;
}

template <class T, int D>
struct SimplexLanes {
    IntegerVector<T> cell[capacity<D> + 1];  // the corner congruent to 0, divided by d+1
    IntegerVector<T> rank[capacity<D> + 1];  // position of each coordinate of y - corner in descending order
    Vector<T> delta[capacity<D> + 1];        // (y - corner) / (d+1)
};

// From a matrix [count, d] to lanes; lanes beyond `count` are zero.
template <class T, int D>
inline void load_points(const T* rows, Extent<D> d, int64_t count, Vector<T>* columns) {
#if defined(PERMUTOHEDRAL_SHUFFLE)
    if constexpr (D > 0 && can_transpose<T>) {
        if (count == lanes<T>) {
            return rows_to_columns<T, lanes<T>, D>(rows, columns, std::make_integer_sequence<int, D>{});
        }
    }
#endif
    for (int64_t k = 0; k < d; ++k) {
        Vector<T> column = {};
        for (int l = 0; l < count; ++l) column[l] = rows[l * d + k];
        columns[k] = column;
    }
}

// From lanes to a matrix [count, d + 1].
template <class T, int D>
inline void store_weights(const Vector<T>* columns, Extent<D> d, int64_t count, T* rows) {
#if defined(PERMUTOHEDRAL_SHUFFLE)
    if constexpr (D > 0 && can_transpose<T>) {
        if (count == lanes<T>) {
            return columns_to_rows<T, lanes<T>, D + 1>(columns, rows, std::make_integer_sequence<int, D + 1>{});
        }
    }
#endif
    const int64_t corners = d + 1;
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t j = 0; j < corners; ++j) rows[l * corners + j] = columns[j][l];
    }
}

// y = E f, without the matrix: its columns are constant above the diagonal.
template <class T, int D>
inline void elevate(const Vector<T>* features, Extent<D> d, const Elevation<T>& elevation, Vector<T>* y) {
    Vector<T> sum = {};
    for (int64_t j = d; j > 0; --j) {
        const Vector<T> scaled = features[j - 1] * elevation.scale[j - 1];
        y[j] = sum - T(j) * scaled;
        sum += scaled;
    }
    y[0] = sum;
}

// Nearest integer, for magnitudes below 2^23 (2^52): adding such a power of two leaves no bits for a fraction.
template <class T>
inline Vector<T> round_to_integer(Vector<T> x) {
    const T unit = sizeof(T) == 4 ? T(8388608.0) : T(4503599627370496.0);
    const IntegerVector<T> sign = (IntegerVector<T>)x & std::numeric_limits<Integer<T>>::min();
    const Vector<T> shift = (Vector<T>)(sign | (IntegerVector<T>)(Vector<T>{} + unit));
    return (x + shift) - shift;
}

// index_points and the derivatives must agree on the simplex to the last bit, whatever D: the files that use this are
// therefore compiled without contraction to fused multiply-add.
template <class T, int D>
inline void find_simplex(const Vector<T>* features, Extent<D> d, const Elevation<T>& elevation,
                         SimplexLanes<T, D>& simplex) {
    using V = Vector<T>;
    using I = IntegerVector<T>;
    const T inverse = T(1) / T(d + 1);
    V y[capacity<D> + 1], rest[capacity<D> + 1];
    elevate<T, D>(features, d, elevation, y);
    I excess = {};
    for (int64_t i = 0; i <= d; ++i) {
        const V rounded = round_to_integer<T>(y[i] * inverse);
        rest[i] = y[i] - rounded * T(d + 1);
        simplex.cell[i] = __builtin_convertvector(rounded, I);
        excess += simplex.cell[i];
        simplex.rank[i] = I{} + Integer<T>(i);
    }
    for (int64_t i = 0; i <= d; ++i) {
        I rank = simplex.rank[i];
        for (int64_t j = i + 1; j <= d; ++j) {
            const I behind = (I)(rest[i] < rest[j]);
            rank -= behind;
            simplex.rank[j] += behind;
        }
        simplex.rank[i] = rank;
    }
    // the rounded point may lie off the plane: move the coordinates of extreme rank back by one cell
    for (int64_t i = 0; i <= d; ++i) {
        I rank = simplex.rank[i] + excess;
        const I below = (I)(rank < 0), above = (I)(rank > Integer<T>(d));
        const I step = above - below;
        rank += step * Integer<T>(d + 1);
        // where coordinates exceed the precision of T the excess may be larger; a rank must still be a valid index
        rank = rank < 0 ? I{} : rank;
        simplex.rank[i] = rank > Integer<T>(d) ? I{} + Integer<T>(d) : rank;
        simplex.cell[i] += step;
        simplex.delta[i] = (rest[i] - __builtin_convertvector(step, V) * T(d + 1)) * inverse;
    }
}

// b_j = delta_(d-j) - delta_(d-j+1) with delta_(r) the coordinate of rank r, and b_0 = 1 + delta_(d) - delta_(0).
template <class T, int D>
inline void find_barycentric(const SimplexLanes<T, D>& simplex, Extent<D> d, Vector<T>* barycentric) {
    Vector<T> sorted[capacity<D> + 1];
    for (int64_t rank = 0; rank <= d; ++rank) {
        Vector<T> value = {};
        for (int64_t i = 0; i <= d; ++i) {
            value = simplex.rank[i] == Integer<T>(rank) ? simplex.delta[i] : value;
        }
        sorted[rank] = value;
    }
    for (int64_t j = 0; j <= d; ++j) {
        Vector<T> weight = j == 0 ? T(1) + sorted[d] - sorted[0] : sorted[d - j] - sorted[d - j + 1];
        barycentric[j] = weight > 0 ? weight : Vector<T>{};
    }
}

constexpr int64_t derived_per_task = 8192;

// The gradient with respect to the features, given that with respect to the barycentric weights.
template <class T>
void embed_gradient(Matrix<const T> gradient, Points<T> points, Matrix<T> out, int threads) {
    const int64_t d = points.d;
    const Elevation<T> elevation = make_elevation<T>(d);
    parallel_ranges(threads, points.num_points, derived_per_task, [&](int64_t first, int64_t last, int) {
        Vector<T> features[max_dimension];
        SimplexLanes<T, 0> simplex;
        for (int64_t begin = first; begin < last; begin += lanes<T>) {
            const int64_t count = std::min<int64_t>(lanes<T>, last - begin);
            load_points<T, 0>(points.features + begin * d, d, count, features);
            find_simplex<T, 0>(features, d, elevation, simplex);
            for (int64_t l = 0; l < count; ++l) {
                const T* row = gradient.data + (begin + l) * (d + 1);
                // the coordinate of rank r adds to b_{d-r} and takes from b_{d+1-r}, indices modulo d+1
                auto coordinate = [&](int64_t i) {
                    const auto rank = int64_t(simplex.rank[i][l]);
                    return row[d - rank] - row[rank == 0 ? 0 : d + 1 - rank];
                };
                T sum = coordinate(0);
                for (int64_t j = 1; j <= d; ++j) {
                    const T own = coordinate(j);
                    out.data[(begin + l) * d + j - 1] = elevation.scale[j - 1] * (sum - T(j) * own) / T(d + 1);
                    sum += own;
                }
            }
        }
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
