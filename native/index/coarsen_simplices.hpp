// coarsen_simplices: the simplices of the points on the lattice of twice the step.
#pragma once

#include <algorithm>

#include "index/digit_reduction.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t coarsened_per_task = 4096;
// in a row of coarse corners: the fine vertex is a coarse one itself
constexpr int32_t coincides = INT32_MIN;

// Of each fine vertex, by corner: the row plus one of the coarse vertex that it has a part in, or 0.
template <int C>
void list_coarse_corners(const int32_t* parents, const int32_t* coarse_keys, Extent<C> corners, Range range,
                         int32_t* rows) {
    std::fill(rows + range.begin * corners, rows + range.end * corners, 0);
    for (int64_t v = range.begin; v < range.end; ++v) {
        const int32_t low = parents[2 * v], high = parents[2 * v + 1];
        for (const int32_t parent : {low, high}) {
            // corner j is the vertex whose coordinates are congruent to j modulo d+1
            const int64_t remainder = coarse_keys[parent * int64_t(corners) + 1] % corners;
            const int64_t corner = remainder < 0 ? remainder + corners : remainder;
            rows[v * corners + corner] = (parent + 1) | (low == high ? coincides : 0);
        }
    }
}

// Points of four corners, whose rows are vectors.
template <class T>
void coarsen_tetrahedra(const Simplices<T>& fine, const int32_t* rows, Range range, int32_t* vertices, T* barycentric) {
    using Row = typename VectorOf<int32_t, 4>::type;
    using Mask = typename VectorOf<Integer<T>, 4>::type;
    using Weights = typename VectorOf<T, 4>::type;
    for (int64_t point = range.begin; point < range.end; ++point) {
        Row found{};
        Weights sum{};
        for (int64_t i = 0; i < 4; ++i) {
            const Row row = load<int32_t, 4>(rows + fine.vertices[point * 4 + i] * int64_t(4));
            const Mask at = __builtin_convertvector(row, Mask);
            const Weights whole = Weights{} + fine.barycentric[point * 4 + i];
            found |= row;
            sum += at != 0 ? (at < 0 ? whole : whole * T(0.5)) : Weights{};
        }
        store<int32_t, 4>(vertices + point * 4, (found & ~coincides) - 1);
        store<T, 4>(barycentric + point * 4, sum);
    }
}

// All parents of the vertices of a simplex are corners of one coarse simplex, so that at each corner there is one row.
template <class T, int C>
void coarsen_points(const Simplices<T>& fine, const int32_t* rows, Extent<C> corners, Range range, int32_t* vertices,
                    T* barycentric) {
    for (int64_t point = range.begin; point < range.end; ++point) {
        const int32_t* own = fine.vertices + point * corners;
        const T* weights = fine.barycentric + point * corners;
        int32_t found[capacity_for<C, max_columns>] = {0};
        T sum[capacity_for<C, max_columns>] = {0};
        for (int64_t i = 0; i < corners; ++i) {
            const int32_t* row = rows + own[i] * int64_t(corners);
            // without branches, so that the compiler makes vectors of it
            for (int64_t j = 0; j < corners; ++j) {
                found[j] |= row[j];
                const T part = row[j] < 0 ? weights[i] : weights[i] * T(0.5);
                sum[j] += row[j] != 0 ? part : T(0);
            }
        }
        for (int64_t j = 0; j < corners; ++j) {
            vertices[point * corners + j] = (found[j] & ~coincides) - 1;
            barycentric[point * corners + j] = sum[j];
        }
    }
}

// Writes vertices and barycentric [num_points, d + 1] on the lattice of twice the step. Each fine vertex has two `parents
// [num_fine, 2]`, rows of `coarse_keys [num_coarse, d + 1]`.
template <class T>
void coarsen_simplices(Simplices<T> fine, Matrix<const int32_t> parents, Matrix<const int32_t> coarse_keys,
                       Matrix<int32_t> vertices, Matrix<T> barycentric, int threads) {
    const Memory memory(sizeof(int32_t) * parents.num_rows * fine.num_corners);
    int32_t* rows = as<int32_t>(memory);
    dispatch<3, 4, 5, 6, 0>(fine.num_corners, [&](auto constant) {
        constexpr int C = decltype(constant)::value;
        const Extent<C> corners(fine.num_corners);
        parallel_ranges(threads, parents.num_rows, coarsened_per_task, [&](int64_t begin, int64_t end, int) {
            list_coarse_corners<C>(parents.data, coarse_keys.data, corners, {begin, end}, rows);
        });
        parallel_ranges(threads, fine.num_points, coarsened_per_task, [&](int64_t begin, int64_t end, int) {
            if constexpr (C == 4) {
                coarsen_tetrahedra(fine, rows, {begin, end}, vertices.data, barycentric.data);
            } else {
                coarsen_points<T, C>(fine, rows, corners, {begin, end}, vertices.data, barycentric.data);
            }
        });
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
