// The lattice points under the cells of a coarse grid. Neighboring points share most of them, so a mean over a cell is a
// sum of far fewer lattice points than its points have corners.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace permutohedral {

// Grids of one to three axes over the same space, the axes of fewer filled up with 1 in front.
struct CellGrids {
    int64_t items;
    int64_t coarse[3], fine[3];
};

// The mean over each cell as rows of `terms` lattice points with weights; a cell may have several rows, whose sums add
// up. The order is that of the cells, whatever the number of threads.
template <class T>
class CellSums {
public:
    static constexpr int64_t terms = 16;

    // The cell i of n over N points begins at floor(i N / n) and ends before ceil((i + 1) N / n).
    CellSums(const Simplices<T>& simplices, const CellGrids& grids, int threads);

    int64_t num_rows() const { return num_rows_; }

    // cells [num_rows], vertices and weights [num_rows, terms]
    void write(int32_t* cells, int32_t* vertices, T* weights) const;

private:
    struct Part {
        std::vector<int32_t> cells, vertices;
        std::vector<T> weights;
    };

    std::vector<Part> parts_;
    int64_t num_rows_ = 0;
};

}  // namespace permutohedral
