// The matrix that puts the terms of landmarks together: see landmark_sums.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <cstdint>

#include "runtime/memory.hpp"
#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// rows and vectors of the product with the mixture that stay in registers
constexpr int product_rows = 4, product_vectors = 2;

// The square matrix that rows of terms are multiplied by, filled up with zeros to whole blocks of terms.
template <class T>
class Mixture {
public:
    Mixture(const T* mixture, int64_t num_landmarks, int64_t num_blocks)
        : num_blocks_(num_blocks),
          num_terms_(num_blocks * lanes<T>),
          memory_(sizeof(T) * num_terms_ * num_terms_),
          mixture_(as<T>(memory_)) {
        for (int64_t k = 0; k < num_terms_; ++k) {
            for (int64_t l = 0; l < num_terms_; ++l) {
                const bool inside = k < num_landmarks && l < num_landmarks;
                mixture_[k * num_terms_ + l] = inside ? mixture[k * num_landmarks + l] : T(0);
            }
        }
    }

    void multiply(const T* from, int64_t num_rows, T* to) const {
        int64_t first = 0;
        for (; first + product_rows <= num_rows; first += product_rows) {
            multiply_rows<product_rows>(from + first * num_terms_, to + first * num_terms_);
        }
        for (; first < num_rows; ++first) multiply_rows<1>(from + first * num_terms_, to + first * num_terms_);
    }

private:
    template <int Rows>
    void multiply_rows(const T* from, T* to) const {
        int64_t block = 0;
        for (; block + product_vectors <= num_blocks_; block += product_vectors) {
            multiply_blocks<Rows, product_vectors>(from, block, to);
        }
        for (; block < num_blocks_; ++block) multiply_blocks<Rows, 1>(from, block, to);
    }

    template <int Rows, int Vectors>
    PERMUTOHEDRAL_INLINE void multiply_blocks(const T* from, int64_t block, T* to) const {
        Vector<T> sums[Rows][Vectors] = {};
        const T* mixture = mixture_ + block * lanes<T>;
        for (int64_t k = 0; k < num_terms_; ++k) {
            for (int v = 0; v < Vectors; ++v) {
                const Vector<T> factors = load<T, lanes<T>>(mixture + k * num_terms_ + v * lanes<T>);
                for (int r = 0; r < Rows; ++r) sums[r][v] += from[r * num_terms_ + k] * factors;
            }
        }
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) {
                store<T, lanes<T>>(to + r * num_terms_ + (block + v) * lanes<T>, sums[r][v]);
            }
        }
    }

    const int64_t num_blocks_, num_terms_;
    const Memory memory_;
    T* const mixture_;
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
