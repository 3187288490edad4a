// Where the colors of a picture lie on a grid over colors: see color_grid.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int num_axes = 3;

// The coordinates of every pixel, in nodes: at least two nodes from both ends. Axes that are not used come first; they
// have one node.
template <class T>
struct ColorCoordinates {
    int64_t extents[num_axes];

    ColorCoordinates(const ColorGridShape& shape, const T* guide, int threads)
        : extents{1, 1, 1},
          plane_(shape.height * shape.width),
          memory_(sizeof(T) * num_axes * plane_) {
        const int64_t unused = num_axes - shape.num_guides;
        std::fill(along(0), along(0) + unused * plane_, T(0));
        for (int64_t g = unused; g < num_axes; ++g) {
            const int64_t axis = g - unused;
            std::vector<T> least(shape.height), most(shape.height);
            parallel_for(threads, shape.height, [&](int64_t y, int) {
                T* to = along(g) + y * shape.width;
                project(shape, guide + y * shape.width, axis, to);
                least[y] = *std::min_element(to, to + shape.width);
                most[y] = *std::max_element(to, to + shape.width);
            });
            // whole numbers are added, so that parts of a picture have the nodes of the whole
            const T first = nearest(*std::min_element(least.begin(), least.end()));
            const T last = nearest(*std::max_element(most.begin(), most.end()));
            extents[g] = int64_t(last - first) + 5;
            // a sum that is rounded up would have another nearest node
            const T highest = std::nextafter(last - first + T(2.5), T(0));
            parallel_for(threads, shape.height, [&](int64_t y, int) {
                T* to = along(g) + y * shape.width;
                for (int64_t x = 0; x < shape.width; ++x) to[x] = std::min(to[x] + (T(2) - first), highest);
            });
        }
    }

    T* along(int64_t axis) const { return as<T>(memory_) + axis * plane_; }

private:
    static T nearest(T coordinate) { return std::floor(coordinate + T(0.5)); }

    void project(const ColorGridShape& shape, const T* guide, int64_t axis, T* to) const {
        const T origin = T(shape.origin[axis]);
        for (int64_t x = 0; x < shape.width; ++x) to[x] = -origin;
        for (int64_t g = 0; g < shape.num_guides; ++g) {
            const T direction = T(shape.directions[axis][g]);
            for (int64_t x = 0; x < shape.width; ++x) to[x] += direction * guide[g * plane_ + x];
        }
    }

    const int64_t plane_;
    const Memory memory_;
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
