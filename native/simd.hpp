// Vectors of the widest registers of the instruction set this file is compiled for.
// Everything here has internal linkage: see parallel.hpp.
#pragma once

#include <cstdint>
#include <cstring>

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

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

template <class T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
    // the same, at any address
    typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(sizeof(T)), may_alias));
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

}  // namespace
}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
