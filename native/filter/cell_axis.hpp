// Cells of pixels along an axis of a picture, and the blur between the nodes that bound them: see color_grid.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// nodes along each axis that a pixel touches: those on both sides of it
constexpr int cell_ends = 2;
// the pixels of a cell give to its nodes from the middles of so many parts along each axis
constexpr int parts_along = 2;

// A pixel gives to the nodes at both ends of its cell, and takes from them.
template <class T>
struct CellAxis {
    int64_t size, cell, num_cells;
    std::vector<T> right;  // of each pixel of a cell, the weight of the right node; the left one has the rest
    std::vector<T> blur;   // between nodes that are so many steps apart

    // The blur reaches `reach` of its standard deviations.
    CellAxis(int64_t size, int64_t cell, double sigma, double reach)
        : size(size),
          cell(cell),
          num_cells(divide_up(size, cell)) {
        for (int64_t i = 0; i < std::min(cell, size); ++i) right.push_back(T((double(i) + 0.5) / double(cell)));
        // interpolation at the source and at the target has a variance of a sixth of a step, on average
        const double steps = sigma / double(cell), variance = steps * steps - 1.0 / 3.0;
        // not converted before it is known to be small
        const auto farthest = int64_t(std::min(reach * std::sqrt(variance) + 1, double(num_nodes() - 1)));
        for (int64_t i = 0; i <= farthest; ++i) {
            blur.push_back(T(steps / std::sqrt(variance) * std::exp(-0.5 * double(i * i) / variance)));
        }
    }

    int64_t num_nodes() const { return num_cells + cell_ends - 1; }
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
    // the cells that a node bounds
    Range cells(int64_t node) const {
        return {std::max<int64_t>(node - cell_ends + 1, 0), std::min(node + 1, num_cells)};
    }
    // the nodes that the blur of one reads
    Range nodes_near(int64_t node) const {
        const auto farthest = int64_t(blur.size()) - 1;
        return {std::max<int64_t>(node - farthest, 0), std::min(node + farthest + 1, num_nodes())};
    }
    T blur_between(int64_t a, int64_t b) const { return blur[std::abs(a - b)]; }
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
