// Between the points of a chunk and a lattice: rows of labels are interpolated, and splatted.
#pragma once

#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

// Where the points are on a lattice, and what is multiplied there: factor times the scale of the point.
template <class T>
struct ScaledSimplices {
    Simplices<T> simplices;
    const T* scale;  // [num_points], or null for ones
    T factor;
};

// Adds what is interpolated from `table` to the rows of points from `point` on; or writes it to fresh ones. A row, there
// and here, has `stride` elements: see row_stride.
template <class T>
void add_slices(const ScaledSimplices<T>& from, const T* table, int64_t stride, int64_t point, int64_t count, T* rows,
                bool fresh);

// Splats the rows of points from `point` on into those rows of `table` that lie in the range; everywhere: all do.
template <class T>
void add_splats(const ScaledSimplices<T>& from, T* table, int64_t stride, int64_t point, int64_t count, const T* rows,
                Range vertices, bool everywhere);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
