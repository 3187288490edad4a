#include "filter/cells.hpp"

#include <algorithm>

#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

constexpr int64_t cells_per_task = 256;

// Sums of weights by vertex, in the order in which the vertices come first.
template <class T>
class VertexSums {
public:
    void add(int32_t vertex, T weight) {
        if (4 * vertices.size() >= 3 * places_.size()) grow();
        Place& place = find(vertex);
        if (place.round != round_) {
            place = {round_, int32_t(vertices.size())};
            vertices.push_back(vertex);
            weights.push_back(weight);
        } else {
            weights[size_t(place.number)] += weight;
        }
    }

    void clear() {
        vertices.clear();
        weights.clear();
        ++round_;
    }

    std::vector<int32_t> vertices;
    std::vector<T> weights;

private:
    struct Place {
        int64_t round;
        int32_t number;  // of the vertex, if the round is this one
    };

    Place& find(int32_t vertex) {
        const size_t mask = places_.size() - 1;
        // the upper bits of the product are mixed best
        size_t at = (uint64_t(uint32_t(vertex)) * 0x9E3779B97F4A7C15u) >> 40 & mask;
        while (places_[at].round == round_ && vertices[size_t(places_[at].number)] != vertex) at = (at + 1) & mask;
        return places_[at];
    }

    void grow() {
        places_.assign(std::max(size_t{512}, 2 * places_.size()), Place{-1, 0});
        for (size_t i = 0; i < vertices.size(); ++i) find(vertices[i]) = {round_, int32_t(i)};
    }

    std::vector<Place> places_;
    int64_t round_ = 0;
};

// The points of cell i along an axis.
Range cell_range(int64_t i, int64_t coarse, int64_t fine) {
    return {i * fine / coarse, divide_up((i + 1) * fine, coarse)};
}

template <class T>
void sum_cell(const Simplices<T>& simplices, const CellGrids& grids, int64_t cell, VertexSums<T>& sums) {
    Range along[3];
    int64_t rest = cell, count = 1;
    for (int axis = 2; axis >= 0; --axis) {
        along[axis] = cell_range(rest % grids.coarse[axis], grids.coarse[axis], grids.fine[axis]);
        rest /= grids.coarse[axis];
        count *= along[axis].end - along[axis].begin;
    }
    const T share = T(1) / T(count);
    for (int64_t z = along[0].begin; z < along[0].end; ++z) {
        for (int64_t y = along[1].begin; y < along[1].end; ++y) {
            const int64_t row = ((rest * grids.fine[0] + z) * grids.fine[1] + y) * grids.fine[2];
            const int64_t begin = (row + along[2].begin) * simplices.num_corners;
            const int64_t end = (row + along[2].end) * simplices.num_corners;
            for (int64_t j = begin; j < end; ++j) sums.add(simplices.vertices[j], share * simplices.barycentric[j]);
        }
    }
}

}  // namespace

template <class T>
CellSums<T>::CellSums(const Simplices<T>& simplices, const CellGrids& grids, int threads) {
    const int64_t cells = grids.items * grids.coarse[0] * grids.coarse[1] * grids.coarse[2];
    parts_.resize(size_t(divide_up(cells, cells_per_task)));
    parallel_ranges(threads, cells, cells_per_task, [&](int64_t begin, int64_t end, int) {
        Part& part = parts_[size_t(begin / cells_per_task)];
        VertexSums<T> sums;
        for (int64_t cell = begin; cell < end; ++cell) {
            sums.clear();
            sum_cell(simplices, grids, cell, sums);
            // padded with weights of zero
            const size_t rows = size_t(divide_up(int64_t(sums.vertices.size()), terms));
            sums.vertices.resize(rows * terms, rows == 0 ? 0 : sums.vertices[0]);
            sums.weights.resize(rows * terms, T(0));
            part.cells.insert(part.cells.end(), rows, int32_t(cell));
            part.vertices.insert(part.vertices.end(), sums.vertices.begin(), sums.vertices.end());
            part.weights.insert(part.weights.end(), sums.weights.begin(), sums.weights.end());
        }
    });
    for (const Part& part : parts_) num_rows_ += int64_t(part.cells.size());
}

template <class T>
void CellSums<T>::write(int32_t* cells, int32_t* vertices, T* weights) const {
    for (const Part& part : parts_) {
        cells = std::copy(part.cells.begin(), part.cells.end(), cells);
        vertices = std::copy(part.vertices.begin(), part.vertices.end(), vertices);
        weights = std::copy(part.weights.begin(), part.weights.end(), weights);
    }
}

template class CellSums<float>;
template class CellSums<double>;

}  // namespace permutohedral
