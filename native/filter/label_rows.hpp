// Rows of numbers for each label, at the points of a chunk: what happens to them between one lattice and the next.
// A row is padded to whole vectors. Of two labels that mirror each other a row holds one number, for the second.
#pragma once

#include <algorithm>
#include <limits>

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"
#include "kernels.hpp"
#include "runtime/exponential.hpp"
#include "runtime/lane_exchange.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// the widest part of a row that slice and splat hold in registers, in vectors
constexpr int64_t tile_vectors = 4;

// Consecutive points of one item, and where their rows are.
template <class T>
struct Chunk {
    int64_t item, first, count;  // `first` counts within the item
    T* rows;                     // [count, stride]
};

// Where the points are on a lattice, and what is multiplied there: factor times the scale of the point.
template <class T>
struct ScaledSimplices {
    Simplices<T> simplices;
    const T* scale;  // [num_points], or null for ones
    T factor;
};

// Elements from one row to the next.
template <class T>
int64_t row_stride(int64_t labels, bool mirrored) {
    constexpr int64_t narrow = std::min(4, lanes<T>);
    if (mirrored) return 1;
    return labels <= narrow ? narrow : divide_up(labels, lanes<T>) * lanes<T>;
}

// Calls function(first element, Constant<N>, Constant<V>, Constant<S>) for parts of a row of V vectors of N elements; S is
// the stride if the part is the whole row, else 0.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void for_tiles(int64_t stride, Function&& function) {
    constexpr int narrow = std::min(4, lanes<T>);
    if (stride == 1) return function(int64_t{0}, Constant<1>{}, Constant<1>{}, Constant<1>{});
    if (narrow < lanes<T> && stride == narrow) {
        return function(int64_t{0}, Constant<narrow>{}, Constant<1>{}, Constant<narrow>{});
    }
    if (stride <= tile_vectors * lanes<T>) {
        return dispatch<4, 3, 2, 1>(stride / lanes<T>, [&](auto vectors) {
            function(int64_t{0}, Constant<lanes<T>>{}, vectors, Constant<decltype(vectors)::value * lanes<T>>{});
        });
    }
    for (int64_t c = 0; c < stride; c += tile_vectors * lanes<T>) {
        dispatch<4, 3, 2, 1>(std::min<int64_t>((stride - c) / lanes<T>, tile_vectors),
                             [&](auto vectors) { function(c, Constant<lanes<T>>{}, vectors, Constant<0>{}); });
    }
}

// points ahead whose rows of a table are fetched: they lie far apart where colors are among the features
constexpr int64_t points_ahead = 4;

template <int V, class T, int K>
PERMUTOHEDRAL_INLINE void prefetch_rows(const PointSimplex<T, K>& simplex, const T* table, int64_t stride) {
    for (int64_t j = 0; j < simplex.num_corners; ++j) {
        const char* row = reinterpret_cast<const char*>(table + simplex.vertices[j] * stride);
        __builtin_prefetch(row);
        if (V * sizeof(Vector<T>) > 64) __builtin_prefetch(row + 64);
    }
}

template <class T, int N, int V, int S, int K, bool Fresh>
void add_slices(const ScaledSimplices<T>& from, const T* table, Extent<S> stride, int64_t point, int64_t count,
                T* rows) {
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(from.simplices, point);
        if (i + points_ahead < count) {
            prefetch_rows<V>(simplex_at<K>(from.simplices, point + points_ahead), table, stride);
        }
        const T scale = from.scale == nullptr ? from.factor : from.factor * from.scale[point];
        ChannelVector<T, N> sums[V];
        for (int v = 0; v < V; ++v) sums[v] = Fresh ? ChannelVector<T, N>{} : load_channels<T, N>(rows + v * N);
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            const T* row = table + simplex.vertices[j] * stride;
            const T weight = scale * simplex.barycentric[j];
            for (int v = 0; v < V; ++v) sums[v] += weight * load_channels<T, N>(row + v * N);
        }
        for (int v = 0; v < V; ++v) store_channels<T, N>(rows + v * N, sums[v]);
    }
}

// Adds K Q, interpolated from `table`, to the rows of points from `point` on; or writes it to fresh ones.
template <class T>
void add_slices(const ScaledSimplices<T>& from, const T* table, int64_t stride, int64_t point, int64_t count, T* rows,
                bool fresh) {
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        dispatch_corners(from.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            auto* add = fresh ? add_slices<T, N, V, S, K, true> : add_slices<T, N, V, S, K, false>;
            add(from, table + c, stride, point, count, rows + c);
        });
    });
}

// Everywhere: the range is that of all vertices.
template <class T, int N, int V, int S, int K, bool Everywhere>
void add_splats(const ScaledSimplices<T>& from, T* table, Extent<S> stride, int64_t point, int64_t count, const T* rows,
                Range vertices) {
    const uint32_t begin = uint32_t(vertices.begin), size = uint32_t(vertices.end - vertices.begin);
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(from.simplices, point);
        if (Everywhere && i + points_ahead < count) {
            prefetch_rows<V>(simplex_at<K>(from.simplices, point + points_ahead), table, stride);
        }
        const T scale = from.scale == nullptr ? from.factor : from.factor * from.scale[point];
        ChannelVector<T, N> values[V];
        for (int v = 0; v < V; ++v) values[v] = scale * load_channels<T, N>(rows + v * N);
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            if (!Everywhere && uint32_t(simplex.vertices[j]) - begin >= size) continue;
            T* to = table + simplex.vertices[j] * stride;
            const T weight = simplex.barycentric[j];
            for (int v = 0; v < V; ++v) {
                store_channels<T, N>(to + v * N, load_channels<T, N>(to + v * N) + weight * values[v]);
            }
        }
    }
}

// Splats the rows of points from `point` on into those rows of `table` that lie in the range; everywhere: all do.
template <class T>
void add_splats(const ScaledSimplices<T>& from, T* table, int64_t stride, int64_t point, int64_t count, const T* rows,
                Range vertices, bool everywhere) {
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        // with a range, most of the time is spent elsewhere
        if (!everywhere) {
            return add_splats<T, N, V, S, 0, false>(from, table + c, stride, point, count, rows + c, vertices);
        }
        dispatch_corners(from.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            add_splats<T, N, V, S, K, true>(from, table + c, stride, point, count, rows + c, vertices);
        });
    });
}

// Numbers of each label at consecutive points: label l has its own at data + l * step.
template <class T>
struct LabelPlanes {
    T* data;
    int64_t step;
};

// The first `count` lanes, and zeros.
template <class T, int N>
PERMUTOHEDRAL_INLINE typename VectorOf<T, N>::type load_first(const T* from, int64_t count) {
    if (count >= N) return load<T, N>(from);
    typename VectorOf<T, N>::type vector = {};
    for (int64_t l = 0; l < count; ++l) vector[l] = from[l];
    return vector;
}

template <class T, int N>
PERMUTOHEDRAL_INLINE void store_at_most(T* to, typename VectorOf<T, N>::type vector, int64_t count) {
    if (count >= N) return store<T, N>(to, vector);
    store_first<T, N>(to, vector, count);
}

// Marginals at N points as columns, a vector for each label, so that no lane depends on another.
template <class T, int N>
struct LabelColumns {
    using Lanes = typename VectorOf<T, N>::type;
    // sums and maxima are taken in several parts, which do not wait for each other
    static constexpr int64_t parts = 4;

    Lanes* data;  // [labels]
    int64_t labels;

    // What kernels say in the rows from `rows` on, and energies from `energies` on, of which `count` points are there, to
    // exponentials; returns what they are to be multiplied with.
    PERMUTOHEDRAL_INLINE Lanes make(const T* rows, int64_t stride, LabelPlanes<const T> energies, int64_t count) {
        const Lanes least = Lanes{} + -std::numeric_limits<T>::infinity();
        Lanes most[parts] = {least, least, least, least};
        int64_t c = 0;
        for (; count >= N && c + N <= labels; c += N) add_logits<true>(rows, stride, energies, c, count, most);
        for (; c < labels; c += N) add_logits<false>(rows, stride, energies, c, count, most);
        for (int64_t part = 1; part < parts; ++part) most[0] = most[part] > most[0] ? most[part] : most[0];
        Lanes totals[parts] = {};
        int64_t l = 0;
        for (; l + parts <= labels; l += parts) {
            for (int64_t part = 0; part < parts; ++part) {
                totals[part] += data[l + part] = exponential<T, N>(data[l + part] - most[0]);
            }
        }
        for (; l < labels; ++l) totals[0] += data[l] = exponential<T, N>(data[l] - most[0]);
        return T(1) / ((totals[0] + totals[1]) + (totals[2] + totals[3]));
    }

    // Into rows, times a scale; what is behind the labels becomes zero.
    PERMUTOHEDRAL_INLINE void store_rows(Lanes scale, T* rows, int64_t stride) const {
        int64_t c = 0;
        for (; c + N <= labels; c += N) store_square<true>(scale, rows, stride, c);
        for (; c < stride; c += N) store_square<false>(scale, rows, stride, c);
    }

private:
    // The logits of N labels from c on. Whole: all of these labels, and N points, are there.
    template <bool Whole>
    PERMUTOHEDRAL_INLINE void add_logits(const T* rows, int64_t stride, LabelPlanes<const T> energies, int64_t c,
                                         int64_t count, Lanes* most) {
        Lanes square[N];
        for (int l = 0; l < N; ++l) square[l] = load<T, N>(rows + l * stride + c);
        transpose_square<T, N>(square);
        for (int l = 0; l < N; ++l) {
            if (!Whole && c + l >= labels) break;
            const Lanes logits =
                square[l] - load_first<T, N>(energies.data + (c + l) * energies.step, Whole ? N : count);
            most[l % parts] = logits > most[l % parts] ? logits : most[l % parts];
            data[c + l] = logits;
        }
    }

    // The marginals of N labels from c on.
    template <bool Whole>
    PERMUTOHEDRAL_INLINE void store_square(Lanes scale, T* rows, int64_t stride, int64_t c) const {
        Lanes square[N];
        for (int l = 0; l < N; ++l) square[l] = Whole || c + l < labels ? data[c + l] * scale : Lanes{};
        transpose_square<T, N>(square);
        for (int l = 0; l < N; ++l) store<T, N>(rows + l * stride + c, square[l]);
    }
};

// What kernels say in rows, and energies, to marginals in rows.
template <class T, int N>
void make_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> energies, LabelColumns<T, N> columns) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        T* rows = chunk.rows + i * stride;
        const auto scale = columns.make(rows, stride, {energies.data + i, energies.step}, chunk.count - i);
        columns.store_rows(scale, rows, stride);
    }
}

// The same to marginals in planes.
template <class T, int N>
void write_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> energies, LabelColumns<T, N> columns,
                     LabelPlanes<T> out) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        const T* rows = chunk.rows + i * stride;
        const auto scale = columns.make(rows, stride, {energies.data + i, energies.step}, chunk.count - i);
        for (int64_t l = 0; l < columns.labels; ++l) {
            store_at_most<T, N>(out.data + l * out.step + i, columns.data[l] * scale, chunk.count - i);
        }
    }
}

// Marginals in planes to rows.
template <class T, int N>
void load_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> marginals, LabelColumns<T, N> columns) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        for (int64_t l = 0; l < columns.labels; ++l) {
            columns.data[l] = load_first<T, N>(marginals.data + l * marginals.step + i, chunk.count - i);
        }
        columns.store_rows(typename VectorOf<T, N>::type{} + T(1), chunk.rows + i * stride, stride);
    }
}

// Calls function(Constant<N>) with the length of the vectors in a row.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void dispatch_lanes(int64_t stride, Function&& function) {
    constexpr int narrow = std::min(4, lanes<T>);
    if (stride < lanes<T>) return function(Constant<narrow>{});
    function(Constant<lanes<T>>{});
}

// Of logits of the second label against the first: its probability, and that of the first.
template <class T>
struct Mirrored {
    Vector<T> first, second;
};

template <class T>
PERMUTOHEDRAL_INLINE Mirrored<T> mirrored_softmax(Vector<T> logits) {
    const auto is_second = logits > T(0);
    const Vector<T> less = exponential<T, lanes<T>>(is_second ? -logits : logits);
    const Vector<T> likely = T(1) / (T(1) + less), unlikely = less * likely;
    return {is_second ? unlikely : likely, is_second ? likely : unlikely};
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
