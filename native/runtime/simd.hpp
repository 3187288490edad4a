// Vectors of the widest registers of the instruction set this file is compiled for.
// Everything here has internal linkage: see parallel.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef PERMUTOHEDRAL_VARIANT
#error "define PERMUTOHEDRAL_VARIANT, the namespace of this instruction set"
#endif

#if defined(__AVX512F__)
#define PERMUTOHEDRAL_VECTOR_BYTES 64
#elif defined(__AVX__)
#define PERMUTOHEDRAL_VECTOR_BYTES 32
#else
#define PERMUTOHEDRAL_VECTOR_BYTES 16
#endif

// Inner loops are worth inlining whatever their size; and gcc drops calls of functions that only fetch, unless they are
// inlined early.
#define PERMUTOHEDRAL_INLINE __attribute__((always_inline)) inline
#define PERMUTOHEDRAL_INLINE_LAMBDA __attribute__((always_inline))

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

template <class T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
    // the same, at any address; it may alias its elements, as vectors do
    typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(sizeof(T))));
};

template <class T>
constexpr int lanes = PERMUTOHEDRAL_VECTOR_BYTES / int(sizeof(T));

// whole numbers as wide as T, so that comparisons of T give masks of it
template <class T>
struct WholeOf;
template <>
struct WholeOf<float> {
    using type = int32_t;
};
template <>
struct WholeOf<double> {
    using type = int64_t;
};
template <class T>
using Whole = typename WholeOf<T>::type;

template <class T>
using Vector = typename VectorOf<T, lanes<T>>::type;
template <class T>
using WholeVector = typename VectorOf<Whole<T>, lanes<T>>::type;

template <class T, int N>
inline typename VectorOf<T, N>::type load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T, N>::unaligned*>(from);
}

template <class T, int N>
inline void store(T* to, typename VectorOf<T, N>::type vector) {
    *reinterpret_cast<typename VectorOf<T, N>::unaligned*>(to) = vector;
}

// The first `count` numbers of a vector, at most all.
template <class T, int N>
inline void store_first(T* to, typename VectorOf<T, N>::type vector, int64_t count) {
#if defined(__AVX512VL__)
    const auto lanes_kept = (uint32_t{1} << count) - 1;
    if constexpr (sizeof(T) == 4) {
        if constexpr (N == 16) return _mm512_mask_storeu_ps(to, __mmask16(lanes_kept), (__m512)vector);
        if constexpr (N == 8) return _mm256_mask_storeu_ps(to, __mmask8(lanes_kept), (__m256)vector);
        if constexpr (N == 4) return _mm_mask_storeu_ps(to, __mmask8(lanes_kept), (__m128)vector);
    } else {
        if constexpr (N == 8) return _mm512_mask_storeu_pd(to, __mmask8(lanes_kept), (__m512d)vector);
        if constexpr (N == 4) return _mm256_mask_storeu_pd(to, __mmask8(lanes_kept), (__m256d)vector);
        if constexpr (N == 2) return _mm_mask_storeu_pd(to, __mmask8(lanes_kept), (__m128d)vector);
    }
#endif
    for (int64_t i = 0; i < count; ++i) to[i] = vector[i];
}

// Past the caches, to an address aligned as the vector, where that is possible; another thread may see it only after
// finish_streams.
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

// Exchange of rows and columns in registers: N rows of K numbers lie one after another in K vectors of N lanes.
#if defined(PERMUTOHEDRAL_SHUFFLE)

// gcc 12 compiles some of these exchanges of 8-byte lanes wrongly
template <class T>
constexpr bool can_exchange = sizeof(T) == 4;

// Takes lanes of `next` where the wanted number lies in it, else keeps those of `done`.
template <class T, int N, class Wanted, int... Lane>
inline typename VectorOf<T, N>::type take_lanes(typename VectorOf<T, N>::type done,
                                                typename VectorOf<T, N>::type next, Wanted,
                                                std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(done, next, Wanted::lane(Lane)...);
}

// column `C` out of rows of K numbers, from vector `Part`
template <int N, int K, int C, int Part>
struct ColumnLane {
    static constexpr int lane(int l) { return (l * K + C) / N == Part ? N + (l * K + C) % N : l; }
};

// vector `V` of rows of K numbers, from column `C`
template <int N, int K, int V, int C>
struct RowLane {
    static constexpr int lane(int l) { return (V * N + l) % K == C ? N + (V * N + l) / K : l; }
};

template <class T, int N, int K, int C, int... Part>
inline typename VectorOf<T, N>::type gather_column(const typename VectorOf<T, N>::type* rows,
                                                   std::integer_sequence<int, Part...>) {
    typename VectorOf<T, N>::type column = rows[0];
    ((column = take_lanes<T, N>(column, rows[Part], ColumnLane<N, K, C, Part>{},
                                std::make_integer_sequence<int, N>{})),
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
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
