// Vectors of the widest registers of the instruction set this file is compiled for.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/dispatch.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef PERMUTOHEDRAL_INSTRUCTION_SET
#error "define PERMUTOHEDRAL_INSTRUCTION_SET, the namespace of the instruction set this file is compiled for"
#endif

#if defined(__AVX512F__)
#define PERMUTOHEDRAL_VECTOR_BYTES 64
#elif defined(__AVX__)
#define PERMUTOHEDRAL_VECTOR_BYTES 32
#else
#define PERMUTOHEDRAL_VECTOR_BYTES 16
#endif

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

template <class T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
    // the same, at any address; it may alias its elements, as vectors do
    typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(sizeof(T))));
};

template <class T>
constexpr int lanes = PERMUTOHEDRAL_VECTOR_BYTES / int(sizeof(T));

// The integer as wide as T: a comparison of vectors of T gives a mask of such integers.
template <class T>
struct IntegerOf;
template <>
struct IntegerOf<float> {
    using type = int32_t;
};
template <>
struct IntegerOf<double> {
    using type = int64_t;
};
template <class T>
using Integer = typename IntegerOf<T>::type;

template <class T>
using Vector = typename VectorOf<T, lanes<T>>::type;
template <class T>
using IntegerVector = typename VectorOf<Integer<T>, lanes<T>>::type;

template <class T, int N>
inline typename VectorOf<T, N>::type load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T, N>::unaligned*>(from);
}

template <class T, int N>
inline void store(T* to, typename VectorOf<T, N>::type vector) {
    *reinterpret_cast<typename VectorOf<T, N>::unaligned*>(to) = vector;
}

// Stores the first `count` lanes of a vector.
template <class T, int N>
inline void store_first(T* to, typename VectorOf<T, N>::type vector, int64_t count) {
#if defined(__AVX512VL__)
    const auto mask = (uint32_t{1} << count) - 1;
    if constexpr (sizeof(T) == 4) {
        if constexpr (N == 16) return _mm512_mask_storeu_ps(to, __mmask16(mask), (__m512)vector);
        if constexpr (N == 8) return _mm256_mask_storeu_ps(to, __mmask8(mask), (__m256)vector);
        if constexpr (N == 4) return _mm_mask_storeu_ps(to, __mmask8(mask), (__m128)vector);
    } else {
        if constexpr (N == 8) return _mm512_mask_storeu_pd(to, __mmask8(mask), (__m512d)vector);
        if constexpr (N == 4) return _mm256_mask_storeu_pd(to, __mmask8(mask), (__m256d)vector);
        if constexpr (N == 2) return _mm_mask_storeu_pd(to, __mmask8(mask), (__m128d)vector);
    }
#endif
    for (int64_t i = 0; i < count; ++i) to[i] = vector[i];
}

// Non-temporal store, past the caches, to an address aligned like the vector; a plain store where the instruction set
// has none. Other threads may see it only after finish_streams.
template <class T, int N>
inline void stream(T* to, typename VectorOf<T, N>::type vector) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) * N == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)vector);
#endif
#if defined(__AVX__)
    if constexpr (sizeof(T) * N == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)vector);
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(T) * N == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)vector);
#endif
    store<T, N>(to, vector);
}

inline void finish_streams() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PERMUTOHEDRAL_SHUFFLE 1
#endif
#endif

// Transposition in registers: a matrix [N, K] that lies in memory row by row, as K vectors of N lanes, from or to K
// vectors that hold its columns.
#if defined(PERMUTOHEDRAL_SHUFFLE)

// gcc 12 miscompiles some of these shuffles of 8-byte lanes
template <class T>
constexpr bool can_transpose = sizeof(T) == 4;

// Replaces the lanes of `done` whose number lies in `next`; Wanted::lane says which.
template <class T, int N, class Wanted, int... Lane>
inline typename VectorOf<T, N>::type take_lanes(typename VectorOf<T, N>::type done, typename VectorOf<T, N>::type next,
                                                Wanted, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(done, next, Wanted::lane(Lane)...);
}

// for column C of the matrix: what vector `Part` of its rows holds of it
template <int N, int K, int C, int Part>
struct ColumnLane {
    static constexpr int lane(int l) { return (l * K + C) / N == Part ? N + (l * K + C) % N : l; }
};

// for vector V of the rows: what column C holds of it
template <int N, int K, int V, int C>
struct RowLane {
    static constexpr int lane(int l) { return (V * N + l) % K == C ? N + (V * N + l) / K : l; }
};

template <class T, int N, int K, int C, int... Part>
inline typename VectorOf<T, N>::type gather_column(const typename VectorOf<T, N>::type* rows,
                                                   std::integer_sequence<int, Part...>) {
    typename VectorOf<T, N>::type column = rows[0];
    ((column = take_lanes<T, N>(column, rows[Part], ColumnLane<N, K, C, Part>{}, std::make_integer_sequence<int, N>{})),
     ...);
    return column;
}

template <class T, int N, int K, int V, int... C>
inline typename VectorOf<T, N>::type gather_rows(const typename VectorOf<T, N>::type* columns,
                                                 std::integer_sequence<int, C...>) {
    typename VectorOf<T, N>::type rows = columns[0];
    ((rows = take_lanes<T, N>(rows, columns[C], RowLane<N, K, V, C>{}, std::make_integer_sequence<int, N>{})), ...);
    return rows;
}

template <class T, int N, int K, int... C>
inline void rows_to_columns(const T* rows, typename VectorOf<T, N>::type* columns, std::integer_sequence<int, C...>) {
    typename VectorOf<T, N>::type parts[K];
    for (int k = 0; k < K; ++k) parts[k] = load<T, N>(rows + k * N);
    ((columns[C] = gather_column<T, N, K, C>(parts, std::make_integer_sequence<int, K>{})), ...);
}

template <class T, int N, int K, int... V>
inline void columns_to_rows(const typename VectorOf<T, N>::type* columns, T* rows, std::integer_sequence<int, V...>) {
    (store<T, N>(rows + V * N, gather_rows<T, N, K, V>(columns, std::make_integer_sequence<int, K>{})), ...);
}

#endif

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
