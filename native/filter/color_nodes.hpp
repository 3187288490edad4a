// Nodes over colors, in rows, and the colors that touch them: see color_grid.cpp.
// Everything here has internal linkage: see threads.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "filter/color_coordinates.hpp"
#include "filter/color_ranges.hpp"
#include "runtime/simd.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Vectors hold two nodes. A color touches three in a row; what comes of the fourth is left out.
constexpr int vector_size = nodes_at_once * num_channels;
constexpr int vectors_of_color = (color_taps + nodes_at_once - 1) / nodes_at_once;
template <class T>
using NodeVector = typename VectorOf<T, vector_size>::type;

// Where a color lies: see ColorCoordinates.
template <class T>
struct ColorPlace {
    T offset[num_axes];
    int32_t row, node;
};

// What nodes are worth to a color: the B-spline of second degree.
template <class T>
PERMUTOHEDRAL_INLINE void spline_weights(T offset, T* weights) {
    weights[0] = T(0.5) * (T(0.5) - offset) * (T(0.5) - offset);
    weights[1] = T(0.75) - offset * offset;
    weights[2] = T(0.5) * (T(0.5) + offset) * (T(0.5) + offset);
}

// Weights of two nodes, each for all channels.
template <class T>
PERMUTOHEDRAL_INLINE NodeVector<T> pair_weights(T first, T second) {
    NodeVector<T> weights;
    for (int i = 0; i < vector_size; ++i) weights[i] = i < num_channels ? first : second;
    return weights;
}

// to += weight * from, of a multiple of nodes_at_once
template <class T>
PERMUTOHEDRAL_INLINE void add_nodes(const T* from, T weight, int64_t nodes, T* to) {
    for (int64_t i = 0; i < nodes * num_channels; i += vector_size) {
        store<T, vector_size>(to + i, load<T, vector_size>(to + i) + weight * load<T, vector_size>(from + i));
    }
}

// to = (1 - down) * upper + down * lower, of as many nodes
template <class T>
PERMUTOHEDRAL_INLINE void interpolate_nodes(const T* upper, const T* lower, T down, int64_t nodes, T* to) {
    for (int64_t i = 0; i < nodes * num_channels; i += vector_size) {
        const NodeVector<T> above = (1 - down) * load<T, vector_size>(upper + i);
        store<T, vector_size>(to + i, above + down * load<T, vector_size>(lower + i));
    }
}

// The rows that are not empty.
void find_rows(const StoredRow* rows, int64_t count, std::vector<int32_t>& found) {
    found.clear();
    for (int64_t r = 0; r < count; ++r) {
        if (!rows[r].is_empty()) found.push_back(int32_t(r));
    }
}

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
