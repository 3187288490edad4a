// Where the colors of a picture lie on a grid over colors: see color_grid.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int num_axes = 3;

// Where each pixel lies: the first of the nodes it touches, and how far it is from the middle one of them along each
// axis. Colors are at least two nodes from both ends. Axes that are not used come first; they have one node.
template <class T>
struct ColorCoordinates {
    int64_t extents[num_axes];

    ColorCoordinates(const ColorGridShape& shape, const T* guide, int threads)
        : extents{1, 1, 1},
          shape_(shape),
          unused_(num_axes - shape.num_guides),
          plane_(shape.height * shape.width),
          memory_{Memory(sizeof(T) * num_axes * plane_), Memory(sizeof(int32_t) * 2 * plane_)},
          along_(as<T>(memory_[0])),
          row_(as<int32_t>(memory_[1])) {
        std::fill(along(0), along(0) + unused_ * plane_, T(0));
        for (int64_t g = unused_; g < num_axes; ++g) {
            std::vector<T> least(shape.height), most(shape.height);
            parallel_for(threads, shape.height,
                         [&](int64_t y, int) { project(guide + y * shape.width, y, g, least[y], most[y]); });
            first_[g] = nearest(*std::min_element(least.begin(), least.end()));
            last_[g] = nearest(*std::max_element(most.begin(), most.end()));
            extents[g] = int64_t(last_[g] - first_[g]) + 5;
        }
        parallel_for(threads, shape.height, [&](int64_t y, int) { locate(y); });
    }

    // how far from the middle node; before all are located, coordinates
    T* along(int64_t axis) const { return along_ + axis * plane_; }
    // the first row of nodes, and the first node in it
    int32_t* row() const { return row_; }
    int32_t* node() const { return row() + plane_; }

private:
    static T nearest(T coordinate) { return std::floor(coordinate + T(0.5)); }

    void project(const T* guide, int64_t y, int64_t g, T& least, T& most) const {
        T* to = along(g) + y * shape_.width;
        const double* directions = shape_.directions[g - unused_];
        const T origin = T(shape_.origin[g - unused_]);
        for (int64_t x = 0; x < shape_.width; ++x) to[x] = T(directions[0]) * guide[x] - origin;
        for (int64_t c = 1; c < shape_.num_guides; ++c) {
            const T direction = T(directions[c]);
            for (int64_t x = 0; x < shape_.width; ++x) to[x] += direction * guide[c * plane_ + x];
        }
        // lanes apart, which the compiler does not do by itself
        T low[lanes<T>], high[lanes<T>];
        std::fill(low, low + lanes<T>, to[0]);
        std::fill(high, high + lanes<T>, to[0]);
        int64_t x = 0;
        for (; x + lanes<T> <= shape_.width; x += lanes<T>) {
            for (int i = 0; i < lanes<T>; ++i) low[i] = to[x + i] < low[i] ? to[x + i] : low[i];
            for (int i = 0; i < lanes<T>; ++i) high[i] = to[x + i] > high[i] ? to[x + i] : high[i];
        }
        for (; x < shape_.width; ++x) low[0] = std::min(low[0], to[x]), high[0] = std::max(high[0], to[x]);
        least = *std::min_element(low, low + lanes<T>), most = *std::max_element(high, high + lanes<T>);
    }

    void locate(int64_t y) const {
        int32_t *const rows = row() + y * shape_.width, *const nodes = node() + y * shape_.width;
        std::fill(rows, rows + shape_.width, 0);
        std::fill(nodes, nodes + shape_.width, 0);
        for (int64_t g = unused_; g < num_axes; ++g) {
            // whole numbers are added, so that parts of a picture have the nodes of the whole
            const T shift = T(2) - first_[g];
            // a sum that is rounded up would have another nearest node
            const T highest = std::nextafter(last_[g] - first_[g] + T(2.5), T(0));
            T* const to = along(g) + y * shape_.width;
            int32_t* const number = g == num_axes - 1 ? nodes : rows;
            const auto step = int32_t(g == 0 ? extents[1] : 1);
            for (int64_t x = 0; x < shape_.width; ++x) {
                const T moved = to[x] + shift, coordinate = moved < highest ? moved : highest;
                const auto middle = int32_t(coordinate + T(0.5));
                to[x] = coordinate - T(middle);
                number[x] += step * (middle - 1);
            }
        }
    }

    const ColorGridShape shape_;
    const int64_t unused_, plane_;
    T first_[num_axes], last_[num_axes];
    const Memory memory_[2];
    T* const along_;
    int32_t* const row_;
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
