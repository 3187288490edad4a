// Points brought into the order of few buckets; within a bucket, as they come. The order does not depend on the number
// of threads. Everything here has internal linkage: see parallel.hpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

// BucketOf gives the bucket of a point, in [0, count).
template <class BucketOf>
class Buckets {
public:
    Buckets(int64_t points, int64_t count, BucketOf bucket_of)
        : points_(points),
          count_(count),
          parts_(divide_up(points, part_points)),
          bucket_of_(bucket_of),
          memory_(sizeof(uint32_t) * count_ * parts_) {}

    // Calls function(point, place) for all points; the places are a permutation. At most 2^32 - 1 points.
    template <class Function>
    void place(int threads, Function&& function) {
        count_points(threads);
        parallel_for(threads, parts_, [&](int64_t part, int) {
            uint32_t* next = as<uint32_t>(memory_) + part * count_;
            const Range range = points_of(part);
            for (int64_t i = range.begin; i < range.end; ++i) function(i, int64_t(next[bucket_of_(i)]++));
        });
    }

private:
    static constexpr int64_t part_points = 16384;

    // Where the points of each part and bucket begin.
    void count_points(int threads) {
        uint32_t* counts = as<uint32_t>(memory_);
        std::memset(counts, 0, memory_.size());
        parallel_for(threads, parts_, [&](int64_t part, int) {
            const Range range = points_of(part);
            for (int64_t i = range.begin; i < range.end; ++i) ++counts[part * count_ + bucket_of_(i)];
        });
        uint32_t before = 0;
        for (int64_t bucket = 0; bucket < count_; ++bucket) {
            for (int64_t part = 0; part < parts_; ++part) {
                uint32_t& count = counts[part * count_ + bucket];
                std::swap(before, count);
                before += count;
            }
        }
    }

    Range points_of(int64_t part) const {
        return {part * part_points, std::min((part + 1) * part_points, points_)};
    }

    int64_t points_, count_, parts_;
    BucketOf bucket_of_;
    Memory memory_;
};

}  // namespace
}  // namespace permutohedral
