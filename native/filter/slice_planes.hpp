// slice_planes: the transpose of slice, for few rows of many channels and weights of which many may be zero.
#pragma once

#include <algorithm>
#include <vector>

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"
#include "kernels.hpp"
#include "runtime/lane_exchange.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The rows that these points read have their channels of one chunk in the nearest cache.
constexpr int64_t tile_points = 64, chunk_vectors = 8;

template <class T>
class PlaneSlicer {
public:
    PlaneSlicer(const Simplices<T>& simplices, Matrix<const T> rows, T* out)
        : simplices_(simplices),
          rows_(rows),
          out_(out),
          first_(tile_points + 1),
          offsets_(size_t(tile_points * simplices.num_corners)),
          weights_(offsets_.size()),
          sums_(size_t(tile_points * chunk)) {}

    void slice(Range points) {
        for (int64_t begin = points.begin; begin < points.end; begin += tile_points) {
            begin_ = begin;
            count_ = std::min(tile_points, points.end - begin);
            list_corners();
            int64_t c = 0;
            for (; c + chunk <= rows_.num_channels; c += chunk) slice_chunk<chunk_vectors>(c);
            for (; c + lanes<T> <= rows_.num_channels; c += lanes<T>) slice_chunk<1>(c);
            for (; c < rows_.num_channels; ++c) slice_channel(c);
        }
    }

private:
    static constexpr int64_t chunk = chunk_vectors * lanes<T>;

    // The corners of the tile whose weight is not zero.
    void list_corners() {
        int64_t number = 0;
        for (int64_t p = 0; p < count_; ++p) {
            first_[size_t(p)] = number;
            const int64_t at = (begin_ + p) * simplices_.num_corners;
            for (int64_t j = 0; j < simplices_.num_corners; ++j) {
                offsets_[size_t(number)] = simplices_.vertices[at + j] * rows_.num_channels;
                weights_[size_t(number)] = simplices_.barycentric[at + j];
                number += simplices_.barycentric[at + j] != 0;
            }
        }
        first_[size_t(count_)] = number;
    }

    template <int Vectors>
    PERMUTOHEDRAL_INLINE void slice_chunk(int64_t c) {
        constexpr int64_t width = Vectors * lanes<T>;
        for (int64_t p = 0; p < count_; ++p) {
            Vector<T> sums[Vectors] = {};
            for (int64_t q = first_[size_t(p)]; q < first_[size_t(p) + 1]; ++q) {
                const T* row = rows_.data + offsets_[size_t(q)] + c;
                for (int v = 0; v < Vectors; ++v)
                    sums[v] += weights_[size_t(q)] * load<T, lanes<T>>(row + v * lanes<T>);
            }
            for (int v = 0; v < Vectors; ++v) store<T, lanes<T>>(sums_.data() + p * width + v * lanes<T>, sums[v]);
        }
        transpose_tile<Vectors>(c);
    }

    // Brings the sums of the tile from rows to planes.
    template <int Vectors>
    PERMUTOHEDRAL_INLINE void transpose_tile(int64_t c) {
        constexpr int64_t width = Vectors * lanes<T>;
        for (int64_t v = 0; v < width; v += lanes<T>) {
            T* to = out_ + (c + v) * simplices_.num_points + begin_;
            const T* from = sums_.data() + v;
            int64_t p = 0;
            for (; p + lanes<T> <= count_; p += lanes<T>) {
                Vector<T> square[lanes<T>];
                for (int l = 0; l < lanes<T>; ++l) square[l] = load<T, lanes<T>>(from + (p + l) * width);
                transpose_square<T, lanes<T>>(square);
                for (int l = 0; l < lanes<T>; ++l) store<T, lanes<T>>(to + l * simplices_.num_points + p, square[l]);
            }
            for (; p < count_; ++p) {
                for (int64_t l = 0; l < lanes<T>; ++l) to[l * simplices_.num_points + p] = from[p * width + l];
            }
        }
    }

    void slice_channel(int64_t c) {
        for (int64_t p = 0; p < count_; ++p) {
            T sum = 0;
            for (int64_t q = first_[size_t(p)]; q < first_[size_t(p) + 1]; ++q) {
                sum += weights_[size_t(q)] * rows_.data[offsets_[size_t(q)] + c];
            }
            out_[c * simplices_.num_points + begin_ + p] = sum;
        }
    }

    const Simplices<T>& simplices_;
    const Matrix<const T> rows_;
    T* const out_;
    int64_t begin_ = 0, count_ = 0;  // of the tile
    std::vector<int64_t> first_, offsets_;
    std::vector<T> weights_, sums_;
};

// Sums the rows at the vertices of each simplex, by weight; out [num_channels, num_points]. For rows that stay in the
// caches.
template <class T>
void slice_planes(Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out, int threads) {
    parallel_ranges(threads, simplices.num_points, block_points, [&](int64_t begin, int64_t end, int) {
        PlaneSlicer<T>(simplices, lattice_values, out.data).slice({begin, end});
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
