// The exponential function of a vector.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <cmath>

#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// exp(x) for x <= 0, of float32 to two units in the last place. What is less than the least normal number becomes that;
// so does NaN.
template <class T, int N>
PERMUTOHEDRAL_INLINE typename VectorOf<T, N>::type exponential(typename VectorOf<T, N>::type x) {
    using V = typename VectorOf<T, N>::type;
    if constexpr (sizeof(T) == 8) {
        V result{};
        for (int l = 0; l < N; ++l) result[l] = std::exp(x[l] > -708.0 ? x[l] : -708.0);
        return result;
    } else {
        using I = typename VectorOf<int32_t, N>::type;
        const V least = V{} + -87.3f;
        x = x > least ? x : least;
        // x = n log 2 + r; adding 1.5 * 2^23 rounds to a whole number, which the last bits of the sum then hold
        const float rounder = 12582912.0f;
        const V sum = x * 1.44269504f + rounder;
        const V n = sum - rounder;
        // log 2 in two parts: n times the first has no rounding error
        const V r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
        // the polynomial of least relative error in [-log(2) / 2, log(2) / 2] that begins with 1 + r
        V p = V{} + 0.00138145f;
        p = p * r + 0.00836878f;
        p = p * r + 0.04166839f;
        p = p * r + 0.1666652f;
        p = p * r + 0.49999993f;
        p = p * (r * r) + r + 1.0f;
        return (V)((I)p + ((I)sum << 23));
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
