// encode and encode_backward: learned features on lattices of several levels, interpolated at points. Symbols as in
// ops/encoding.py: level l places a point at z = A x + o, where the lattice points are the integer points.
#pragma once

#include <algorithm>
#include <type_traits>

#include "filter/channel_vectors.hpp"
#include "index/embedding.hpp"
#include "kernels.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int most_encoded_dimensions = 16;
// A task takes these points through one level after another: enough that most reads of a table find it in the cache,
// few enough that the rows of the result stay there as well.
constexpr int64_t encoded_per_task = 16384;

template <class T>
struct EncodingLevel {
    const T* transform;      // [d, d + 1]: A, and o as the last column
    const int32_t* strides;  // [d + 1]: strides, then the base
    int64_t table_size;
};

// The simplices around the points in the lanes of a vector: corner k is one step along axis[k - 1] from corner k - 1.
template <class T, int D>
struct EncodedLanes {
    static constexpr int most = capacity_for<D, most_encoded_dimensions>;
    Vector<T> weights[most + 1];
    IntegerVector<T> axis[most];
    alignas(PERMUTOHEDRAL_VECTOR_BYTES) Integer<T> rows[most + 1][lanes<T>];
};

template <class T, int D>
inline Vector<T> apply_row(const T* row, const Vector<T>* x, Extent<D> d, Vector<T> sum) {
    for (int64_t j = 0; j < d; ++j) sum += row[j] * x[j];
    return sum;
}

// Weights are the barycentric ones, or, given directions, their derivatives along them.
template <class T, int D>
inline void find_corners(const Vector<T>* x, const Vector<T>* directions, Extent<D> d, const EncodingLevel<T>& level,
                         EncodedLanes<T, D>& found) {
    using V = Vector<T>;
    using I = IntegerVector<T>;
    // integers wrap around, which is defined for unsigned ones only
    using U = typename VectorOf<std::make_unsigned_t<Integer<T>>, lanes<T>>::type;
    using Unsigned = std::make_unsigned_t<Integer<T>>;
    V fractions[EncodedLanes<T, D>::most], slopes[EncodedLanes<T, D>::most];
    U steps[EncodedLanes<T, D>::most];
    U row = U{} + Unsigned(level.strides[d]);
    for (int64_t i = 0; i < d; ++i) {
        const T* matrix = level.transform + i * (d + 1);
        const V z = apply_row<T, D>(matrix, x, d, V{} + matrix[d]);
        I cell = __builtin_convertvector(z, I);
        cell += (I)(__builtin_convertvector(cell, V) > z);
        fractions[i] = z - __builtin_convertvector(cell, V);
        steps[i] = U{} + Unsigned(level.strides[i]);
        row += (U)cell * steps[i];
        found.axis[i] = I{} + Integer<T>(i);
        if (directions != nullptr) slopes[i] = apply_row<T, D>(matrix, directions, d, V{});
    }
    // neighbors in the order are swapped only where the latter is larger, so equal ones keep their order
    for (int64_t last = d - 1; last > 0; --last) {
        for (int64_t i = 0; i < last; ++i) {
            const I swap = (I)(fractions[i] < fractions[i + 1]);
            auto exchange = [&](auto* values) {
                const auto first = values[i];
                values[i] = swap ? values[i + 1] : first;
                values[i + 1] = swap ? first : values[i + 1];
            };
            exchange(fractions);
            exchange(steps);
            exchange(found.axis);
            if (directions != nullptr) exchange(slopes);
        }
    }
    const V* heights = directions == nullptr ? fractions : slopes;
    V above = V{} + T(directions == nullptr ? 1 : 0);
    const Unsigned mask =
        (level.table_size & (level.table_size - 1)) == 0 ? Unsigned(level.table_size - 1) : 0xFFFFFFFF;
    for (int64_t k = 0; k <= d; ++k) {
        const V height = k < d ? heights[k] : V{};
        found.weights[k] = above - height;
        above = height;
        store<Integer<T>, lanes<T>>(found.rows[k], (I)(row & mask));
        if (mask == 0xFFFFFFFF) {
            for (Integer<T>& each : found.rows[k]) each = Integer<T>(uint32_t(each) % uint32_t(level.table_size));
        }
        if (k < d) row += steps[k];
    }
}

template <class T>
struct Encoding {
    Matrix<const T> positions, directions;  // directions may be empty
    View<const T, 3> transforms;
    Matrix<const int32_t> strides;
    int64_t table_size;

    EncodingLevel<T> level(int64_t l) const {
        const int64_t d = positions.num_channels;
        return {transforms.data + l * d * (d + 1), strides.data + l * (d + 1), table_size};
    }
};

// Calls function(first point, number of points, simplices) for the points of a range, some lanes at a time.
template <class T, int D, class Function>
PERMUTOHEDRAL_INLINE void for_each_encoded(const Encoding<T>& encoding, Extent<D> d, int64_t l, Range range,
                                           const T* rows, int64_t channels, Function&& function) {
    Vector<T> x[EncodedLanes<T, D>::most], along[EncodedLanes<T, D>::most];
    const EncodingLevel<T> level = encoding.level(l);
    const bool is_derivative = encoding.directions.num_rows > 0;
    // rows of the table are fetched while the lanes before them are processed
    EncodedLanes<T, D> found[2];
    int64_t before = range.begin - lanes<T>;
    for (int64_t first = range.begin; first < range.end + lanes<T>; first += lanes<T>) {
        EncodedLanes<T, D>& next = found[(first - range.begin) / lanes<T> % 2];
        if (first < range.end) {
            const int64_t count = std::min<int64_t>(lanes<T>, range.end - first);
            load_points<T, D>(encoding.positions.data + first * d, d, count, x);
            if (is_derivative) load_points<T, D>(encoding.directions.data + first * d, d, count, along);
            find_corners<T, D>(x, is_derivative ? along : nullptr, d, level, next);
            for (int64_t k = 0; k <= d; ++k) {
                for (const Integer<T> row : next.rows[k]) __builtin_prefetch(rows + int64_t(row) * channels);
            }
        }
        if (before >= range.begin) {
            function(before, std::min<int64_t>(lanes<T>, range.end - before),
                     found[(before - range.begin) / lanes<T> % 2]);
        }
        before = first;
    }
}

// Calls function(Constant<D>, Constant<F>) with the dimension and the channels of a level, 0 where they are unusual.
template <class Function>
void dispatch_encoding(int64_t d, int64_t channels, Function&& function) {
    dispatch<2, 3, 4, 6, 0>(
        d, [&](auto dimension) { dispatch<2, 0>(channels, [&](auto features) { function(dimension, features); }); });
}

inline int64_t encoded_grain(int64_t points, int threads) {
    return std::clamp<int64_t>(divide_up(points, threads), 256, encoded_per_task);
}

template <class T>
void encode(Matrix<const T> positions, Matrix<const T> directions, View<const T, 3> table, View<const T, 3> transforms,
            Matrix<const int32_t> strides, Matrix<T> out, int threads) {
    const Encoding<T> encoding{positions, directions, transforms, strides, table.shape[1]};
    dispatch_encoding(positions.num_channels, table.shape[2], [&](auto dimension, auto features) {
        constexpr int D = decltype(dimension)::value, F = decltype(features)::value;
        const Extent<D> d(positions.num_channels);
        const Extent<F> f(table.shape[2]);
        const int64_t grain = encoded_grain(positions.num_rows, threads), num_levels = table.shape[0];
        parallel_ranges(threads, positions.num_rows, grain, [&](int64_t begin, int64_t end, int) {
            for (int64_t l = 0; l < num_levels; ++l) {
                const T* rows = table.data + l * encoding.table_size * f;
                for_each_encoded<T, D>(
                    encoding, d, l, {begin, end}, rows, f, [&](int64_t first, int64_t count, auto& found) {
                        for (int64_t lane = 0; lane < count; ++lane) {
                            T* to = out.data + ((first + lane) * num_levels + l) * f;
                            for_channel_vectors<T, F>(f, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
                                constexpr int N = decltype(width)::value;
                                ChannelVector<T, N> sum{};
                                for (int64_t k = 0; k <= d; ++k) {
                                    const T* row = rows + int64_t(found.rows[k][lane]) * f + c;
                                    sum += found.weights[k][lane] * load_channels<T, N>(row);
                                }
                                store_channels<T, N>(to + c, sum);
                            });
                        }
                    });
            }
        });
    });
}

// Gradients that are not wanted are empty. A level is summed by one task, in the order of the points.
template <class T>
void encode_backward(Matrix<const T> positions, Matrix<const T> directions, View<const T, 3> table,
                     Matrix<const T> gradient, View<const T, 3> transforms, Matrix<const int32_t> strides,
                     Matrix<T> to_positions, View<T, 3> to_table, int threads) {
    const int64_t num_points = positions.num_rows, num_levels = table.shape[0];
    Encoding<T> encoding{positions, directions, transforms, strides, table.shape[1]};
    dispatch_encoding(positions.num_channels, table.shape[2], [&](auto dimension, auto features) {
        constexpr int D = decltype(dimension)::value, F = decltype(features)::value;
        const Extent<D> d(positions.num_channels);
        const Extent<F> f(table.shape[2]);
        if (to_table.shape[0] > 0) {
            parallel_for(threads, num_levels, [&](int64_t l, int) {
                T* rows = to_table.data + l * encoding.table_size * f;
                std::fill_n(rows, encoding.table_size * f, T(0));
                for_each_encoded<T, D>(
                    encoding, d, l, {0, num_points}, rows, f, [&](int64_t first, int64_t count, auto& found) {
                        for (int64_t lane = 0; lane < count; ++lane) {
                            const T* from = gradient.data + ((first + lane) * num_levels + l) * f;
                            for_channel_vectors<T, F>(f, [&](int64_t c, auto width) PERMUTOHEDRAL_INLINE_LAMBDA {
                                constexpr int N = decltype(width)::value;
                                const ChannelVector<T, N> upper = load_channels<T, N>(from + c);
                                for (int64_t k = 0; k <= d; ++k) {
                                    T* row = rows + int64_t(found.rows[k][lane]) * f + c;
                                    const ChannelVector<T, N> sum = load_channels<T, N>(row);
                                    store_channels<T, N>(row, sum + found.weights[k][lane] * upper);
                                }
                            });
                        }
                    });
            });
        }
        if (to_positions.num_rows == 0) return;
        // the gradient does not depend on them
        encoding.directions.num_rows = 0;
        const int64_t grain = encoded_grain(num_points, threads);
        parallel_ranges(threads, num_points, grain, [&](int64_t begin, int64_t end, int) {
            std::fill(to_positions.data + begin * d, to_positions.data + end * d, T(0));
            for (int64_t l = 0; l < num_levels; ++l) {
                const T* rows = table.data + l * encoding.table_size * f;
                const T* transform = encoding.level(l).transform;
                for_each_encoded<T, D>(
                    encoding, d, l, {begin, end}, rows, f, [&](int64_t first, int64_t count, auto& found) {
                        Vector<T> slopes[EncodedLanes<T, D>::most];
                        Vector<T> corners[EncodedLanes<T, D>::most + 1];
                        alignas(PERMUTOHEDRAL_VECTOR_BYTES) T products[EncodedLanes<T, D>::most + 1][lanes<T>];
                        for (int64_t lane = 0; lane < count; ++lane) {
                            const T* from = gradient.data + ((first + lane) * num_levels + l) * f;
                            for (int64_t k = 0; k <= d; ++k) {
                                const T* row = rows + int64_t(found.rows[k][lane]) * f;
                                T product = 0;
                                for (int64_t c = 0; c < f; ++c) product += row[c] * from[c];
                                products[k][lane] = product;
                            }
                        }
                        for (int64_t k = 0; k <= d; ++k) corners[k] = load<T, lanes<T>>(products[k]);
                        // a larger fraction moves weight along its axis, from one corner to the next
                        for (int64_t i = 0; i < d; ++i) {
                            slopes[i] = Vector<T>{};
                            for (int64_t k = 0; k < d; ++k) {
                                slopes[i] = found.axis[k] == Integer<T>(i) ? corners[k + 1] - corners[k] : slopes[i];
                            }
                        }
                        for (int64_t j = 0; j < d; ++j) {
                            Vector<T> sum = {};
                            for (int64_t i = 0; i < d; ++i) sum += transform[i * (d + 1) + j] * slopes[i];
                            for (int64_t lane = 0; lane < count; ++lane) {
                                to_positions.data[(first + lane) * d + j] += sum[lane];
                            }
                        }
                    });
            }
        });
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
