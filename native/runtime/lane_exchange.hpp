// What needs an exchange between the lanes of vectors: sums and maxima over them, and square transpositions.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

#if defined(PERMUTOHEDRAL_SHUFFLE)

// Lanes l and l ^ Distance change places.
template <class T, int N, int Distance, int... Lane>
PERMUTOHEDRAL_INLINE typename VectorOf<T, N>::type exchange_lanes(typename VectorOf<T, N>::type vector,
                                                                  std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(vector, vector, (Lane ^ Distance)...);
}

// Of two vectors, the lanes whose number has the bit Distance not set (Upper = 0) or set (Upper = Distance): those of
// the first where they are, those of the second Distance further up, or the reverse.
template <class T, int N, int Distance, int Upper, int... Lane>
PERMUTOHEDRAL_INLINE typename VectorOf<T, N>::type merge_lanes(typename VectorOf<T, N>::type first,
                                                               typename VectorOf<T, N>::type second,
                                                               std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(first, second,
                                   ((Lane & Distance) == 0 ? Lane + Upper : N + Lane - Distance + Upper)...);
}

#endif

// All lanes combined, in every lane; combine(a, b) takes and gives vectors, in whatever order.
template <class T, int N, int Distance = N / 2, class Combine>
PERMUTOHEDRAL_INLINE typename VectorOf<T, N>::type reduce_lanes(typename VectorOf<T, N>::type vector,
                                                                Combine&& combine) {
    using V = typename VectorOf<T, N>::type;
    if constexpr (Distance == 0) {
        return vector;
    } else {
#if defined(PERMUTOHEDRAL_SHUFFLE)
        const V exchanged = exchange_lanes<T, N, Distance>(vector, std::make_integer_sequence<int, N>{});
#else
        V exchanged;
        for (int l = 0; l < N; ++l) exchanged[l] = vector[l ^ Distance];
#endif
        return reduce_lanes<T, N, Distance / 2>(combine(vector, exchanged), combine);
    }
}

// The sum of the lanes of each of four vectors.
template <class T>
PERMUTOHEDRAL_INLINE void add_lanes_of_four(const Vector<T>* vectors, T* sums) {
    constexpr int N = lanes<T>;
    const auto add = [](Vector<T> a, Vector<T> b) { return a + b; };
#if defined(PERMUTOHEDRAL_SHUFFLE)
    if constexpr (N >= 4 && can_transpose<T>) {
        const auto all = std::make_integer_sequence<int, N>{};
        const auto halve = [&](Vector<T> a, Vector<T> b, auto distance) {
            constexpr int Distance = decltype(distance)::value;
            return merge_lanes<T, N, Distance, 0>(a, b, all) + merge_lanes<T, N, Distance, Distance>(a, b, all);
        };
        using Far = std::integral_constant<int, N / 2>;
        using Near = std::integral_constant<int, N / 4>;
        const Vector<T> pairs =
            halve(halve(vectors[0], vectors[1], Far{}), halve(vectors[2], vectors[3], Far{}), Near{});
        const Vector<T> totals = reduce_lanes<T, N, N / 8>(pairs, add);
        // the second bit of the place says which of a pair, the first which pair
        for (int v = 0; v < 4; ++v) sums[v] = totals[(v % 2) * (N / 2) + (v / 2) * (N / 4)];
        return;
    }
#endif
    for (int v = 0; v < 4; ++v) sums[v] = reduce_lanes<T, N>(vectors[v], add)[0];
}

// Lane l of vector v and lane v of vector l change places.
template <class T, int N, int Distance = N / 2>
PERMUTOHEDRAL_INLINE void transpose_square(typename VectorOf<T, N>::type* vectors) {
    using V = typename VectorOf<T, N>::type;
#if defined(PERMUTOHEDRAL_SHUFFLE)
    if constexpr (can_transpose<T>) {
        if constexpr (Distance > 0) {
            for (int v = 0; v < N; ++v) {
                if ((v & Distance) != 0) continue;
                const V first = vectors[v], second = vectors[v + Distance];
                const auto all = std::make_integer_sequence<int, N>{};
                vectors[v] = merge_lanes<T, N, Distance, 0>(first, second, all);
                vectors[v + Distance] = merge_lanes<T, N, Distance, Distance>(first, second, all);
            }
            transpose_square<T, N, Distance / 2>(vectors);
        }
        return;
    }
#endif
    for (int v = 0; v < N; ++v) {
        for (int l = 0; l < v; ++l) {
            const T lower = vectors[v][l];
            vectors[v][l] = vectors[l][v];
            vectors[l][v] = lower;
        }
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
