// Exponentials of vectors: exp for the mean field, and powers of two for the Gaussian, of several vectors together.
#pragma once

#include <cmath>

#include "runtime/simd.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// exp(x) for x <= 0, of float32 to two units in the last place. Results below the least normal number become that;
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

constexpr double log2_e = 1.4426950408889634;

template <class T>
struct ExponentialOf;

// minimax on [-1/2, 1/2], relative error 7.5e-8
template <>
struct ExponentialOf<float> {
    static constexpr float coefficients[] = {1.3276472e-3f, 9.6755415e-3f, 5.5507133e-2f,
                                             2.4022120e-1f, 6.9314697e-1f, 1.0000001f};
    static constexpr int mantissa_bits = 23;
    static constexpr float least = -100, least_power = 0x1p-100f;
};

// Taylor, relative error 2e-16: log(2)^k / k!
template <>
struct ExponentialOf<double> {
    static constexpr double coefficients[] = {2.5678435993488206e-11,
                                              4.4455382718708120e-10,
                                              7.0549116208011230e-09,
                                              1.0178086009239699e-07,
                                              1.3215486790144310e-06,
                                              1.5252733804059841e-05,
                                              1.5403530393381609e-04,
                                              1.3333558146428443e-03,
                                              9.6181291076284771e-03,
                                              5.5504108664821580e-02,
                                              2.4022650695910072e-01,
                                              6.9314718055994531e-01,
                                              1.0};
    static constexpr int mantissa_bits = 52;
    static constexpr double least = -1000, least_power = 0x1p-1000;
};

// The larger of each two lanes; gcc makes a comparison and a selection of `?:`.
template <class T>
PERMUTOHEDRAL_INLINE Vector<T> larger(Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (Vector<T>)_mm512_max_ps((__m512)a, (__m512)b);
    if constexpr (sizeof(T) == 8) return (Vector<T>)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX__)
    if constexpr (sizeof(T) == 4) return (Vector<T>)_mm256_max_ps((__m256)a, (__m256)b);
    if constexpr (sizeof(T) == 8) return (Vector<T>)_mm256_max_pd((__m256d)a, (__m256d)b);
#endif
    return a > b ? a : b;
}

// Replaces each of `U` vectors of numbers that are not positive by two to that power, from `least` down by zero: a product
// with a smaller power would be subnormal, and slow. Several vectors step by step: the steps of one wait for each other.
template <class T, int U>
PERMUTOHEDRAL_INLINE void exp2_in_place(Vector<T>* numbers) {
    using Exponential = ExponentialOf<T>;
    // adding and subtracting it rounds to a whole number, which the lowest bits of the sum hold
    constexpr T rounder = T(1.5) * T(int64_t{1} << Exponential::mantissa_bits);
    const Vector<T> least = Vector<T>{} + Exponential::least;
    constexpr int last = int(sizeof(Exponential::coefficients) / sizeof(T)) - 1;
    Vector<T> rounded[U], powers[U];
    for (int u = 0; u < U; ++u) numbers[u] = larger<T>(numbers[u], least);
    for (int u = 0; u < U; ++u) rounded[u] = numbers[u] + rounder;
    for (int u = 0; u < U; ++u) numbers[u] -= rounded[u] - rounder;
    for (int u = 0; u < U; ++u) powers[u] = Vector<T>{} + Exponential::coefficients[0];
    for (int k = 1; k <= last; ++k) {
        for (int u = 0; u < U; ++u) powers[u] = powers[u] * numbers[u] + Exponential::coefficients[k];
    }
    for (int u = 0; u < U; ++u) {
        const auto exponent = (IntegerVector<T>)rounded[u] << Exponential::mantissa_bits;
        const auto power = (Vector<T>)((IntegerVector<T>)powers[u] + exponent);
        // which is what `least` itself gives
        numbers[u] = power - Exponential::coefficients[last] * Exponential::least_power;
    }
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
