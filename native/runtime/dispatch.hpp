// From sizes known at run time to compile-time constants, for which loops are unrolled and divisions become products.
#pragma once

#include <cstdint>

namespace permutohedral {
namespace {

// Inner loops are worth inlining whatever their size; and gcc drops calls of functions that only prefetch unless they
// are inlined early.
#define PERMUTOHEDRAL_INLINE __attribute__((always_inline)) inline
#define PERMUTOHEDRAL_INLINE_LAMBDA __attribute__((always_inline))

template <int N>
struct Constant {
    static constexpr int value = N;
};

// Calls function(Constant<N>{}) with the N of the list that equals `number`, or with the last one if none does. A 0 at
// the end stands for "known at run time only"; see Extent.
template <int First, int... Rest, class Function>
PERMUTOHEDRAL_INLINE auto dispatch(int64_t number, Function&& function) {
    if constexpr (sizeof...(Rest) == 0) {
        return function(Constant<First>{});
    } else {
        if (number == First) return function(Constant<First>{});
        return dispatch<Rest...>(number, function);
    }
}

// A size that is the constant N, or the number it was made of where N is 0.
template <int N>
struct Extent {
    constexpr Extent(int64_t) {}
    constexpr operator int64_t() const { return N; }
};

template <>
struct Extent<0> {
    constexpr Extent(int64_t number) : number(number) {}
    constexpr operator int64_t() const { return number; }
    int64_t number;
};

// Elements of an array that holds an Extent<N> of at most `Most`.
template <int N, int Most>
constexpr int capacity_for = N > 0 ? N : Most;

}  // namespace
}  // namespace permutohedral
