// Square transpositions of vectors.
#pragma once

#include "runtime/simd.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

#if defined(PERMUTOHEDRAL_SHUFFLE)

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
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
