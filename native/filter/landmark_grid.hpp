// The grid on which the terms of landmarks are blurred, and the matrix that puts them together: see landmark_sums.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/memory.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// nodes along each axis that a pixel touches: those on both sides of it
constexpr int taps = 2;
// the pixels of a cell give to its nodes from the middles of so many parts along each axis
constexpr int parts_along = 2;
// the blur of the nodes reaches this many of its standard deviations
constexpr double blur_reach = 4.5;
// rows and vectors of the product with the mixture that stay in registers
constexpr int product_rows = 4, product_vectors = 2;

// Cells along an axis. A pixel gives to the nodes at both ends of its cell, and takes from them.
template <class T>
struct Axis {
    int64_t size, cell, num_cells;
    std::vector<T> right;  // [cell]: the weight of the right node; the left one has the rest
    std::vector<T> blur;   // between nodes that are so many steps apart

    Axis(int64_t size, int64_t cell, double sigma) : size(size), cell(cell), num_cells(divide_up(size, cell)) {
        for (int64_t i = 0; i < cell; ++i) right.push_back(T((double(i) + 0.5) / double(cell)));
        // interpolation at the source and at the target has a variance of a sixth of a step, on average
        const double steps = sigma / double(cell), variance = steps * steps - 1.0 / 3.0;
        const auto reach = std::min(int64_t(blur_reach * std::sqrt(variance)) + 1, num_nodes() - 1);
        for (int64_t i = 0; i <= reach; ++i) {
            blur.push_back(T(steps / std::sqrt(variance) * std::exp(-0.5 * double(i * i) / variance)));
        }
    }

    int64_t num_nodes() const { return num_cells + taps - 1; }
    Range pixels(int64_t at) const { return {at * cell, std::min((at + 1) * cell, size)}; }
    // one of the parts of a cell, which may be empty
    Range pixels(int64_t at, int64_t part) const {
        const int64_t length = divide_up(cell, parts_along), begin = at * cell + part * length;
        const int64_t end = std::min({begin + length, (at + 1) * cell, size});
        return {std::min(begin, end), end};
    }
    // the weight of the right node at the middle of pixels of a cell
    T right_of(int64_t at, Range pixels) const {
        return T((double(pixels.begin + pixels.end) / 2 - double(at * cell)) / double(cell));
    }
};

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
