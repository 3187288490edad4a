// mix_rows: each result is a sum of few rows, with weights of which many may be zero.
#pragma once

#include <algorithm>
#include <vector>

#include "filter/channel_vectors.hpp"
#include "filter/point_order.hpp"
#include "kernels.hpp"
#include "runtime/cache_sizes.hpp"
#include "runtime/lane_exchange.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// results of this size would evict the rows from the caches, and are written past them
constexpr int64_t mixed_streamed_bytes = int64_t{1} << 24;
// The rows that these points read have their channels of one chunk in the nearest cache.
constexpr int64_t tile_points = 64, chunk_vectors = 8;

template <class T>
class Mixer {
public:
    Mixer(const Simplices<T>& simplices, Matrix<const T> rows, bool planes, T* out)
        : simplices_(simplices),
          rows_(rows),
          planes_(planes),
          out_(out),
          streams_(!planes && rows.num_channels % chunk == 0 &&
                   reinterpret_cast<uintptr_t>(out) % cache_line_bytes == 0 &&
                   int64_t(sizeof(T)) * simplices.num_points * rows.num_channels >= mixed_streamed_bytes),
          first_(tile_points + 1),
          offsets_(size_t(tile_points * simplices.num_corners)),
          weights_(offsets_.size()),
          sums_(size_t(tile_points * chunk)) {}

    void mix(Range points) {
        for (int64_t begin = points.begin; begin < points.end; begin += tile_points) {
            begin_ = begin;
            count_ = std::min(tile_points, points.end - begin);
            list_corners();
            int64_t c = 0;
            for (; c + chunk <= rows_.num_channels; c += chunk) mix_chunk<chunk_vectors>(c);
            for (; c + lanes<T> <= rows_.num_channels; c += lanes<T>) mix_chunk<1>(c);
            for (; c < rows_.num_channels; ++c) mix_channel(c);
        }
        if (streams_) finish_streams();
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
    PERMUTOHEDRAL_INLINE void mix_chunk(int64_t c) {
        constexpr int64_t width = Vectors * lanes<T>;
        for (int64_t p = 0; p < count_; ++p) {
            Vector<T> sums[Vectors] = {};
            for (int64_t q = first_[size_t(p)]; q < first_[size_t(p) + 1]; ++q) {
                const T* row = rows_.data + offsets_[size_t(q)] + c;
                for (int v = 0; v < Vectors; ++v)
                    sums[v] += weights_[size_t(q)] * load<T, lanes<T>>(row + v * lanes<T>);
            }
            T* to = planes_ ? sums_.data() + p * width : out_ + (begin_ + p) * rows_.num_channels + c;
            for (int v = 0; v < Vectors; ++v) {
                if (streams_) {
                    stream<T, lanes<T>>(to + v * lanes<T>, sums[v]);
                } else {
                    store<T, lanes<T>>(to + v * lanes<T>, sums[v]);
                }
            }
        }
        if (planes_) transpose_tile<Vectors>(c);
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

    void mix_channel(int64_t c) {
        for (int64_t p = 0; p < count_; ++p) {
            T sum = 0;
            for (int64_t q = first_[size_t(p)]; q < first_[size_t(p) + 1]; ++q) {
                sum += weights_[size_t(q)] * rows_.data[offsets_[size_t(q)] + c];
            }
            out_[planes_ ? c * simplices_.num_points + begin_ + p : (begin_ + p) * rows_.num_channels + c] = sum;
        }
    }

    const Simplices<T>& simplices_;
    const Matrix<const T> rows_;
    const bool planes_;
    T* const out_;
    const bool streams_;
    int64_t begin_ = 0, count_ = 0;  // of the tile
    std::vector<int64_t> first_, offsets_;
    std::vector<T> weights_, sums_;
};

// Sums the rows at the vertices of each simplex, by weight; out [num_points, num_channels], or with `planes` [num_channels,
// num_points]. For rows that stay in the caches.
template <class T>
void mix_rows(Matrix<const T> rows, Simplices<T> simplices, bool planes, Matrix<T> out, int threads) {
    parallel_ranges(threads, simplices.num_points, block_points, [&](int64_t begin, int64_t end, int) {
        Mixer<T>(simplices, rows, planes, out.data).mix({begin, end});
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
