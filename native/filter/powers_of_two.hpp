// Powers of two of vectors, for the Gaussian: a polynomial, and the exponent put in as bits.
#pragma once

#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

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
// with what is less would be subnormal, and slow. Several at once, step by step: the steps of one wait for each other.
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

// Two to the power of each of `U` vectors of numbers that are not positive, with a relative error of 1e-4: that of the
// sum of terms is larger.
template <class T, int U>
PERMUTOHEDRAL_INLINE void rough_exp2_in_place(Vector<T>* numbers) {
    constexpr T coefficients[] = {T(5.5171665e-2), T(2.4261112e-1), T(6.9326099e-1), T(9.9992807e-1)};
    constexpr int mantissa_bits = sizeof(T) == 4 ? 23 : 52;
    constexpr T rounder = T(1.5) * T(int64_t{1} << mantissa_bits);
    const Vector<T> least = Vector<T>{} - T(100);
    Vector<T> rounded[U], powers[U];
    for (int u = 0; u < U; ++u) numbers[u] = larger<T>(numbers[u], least);
    for (int u = 0; u < U; ++u) rounded[u] = numbers[u] + rounder;
    for (int u = 0; u < U; ++u) numbers[u] -= rounded[u] - rounder;
    for (int u = 0; u < U; ++u) powers[u] = Vector<T>{} + coefficients[0];
    for (int k = 1; k < 4; ++k) {
        for (int u = 0; u < U; ++u) powers[u] = powers[u] * numbers[u] + coefficients[k];
    }
    for (int u = 0; u < U; ++u) {
        const auto exponent = (IntegerVector<T>)rounded[u] << mantissa_bits;
        numbers[u] = (Vector<T>)((IntegerVector<T>)powers[u] + exponent);
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
