// Pixels of which sums over landmarks fail, because none is near their color: see landmark_sums.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// added to the diagonal of the Gaussian between landmarks before it is inverted: see choose_landmarks of
// filters/landmarks.py
constexpr double added_to_diagonal = 1e-5;

// What the terms of landmarks lack of the Gaussian between a color and itself. The root of it, times that of another
// color, bounds what they lack between both.
template <class T>
class LackingWeight {
public:
    // landmarks [num_landmarks, num_guides], mixture [num_landmarks, num_landmarks], which is symmetric
    LackingWeight(const LandmarkShape& shape, const T* landmarks, const T* mixture)
        : count_(shape.num_landmarks),
          guides_(shape.num_guides),
          colors_(count_ * guides_),
          mixture_(mixture),
          exponents_(count_),
          sums_(count_) {
        for (int64_t k = 0; k < count_; ++k) {
            for (int64_t g = 0; g < guides_; ++g) colors_[g * count_ + k] = landmarks[k * guides_ + g];
        }
    }

    // At a color, whose channels are `stride` apart; a bound above it, if that is below `enough`.
    T at(const T* color, int64_t stride, T enough) {
        std::fill(exponents_.begin(), exponents_.end(), T(0));
        for (int64_t g = 0; g < guides_; ++g) {
            const T own = color[g * stride], *from = colors_.data() + g * count_;
            for (int64_t k = 0; k < count_; ++k) exponents_[k] -= T(0.5) * (own - from[k]) * (own - from[k]);
        }
        // with the nearest one alone they lack more
        const T nearest = *std::max_element(exponents_.begin(), exponents_.end());
        const T bound = 1 - std::exp(2 * nearest) / T(1 + added_to_diagonal);
        if (bound < enough) return bound;
        std::fill(sums_.begin(), sums_.end(), T(0));
        for (int64_t l = 0; l < count_; ++l) {
            const T weight = exponents_[l] = std::exp(exponents_[l]);
            for (int64_t k = 0; k < count_; ++k) sums_[k] += weight * mixture_[l * count_ + k];
        }
        T found = 0;
        for (int64_t k = 0; k < count_; ++k) found += sums_[k] * exponents_[k];
        return std::max(1 - found, T(0));
    }

private:
    const int64_t count_, guides_;
    std::vector<T> colors_;  // [num_guides, num_landmarks]
    const T* const mixture_;
    std::vector<T> exponents_, sums_;
};

// The pixels of one item whose mass is less than `small_mass` times what the terms lack at their color, the root of it,
// at most so many: those of which it is the smallest part.
template <class T>
std::vector<int64_t> find_rare(const LandmarkShape& shape, const T* landmarks, const T* mixture, const T* guide,
                               const T* mass, int threads) {
    std::vector<std::vector<std::pair<T, int64_t>>> of_rows(shape.height);
    parallel_for(threads, shape.height, [&](int64_t y, int) {
        LackingWeight<T> lacking(shape, landmarks, mixture);
        for (int64_t at = y * shape.width; at < (y + 1) * shape.width; ++at) {
            const T part = mass[at] / T(shape.small_mass);
            // they lack one at most
            if (!(part < 1)) continue;
            const T lack = std::sqrt(lacking.at(guide + at, shape.height * shape.width, part * part));
            if (part < lack) of_rows[y].push_back({part / lack, at});
        }
    });
    std::vector<std::pair<T, int64_t>> rare;
    for (const auto& row : of_rows) rare.insert(rare.end(), row.begin(), row.end());
    if (int64_t(rare.size()) > shape.most_repaired) {
        std::nth_element(rare.begin(), rare.begin() + shape.most_repaired, rare.end());
        rare.resize(shape.most_repaired);
    }
    std::vector<int64_t> pixels;
    for (const auto& each : rare) pixels.push_back(each.second);
    return pixels;
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
