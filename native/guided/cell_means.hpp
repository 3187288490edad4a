// The means of interpolated lattice values over the cells of a coarse grid, as a sparse matrix. Neighboring points share
// most of their lattice points, so that a cell has far fewer of them than its points have corners.
#pragma once

#include <utility>
#include <vector>

#include "kernels.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t cells_per_task = 64;

// Rows of a sparse matrix: row i has the entries from first[i] to first[i + 1].
template <class T>
struct SparseRows {
    struct Entry {
        int32_t column;
        T weight;
    };

    // The sum of `from` [columns, C] over row i.
    template <int C>
    PERMUTOHEDRAL_INLINE void add_row(int64_t i, const T* from, T* sum) const {
        for (int64_t e = first[size_t(i)]; e < first[size_t(i) + 1]; ++e) {
            const Entry& entry = entries[size_t(e)];
            for (int c = 0; c < C; ++c) sum[c] += entry.weight * from[int64_t(entry.column) * C + c];
        }
    }

    SparseRows transpose(int64_t columns) const {
        SparseRows to{std::vector<int64_t>(size_t(columns) + 1), std::vector<Entry>(entries.size())};
        for (const Entry& entry : entries) ++to.first[size_t(entry.column) + 1];
        for (int64_t v = 0; v < columns; ++v) to.first[size_t(v) + 1] += to.first[size_t(v)];
        std::vector<int64_t> next(to.first.begin(), to.first.end() - 1);
        for (size_t i = 0; i + 1 < first.size(); ++i) {
            for (int64_t e = first[i]; e < first[i + 1]; ++e) {
                const Entry& entry = entries[size_t(e)];
                to.entries[size_t(next[size_t(entry.column)]++)] = {int32_t(i), entry.weight};
            }
        }
        return to;
    }

    std::vector<int64_t> first;
    std::vector<Entry> entries;
};

// Calls function(point) for the points of a cell of adaptive average pooling: cell i of n over N points begins at
// floor(i N / n) and ends before ceil((i + 1) N / n). Returns the number of points.
template <class Function>
int64_t for_points_of_cell(int64_t cell, const std::vector<int64_t>& coarse, const std::vector<int64_t>& fine,
                           Function&& function) {
    int64_t begin[3] = {0, 0, 0}, end[3] = {1, 1, 1}, extent[3] = {1, 1, 1};
    for (int axis = int(fine.size()) - 1, at = 2; axis >= 0; --axis, --at) {
        const int64_t i = cell % coarse[size_t(axis)], n = coarse[size_t(axis)];
        extent[at] = fine[size_t(axis)];
        begin[at] = i * extent[at] / n;
        end[at] = divide_up((i + 1) * extent[at], n);
        cell /= n;
    }
    for (int64_t z = begin[0]; z < end[0]; ++z) {
        for (int64_t y = begin[1]; y < end[1]; ++y) {
            for (int64_t x = begin[2]; x < end[2]; ++x) function((z * extent[1] + y) * extent[2] + x);
        }
    }
    return (end[0] - begin[0]) * (end[1] - begin[1]) * (end[2] - begin[2]);
}

// The matrix [cells, lattice points], the same for any number of threads.
template <class T>
SparseRows<T> find_cell_means(const Simplices<T>& points, int64_t lattice_points, const std::vector<int64_t>& coarse,
                              const std::vector<int64_t>& fine, int threads) {
    using Entries = std::vector<typename SparseRows<T>::Entry>;
    int64_t cells = 1;
    for (const int64_t extent : coarse) cells *= extent;
    SparseRows<T> means{std::vector<int64_t>(size_t(cells) + 1), {}};
    std::vector<Entries> parts(size_t(divide_up(cells, cells_per_task)));
    // for each thread: the place of a lattice point among the entries of the cell, -1 between cells
    std::vector<std::vector<int32_t>> places(size_t(threads), std::vector<int32_t>{});
    parallel_ranges(threads, cells, cells_per_task, [&](int64_t first, int64_t last, int worker) {
        std::vector<int32_t>& place = places[size_t(worker)];
        place.resize(size_t(lattice_points), -1);
        Entries& part = parts[size_t(first / cells_per_task)];
        for (int64_t cell = first; cell < last; ++cell) {
            const size_t begin = part.size();
            const int64_t count = for_points_of_cell(cell, coarse, fine, [&](int64_t point) {
                for (int64_t j = point * points.num_corners; j < (point + 1) * points.num_corners; ++j) {
                    int32_t& at = place[size_t(points.vertices[j])];
                    if (at < 0) {
                        at = int32_t(part.size());
                        part.push_back({points.vertices[j], T(0)});
                    }
                    part[size_t(at)].weight += points.barycentric[j];
                }
            });
            for (size_t e = begin; e < part.size(); ++e) {
                part[e].weight /= T(count);
                place[size_t(part[e].column)] = -1;
            }
            means.first[size_t(cell) + 1] = int64_t(part.size() - begin);
        }
    });
    for (int64_t cell = 0; cell < cells; ++cell) means.first[size_t(cell) + 1] += means.first[size_t(cell)];
    means.entries.reserve(size_t(means.first[size_t(cells)]));
    for (const Entries& part : parts) means.entries.insert(means.entries.end(), part.begin(), part.end());
    return means;
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
