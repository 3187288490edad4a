// Rows of numbers for each label, at the points of a chunk: what happens to them between one lattice and the next.
// A row is padded to whole vectors. Of two labels that mirror each other a row holds one number, for the second.
#pragma once

#include <algorithm>
#include <limits>

#include "filter/channel_vectors.hpp"
#include "kernels.hpp"
#include "runtime/exponential.hpp"
#include "runtime/lane_exchange.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Consecutive points of one item, and where their rows are.
template <class T>
struct Chunk {
    int64_t item, first, count;  // `first` counts within the item
    T* rows;                     // [count, stride]
};

// Elements from one row to the next.
template <class T>
int64_t row_stride(int64_t labels, bool binary) {
    constexpr int64_t narrow = std::min(4, lanes<T>);
    if (binary) return 1;
    return labels <= narrow ? narrow : divide_up(labels, lanes<T>) * lanes<T>;
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

    // Computes logits = messages - energies, of rows from `rows` on; returns the maximum of each point.
    PERMUTOHEDRAL_INLINE Lanes add(const T* rows, int64_t stride, const T* energies) {
        const Lanes least = Lanes{} + -std::numeric_limits<T>::infinity();
        Lanes most[parts] = {least, least, least, least};
        int64_t c = 0;
        for (; c + N <= labels; c += N) add_logits<true>(rows, stride, energies, c, most);
        if (c < labels) add_logits<false>(rows, stride, energies, c, most);
        for (int64_t part = 1; part < parts; ++part) most[0] = most[part] > most[0] ? most[part] : most[0];
        return most[0];
    }

    // Computes exp(logits - maximum); returns 1 / sum.
    PERMUTOHEDRAL_INLINE Lanes make(const T* rows, int64_t stride, const T* energies) {
        const Lanes most = add(rows, stride, energies);
        Lanes totals[parts] = {};
        int64_t l = 0;
        for (; l + parts <= labels; l += parts) {
            for (int64_t part = 0; part < parts; ++part) {
                totals[part] += data[l + part] = exponential<T, N>(data[l + part] - most);
            }
        }
        for (; l < labels; ++l) totals[0] += data[l] = exponential<T, N>(data[l] - most);
        return T(1) / ((totals[0] + totals[1]) + (totals[2] + totals[3]));
    }

    // What lies in the rows from `rows` on.
    PERMUTOHEDRAL_INLINE void load_rows(const T* rows, int64_t stride) {
        for (int64_t c = 0; c < labels; c += N) {
            Lanes square[N];
            for (int l = 0; l < N; ++l) square[l] = load<T, N>(rows + l * stride + c);
            transpose_square<T, N>(square);
            for (int64_t l = 0; l < std::min<int64_t>(N, labels - c); ++l) data[c + l] = square[l];
        }
    }

    // Into rows, times a scale; the padding behind the labels becomes zero.
    PERMUTOHEDRAL_INLINE void store_rows(Lanes scale, T* rows, int64_t stride) const {
        int64_t c = 0;
        for (; c + N <= labels; c += N) store_square<true>(scale, rows, stride, c);
        for (; c < stride; c += N) store_square<false>(scale, rows, stride, c);
    }

private:
    // The logits of N labels from c on. Whole: all of these labels are there.
    template <bool Whole>
    PERMUTOHEDRAL_INLINE void add_logits(const T* rows, int64_t stride, const T* energies, int64_t c, Lanes* most) {
        Lanes square[N];
        for (int l = 0; l < N; ++l) square[l] = load<T, N>(rows + l * stride + c);
        transpose_square<T, N>(square);
        for (int l = 0; l < N; ++l) {
            if (!Whole && c + l >= labels) break;
            const Lanes logits = square[l] - load<T, N>(energies + (c + l) * N);
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

// Infinity as the largest number: of two infinite energies there is no difference.
template <class T, class Lanes>
PERMUTOHEDRAL_INLINE Lanes make_finite(Lanes energies) {
    const Lanes highest = Lanes{} + std::numeric_limits<T>::max(), lowest = -highest;
    energies = energies > highest ? highest : energies;
    return energies < lowest ? lowest : energies;
}

// Energies in planes to columns, N points after N points; behind the last point there are zeros.
template <class T, int N>
void planes_to_columns(LabelPlanes<const T> planes, int64_t labels, int64_t count, T* columns) {
    for (int64_t i = 0; i < count; i += N) {
        for (int64_t l = 0; l < labels; ++l, columns += N) {
            store<T, N>(columns, make_finite<T>(load_first<T, N>(planes.data + l * planes.step + i, count - i)));
        }
    }
}

// What kernels say in rows, and energies, to marginals in rows. Energies are columns, here and below.
template <class T, int N>
void make_marginals(const Chunk<T>& chunk, int64_t stride, const T* energies, LabelColumns<T, N> columns) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        T* rows = chunk.rows + i * stride;
        const auto scale = columns.make(rows, stride, energies + i * columns.labels);
        columns.store_rows(scale, rows, stride);
    }
}

// The same to marginals in planes.
template <class T, int N>
void write_marginals(const Chunk<T>& chunk, int64_t stride, const T* energies, LabelColumns<T, N> columns,
                     LabelPlanes<T> out) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        const T* rows = chunk.rows + i * stride;
        const auto scale = columns.make(rows, stride, energies + i * columns.labels);
        for (int64_t l = 0; l < columns.labels; ++l) {
            store_at_most<T, N>(out.data + l * out.step + i, columns.data[l] * scale, chunk.count - i);
        }
    }
}

// The same to logits in planes.
template <class T, int N>
void write_logits(const Chunk<T>& chunk, int64_t stride, const T* energies, LabelColumns<T, N> columns,
                  LabelPlanes<T> out) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        columns.add(chunk.rows + i * stride, stride, energies + i * columns.labels);
        for (int64_t l = 0; l < columns.labels; ++l) {
            store_at_most<T, N>(out.data + l * out.step + i, columns.data[l], chunk.count - i);
        }
    }
}

// Planes to rows.
template <class T, int N>
void load_planes(const Chunk<T>& chunk, int64_t stride, LabelPlanes<const T> planes, LabelColumns<T, N> columns) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        for (int64_t l = 0; l < columns.labels; ++l) {
            columns.data[l] = load_first<T, N>(planes.data + l * planes.step + i, chunk.count - i);
        }
        columns.store_rows(typename VectorOf<T, N>::type{} + T(1), chunk.rows + i * stride, stride);
    }
}

// Rows to planes.
template <class T, int N>
void write_planes(const Chunk<T>& chunk, int64_t stride, LabelColumns<T, N> columns, LabelPlanes<T> planes) {
    for (int64_t i = 0; i < chunk.count; i += N) {
        columns.load_rows(chunk.rows + i * stride, stride);
        for (int64_t l = 0; l < columns.labels; ++l) {
            store_at_most<T, N>(planes.data + l * planes.step + i, columns.data[l], chunk.count - i);
        }
    }
}

// What kernels say in rows, and energies, to marginals Q; with gradients D with respect to these, in `gradients`, to
// Q (D - <Q, D>), the gradients with respect to logits, in rows. They are subtracted from those of the energies.
template <class T, int N>
void pull_back_marginals(const Chunk<T>& chunk, int64_t stride, const T* energies, const T* gradients,
                         LabelColumns<T, N> columns, LabelColumns<T, N> others, LabelPlanes<T> to_energies) {
    using Lanes = typename VectorOf<T, N>::type;
    for (int64_t i = 0; i < chunk.count; i += N) {
        const int64_t count = chunk.count - i;
        const Lanes scale = columns.make(chunk.rows + i * stride, stride, energies + i * columns.labels);
        others.load_rows(gradients + i * stride, stride);
        Lanes inner[2] = {};
        for (int64_t l = 0; l < columns.labels; ++l) inner[l % 2] += columns.data[l] * others.data[l];
        const Lanes mean = (inner[0] + inner[1]) * scale;
        for (int64_t l = 0; l < columns.labels; ++l) {
            const Lanes gradient = columns.data[l] * scale * (others.data[l] - mean);
            T* place = to_energies.data + l * to_energies.step + i;
            store_at_most<T, N>(place, load_first<T, N>(place, count) - gradient, count);
            columns.data[l] = gradient;
        }
        columns.store_rows(Lanes{} + T(1), chunk.rows + i * stride, stride);
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
struct BinaryMarginals {
    Vector<T> first, second;
};

template <class T>
PERMUTOHEDRAL_INLINE BinaryMarginals<T> binary_softmax(Vector<T> logits) {
    const auto is_second = logits > T(0);
    const Vector<T> less = exponential<T, lanes<T>>(is_second ? -logits : logits);
    const Vector<T> likely = T(1) / (T(1) + less), unlikely = less * likely;
    return {is_second ? unlikely : likely, is_second ? likely : unlikely};
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
