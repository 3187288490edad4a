// Between the points of a chunk and a lattice: rows of labels are interpolated, and splatted.
#pragma once

#include <algorithm>

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"
#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The simplices of points on a lattice, whose values are multiplied by factor times the scale of the point.
template <class T>
struct ScaledSimplices {
    Simplices<T> simplices;
    const T* scale;  // [num_points], or null for ones
    T factor;
};

// the widest part of a row that slice and splat hold in registers, in vectors
constexpr int64_t label_tile_vectors = 4;

// Calls function(first element, Constant<N>, Constant<V>, Constant<S>) for parts of a row of V vectors of N elements; S is
// the stride if the part is the whole row, else 0.
template <class T, class Function>
PERMUTOHEDRAL_INLINE void for_tiles(int64_t stride, Function&& function) {
    constexpr int narrow = std::min(4, lanes<T>);
    if (stride == 1) return function(int64_t{0}, Constant<1>{}, Constant<1>{}, Constant<1>{});
    if (narrow < lanes<T> && stride == narrow) {
        return function(int64_t{0}, Constant<narrow>{}, Constant<1>{}, Constant<narrow>{});
    }
    if (stride <= label_tile_vectors * lanes<T>) {
        return dispatch<4, 3, 2, 1>(stride / lanes<T>, [&](auto vectors) {
            function(int64_t{0}, Constant<lanes<T>>{}, vectors, Constant<decltype(vectors)::value * lanes<T>>{});
        });
    }
    for (int64_t c = 0; c < stride; c += label_tile_vectors * lanes<T>) {
        dispatch<4, 3, 2, 1>(std::min<int64_t>((stride - c) / lanes<T>, label_tile_vectors),
                             [&](auto vectors) { function(c, Constant<lanes<T>>{}, vectors, Constant<0>{}); });
    }
}

// points ahead whose rows of a table are fetched: they lie far apart where colors are among the features
constexpr int64_t points_ahead = 8;

template <int V, class T, int K>
PERMUTOHEDRAL_INLINE void prefetch_rows(const PointSimplex<T, K>& simplex, const T* table, int64_t stride) {
    for (int64_t j = 0; j < simplex.num_corners; ++j) {
        const char* row = reinterpret_cast<const char*>(table + simplex.vertices[j] * stride);
        __builtin_prefetch(row);
        if (V * sizeof(Vector<T>) > 64) __builtin_prefetch(row + 64);
    }
}

template <class T, int N, int V, int S, int K, bool Fresh>
void slice_rows(const ScaledSimplices<T>& from, const T* table, Extent<S> stride, int64_t point, int64_t count,
                T* rows) {
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(from.simplices, point);
        if (point + points_ahead < from.simplices.num_points) {
            prefetch_rows<V>(simplex_at<K>(from.simplices, point + points_ahead), table, stride);
        }
        const T scale = from.scale == nullptr ? from.factor : from.factor * from.scale[point];
        ChannelVector<T, N> sums[V] = {};
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            const T* row = table + simplex.vertices[j] * stride;
            for (int v = 0; v < V; ++v) sums[v] += simplex.barycentric[j] * load_channels<T, N>(row + v * N);
        }
        for (int v = 0; v < V; ++v) {
            sums[v] *= scale;
            if (!Fresh) sums[v] += load_channels<T, N>(rows + v * N);
        }
        for (int v = 0; v < V; ++v) store_channels<T, N>(rows + v * N, sums[v]);
    }
}

// Everywhere: the range is that of all vertices.
template <class T, int N, int V, int S, int K, bool Everywhere>
void splat_rows(const ScaledSimplices<T>& from, T* table, Extent<S> stride, int64_t point, int64_t count, const T* rows,
                Range vertices) {
    const uint32_t begin = uint32_t(vertices.begin), size = uint32_t(vertices.end - vertices.begin);
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(from.simplices, point);
        if (Everywhere && point + points_ahead < from.simplices.num_points) {
            prefetch_rows<V>(simplex_at<K>(from.simplices, point + points_ahead), table, stride);
        }
        const T scale = from.scale == nullptr ? from.factor : from.factor * from.scale[point];
        ChannelVector<T, N> values[V];
        for (int v = 0; v < V; ++v) values[v] = scale * load_channels<T, N>(rows + v * N);
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            if (!Everywhere && uint32_t(simplex.vertices[j]) - begin >= size) continue;
            T* to = table + simplex.vertices[j] * stride;
            const T weight = simplex.barycentric[j];
            ChannelVector<T, N> sums[V];
            for (int v = 0; v < V; ++v) sums[v] = load_channels<T, N>(to + v * N) + weight * values[v];
            for (int v = 0; v < V; ++v) store_channels<T, N>(to + v * N, sums[v]);
        }
    }
}

// Adds values interpolated from `table` to the rows of points from `point` on; or writes it to fresh ones. A row, there
// and here, has `stride` elements: see row_stride.
template <class T>
void add_slices(const ScaledSimplices<T>& from, const T* table, int64_t stride, int64_t point, int64_t count, T* rows,
                bool fresh) {
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        dispatch_corners(from.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            auto* add = fresh ? slice_rows<T, N, V, S, K, true> : slice_rows<T, N, V, S, K, false>;
            add(from, table + c, stride, point, count, rows + c);
        });
    });
}

// Splats the rows of points from `point` on into those rows of `table` that lie in the range; everywhere: all do.
template <class T>
void add_splats(const ScaledSimplices<T>& from, T* table, int64_t stride, int64_t point, int64_t count, const T* rows,
                Range vertices, bool everywhere) {
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        // with a range, most of the time is spent elsewhere
        if (!everywhere) {
            return splat_rows<T, N, V, S, 0, false>(from, table + c, stride, point, count, rows + c, vertices);
        }
        dispatch_corners(from.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            splat_rows<T, N, V, S, K, true>(from, table + c, stride, point, count, rows + c, vertices);
        });
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
