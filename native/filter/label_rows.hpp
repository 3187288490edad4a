// Rows of numbers for each label, at the points of a chunk: what happens to them between one lattice and the next.
// A row is padded to whole vectors. Of two labels that mirror each other a row holds one number, for the second.
#pragma once

#include <algorithm>

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

template <class T, int N, int V, int S, int K, bool Fresh>
void add_slices(const PairwiseKernel<T>& kernel, const T* table, Extent<S> stride, int64_t point, int64_t count,
                T* rows) {
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(kernel.simplices, point);
        const T scale = kernel.target_scale == nullptr ? kernel.factor : kernel.factor * kernel.target_scale[point];
        ChannelVector<T, N> sums[V];
        for (int v = 0; v < V; ++v) sums[v] = Fresh ? ChannelVector<T, N>{} : load_channels<T, N>(rows + v * N);
        for (int64_t j = 0; j < simplex.num_corners; ++j) {
            const T* from = table + simplex.vertices[j] * stride;
            const T weight = scale * simplex.barycentric[j];
            for (int v = 0; v < V; ++v) sums[v] += weight * load_channels<T, N>(from + v * N);
        }
        for (int v = 0; v < V; ++v) store_channels<T, N>(rows + v * N, sums[v]);
    }
}

// Adds K Q, interpolated from `table`, to the rows of points from `point` on; or writes it to fresh ones.
template <class T>
void add_slices(const PairwiseKernel<T>& kernel, const T* table, int64_t stride, int64_t point, int64_t count, T* rows,
                bool fresh) {
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        dispatch_corners(kernel.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            auto* add = fresh ? add_slices<T, N, V, S, K, true> : add_slices<T, N, V, S, K, false>;
            add(kernel, table + c, stride, point, count, rows + c);
        });
    });
}

// Everywhere: the range is that of all vertices.
template <class T, int N, int V, int S, int K, bool Everywhere>
void add_splats(const PairwiseKernel<T>& kernel, T* table, Extent<S> stride, int64_t point, int64_t count,
                const T* rows, Range vertices) {
    const uint32_t begin = uint32_t(vertices.begin), size = uint32_t(vertices.end - vertices.begin);
    for (int64_t i = 0; i < count; ++i, ++point, rows += stride) {
        const PointSimplex<T, K> simplex = simplex_at<K>(kernel.simplices, point);
        const T scale = kernel.source_scale == nullptr ? T(1) : kernel.source_scale[point];
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

// Splats the rows of points from `point` on into those rows of `table` that lie in the range.
template <class T>
void add_splats(const PairwiseKernel<T>& kernel, T* table, int64_t stride, int64_t point, int64_t count, const T* rows,
                Range vertices) {
    const bool everywhere = vertices.begin == 0 && vertices.end == kernel.num_lattice_points;
    for_tiles<T>(stride, [&](int64_t c, auto lanes_of, auto vectors, auto whole) {
        constexpr int N = decltype(lanes_of)::value, V = decltype(vectors)::value, S = decltype(whole)::value;
        // with a range, most of the time is spent elsewhere
        if (!everywhere) {
            return add_splats<T, N, V, S, 0, false>(kernel, table + c, stride, point, count, rows + c, vertices);
        }
        dispatch_corners(kernel.simplices.num_corners, [&](auto corners) {
            constexpr int K = decltype(corners)::value;
            add_splats<T, N, V, S, K, true>(kernel, table + c, stride, point, count, rows + c, vertices);
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

// N rows at a time as columns, [stride] of them: a vector of N points for each label, so that no lane depends on another.
// Then calls function(first point, how many are left).
template <class T, int N, class Function>
PERMUTOHEDRAL_INLINE void for_columns(const Chunk<T>& chunk, int64_t stride, typename VectorOf<T, N>::type* columns,
                                      Function&& function) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        for (int64_t c = 0; c < stride; c += N) {
            for (int l = 0; l < N; ++l) columns[c + l] = load<T, N>(chunk.rows + (i + l) * stride + c);
            transpose_square<T, N>(columns + c);
        }
        function(i, chunk.count - i);
    }
}

template <class T, int N>
PERMUTOHEDRAL_INLINE void store_columns(const Chunk<T>& chunk, int64_t stride, int64_t i,
                                        typename VectorOf<T, N>::type* columns) {
    for (int64_t c = 0; c < stride; c += N) {
        transpose_square<T, N>(columns + c);
        for (int l = 0; l < N; ++l) store<T, N>(chunk.rows + (i + l) * stride + c, columns[c + l]);
    }
}

// Replaces the columns, what kernels say, by softmax(columns - energies).
template <class T, int N>
PERMUTOHEDRAL_INLINE void softmax_columns(LabelPlanes<const T> energies, int64_t labels, int64_t count,
                                          typename VectorOf<T, N>::type* columns) {
    using Lanes = typename VectorOf<T, N>::type;
    Lanes most = columns[0] = columns[0] - load_first<T, N>(energies.data, count);
    for (int64_t l = 1; l < labels; ++l) {
        columns[l] -= load_first<T, N>(energies.data + l * energies.step, count);
        most = columns[l] > most ? columns[l] : most;
    }
    Lanes total = {};
    for (int64_t l = 0; l < labels; ++l) total += columns[l] = exponential<T, N>(columns[l] - most);
    const Lanes scale = T(1) / total;
    for (int64_t l = 0; l < labels; ++l) columns[l] *= scale;
}

// What kernels say in rows, and energies, to marginals in rows.
template <class T, int N>
void make_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> energies, int64_t labels,
                    typename VectorOf<T, N>::type* columns) {
    for_columns<T, N>(chunk, stride, columns, [&](int64_t i, int64_t count) {
        softmax_columns<T, N>({energies.data + i, energies.step}, labels, count, columns);
        for (int64_t l = labels; l < stride; ++l) columns[l] = typename VectorOf<T, N>::type{};
        store_columns<T, N>(chunk, stride, i, columns);
    });
}

// The same to marginals in planes.
template <class T, int N>
void write_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> energies, int64_t labels,
                     typename VectorOf<T, N>::type* columns, LabelPlanes<T> out) {
    for_columns<T, N>(chunk, stride, columns, [&](int64_t i, int64_t count) {
        softmax_columns<T, N>({energies.data + i, energies.step}, labels, count, columns);
        for (int64_t l = 0; l < labels; ++l) store_at_most<T, N>(out.data + l * out.step + i, columns[l], count);
    });
}

// Marginals in planes to rows.
template <class T, int N>
void load_marginals(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> marginals, int64_t labels,
                    typename VectorOf<T, N>::type* columns) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        for (int64_t l = 0; l < stride; ++l) {
            columns[l] = typename VectorOf<T, N>::type{};
            if (l < labels) columns[l] = load_first<T, N>(marginals.data + l * marginals.step + i, chunk.count - i);
        }
        store_columns<T, N>(chunk, stride, i, columns);
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
