// A stable sort of points by few buckets, in parallel; the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace {

// bucket_of(point) is in [0, num_buckets).
template <class BucketOf>
class BucketSort {
public:
    BucketSort(int64_t num_points, int64_t num_buckets, BucketOf bucket_of)
        : num_points_(num_points),
          num_buckets_(num_buckets),
          num_parts_(divide_up(num_points, part_points)),
          bucket_of_(bucket_of),
          memory_(sizeof(uint32_t) * num_buckets_ * num_parts_) {}

    // Calls function(point, place in the sorted order) for all points, at most 2^32 - 1.
    template <class Function>
    void for_each_place(int threads, Function&& function) {
        count_points(threads);
        parallel_for(threads, num_parts_, [&](int64_t part, int) {
            uint32_t* next = as<uint32_t>(memory_) + part * num_buckets_;
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
        parallel_for(threads, num_parts_, [&](int64_t part, int) {
            const Range range = points_of(part);
            for (int64_t i = range.begin; i < range.end; ++i) ++counts[part * num_buckets_ + bucket_of_(i)];
        });
        uint32_t before = 0;
        for (int64_t bucket = 0; bucket < num_buckets_; ++bucket) {
            for (int64_t part = 0; part < num_parts_; ++part) {
                uint32_t& count = counts[part * num_buckets_ + bucket];
                std::swap(before, count);
                before += count;
            }
        }
    }

    Range points_of(int64_t part) const {
        return {part * part_points, std::min((part + 1) * part_points, num_points_)};
    }

    int64_t num_points_, num_buckets_, num_parts_;
    BucketOf bucket_of_;
    Memory memory_;
};

}  // namespace
}  // namespace permutohedral
