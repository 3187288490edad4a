// The list of packed keys that a chunk of points touches.
#pragma once

#include "index/embedding.hpp"
#include "index/linear_keys.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// Two direct-mapped caches, of whole simplices and of vertices, keep most repetitions out of the list; those they miss
// are found when the lists are merged. An unused entry is all ones, which equals no key: the margins are empty. Which
// keys are new is not predictable, so the lookups are written without branches.
template <class T, int D, int W>
class alignas(thread_alignment) TouchedKeys {
public:
    // the simplex cache exists where the ranks, four bits each, fit a lane
    static constexpr bool has_simplices = D > 0 && D < 8 && W == 1;
    static constexpr int simplex_bits = 11, vertex_bits = vertex_cache_bits;
    // words of an entry: key, ranks, and the positions of the corners, two to a word
    static constexpr int64_t simplex_stride = 2 + (D + 2) / 2;

    TouchedKeys(const LinearKeys<D, W>& linear, int64_t max_points)
        : linear_(linear),
          list_memory_(sizeof(uint64_t) * (max_points * (linear.d + 1) + 1) * linear.num_words),
          vertex_memory_(sizeof(uint64_t) * (linear.num_words + 1) << vertex_bits),
          simplex_memory_(has_simplices ? sizeof(uint64_t) * simplex_stride << simplex_bits : 0),
          list_(as<uint64_t>(list_memory_)),
          vertices_(as<uint64_t>(vertex_memory_)),
          simplices_(as<uint64_t>(simplex_memory_)) {}

    void start() {
        count_ = 0;
        caching_ = true;
        std::memset(vertices_, 0xff, vertex_memory_.size());
        if (has_simplices) std::memset(simplices_, 0xff, simplex_memory_.size());
    }

    // After the first points of a chunk: if they hardly shared a corner, the caches only cost time.
    void adapt(int64_t points) { caching_ = 8 * count_ < 7 * points * (linear_.d + 1); }

    const uint64_t* keys() const { return list_; }
    int64_t count() const { return count_; }

    // Writes the positions in the list of all corners of `points` points to `out [points, d + 1]`, given the keys of
    // their first corners and their ranks, by lane.
    void add(const uint64_t* keys, const Integer<T>* packed_ranks, const Integer<T>* ranks, int64_t points,
             int32_t* out) {
        const int64_t d = linear_.d, words = linear_.num_words;
        // local, so that it stays in a register whatever is written
        int64_t count = count_;
        if (!caching_) {
            for (int64_t l = 0; l < points; ++l) append_corners(keys + l * words, ranks + l, out + l * (d + 1), count);
        } else if constexpr (has_simplices) {
            add_simplices(keys, packed_ranks, ranks, points, out, count);
        } else {
            for (int64_t l = 0; l < points; ++l) {
                for_corners(keys + l * words, ranks + l, [&](int64_t j, const uint64_t* key, int64_t) {
                    out[l * (d + 1) + j] = find_or_append(key, words, count);
                });
            }
        }
        count_ = count;
    }

private:
    // Looks all points up before it adds the missing ones: a mispredicted branch would discard the work that the
    // processor has begun for the next points.
    void add_simplices(const uint64_t* keys, const Integer<T>* packed_ranks, const Integer<T>* ranks, int64_t points,
                       int32_t* out, int64_t& count) {
        uint64_t* entries[lanes<T>];
        int64_t missing[lanes<T>], num_missing = 0;
        for (int64_t l = 0; l < points; ++l) {
            const uint64_t hash = mix(keys[l] + uint64_t(packed_ranks[l]) * 0x9e3779b97f4a7c15u);
            entries[l] = simplices_ + (hash >> (64 - simplex_bits)) * simplex_stride;
        }
        for (int64_t l = 0; l < points; ++l) {
            std::memcpy(out + l * (D + 1), entries[l] + 2, sizeof(int32_t) * (D + 1));
            missing[num_missing] = l;
            num_missing += differs(entries[l], keys[l], uint64_t(packed_ranks[l]));
        }
        for (int64_t n = 0; n < num_missing; ++n) {
            const int64_t l = missing[n];
            uint64_t* entry = entries[l];
            int32_t* to = out + l * (D + 1);
            int32_t* positions = reinterpret_cast<int32_t*>(entry + 2);
            // a point before it in this vector may have added it
            if (differs(entry, keys[l], uint64_t(packed_ranks[l])) == 0) {
                for (int64_t j = 0; j <= D; ++j) to[j] = positions[j];
                continue;
            }
            entry[0] = keys[l];
            entry[1] = uint64_t(packed_ranks[l]);
            // written to both places: copying the entry would stall, since its loads would span several recent stores
            auto add = [&](int64_t j, const uint64_t* key, int64_t words)
                           PERMUTOHEDRAL_INLINE_LAMBDA { to[j] = positions[j] = find_or_append(key, words, count); };
            for_corners(keys + l, ranks + l, add);
        }
    }

    // 1 or 0, by arithmetic: a comparison would be compiled to a branch.
    static PERMUTOHEDRAL_INLINE int64_t differs(const uint64_t* entry, uint64_t key, uint64_t packed_ranks) {
        const uint64_t difference = (entry[0] ^ key) | (entry[1] ^ packed_ranks);
        return int64_t((difference | -difference) >> 63);
    }

    // Calls function(j, key, words) for the d+1 corners.
    template <class Function>
    PERMUTOHEDRAL_INLINE void for_corners(const uint64_t* first, const Integer<T>* ranks, Function&& function) {
        const int64_t d = linear_.d, words = linear_.num_words;
        // what to add after the corner of each rank
        const uint64_t* steps[capacity<D> + 1];
        for (int64_t i = 0; i <= d; ++i) steps[i] = linear_.step;
        for (int64_t i = 0; i <= d; ++i) steps[ranks[i * lanes<T>]] = linear_.step + i * words;
        uint64_t key[capacity_for<W, max_columns>];
        for (int64_t w = 0; w < words; ++w) key[w] = first[w];
        for (int64_t j = 0; j <= d; ++j) {
            function(j, key, words);
            for (int64_t w = 0; w < words; ++w) key[w] += steps[d - j][w];
        }
    }

    PERMUTOHEDRAL_INLINE void append_corners(const uint64_t* first, const Integer<T>* ranks, int32_t* out,
                                             int64_t& count) {
        const int64_t d = linear_.d;
        for_corners(first, ranks, [&](int64_t j, const uint64_t* key, int64_t words) PERMUTOHEDRAL_INLINE_LAMBDA {
            for (int64_t w = 0; w < words; ++w) list_[(count + j) * words + w] = key[w];
            out[j] = int32_t(count + j);
        });
        count += d + 1;
    }

    // The key is always written to the end of the list, and stays there if it is new.
    PERMUTOHEDRAL_INLINE int32_t find_or_append(const uint64_t* key, int64_t words, int64_t& count) {
        const uint64_t place = hash_key<W>(key, words) >> (64 - vertex_bits);
        uint64_t* entry = vertices_ + place * (Extent<W>(words) + 1);
        uint64_t* appended = list_ + count * words;
        uint64_t difference = 0;
        for (int64_t w = 0; w < words; ++w) {
            difference |= entry[w] ^ key[w];
            entry[w] = appended[w] = key[w];
        }
        const uint64_t is_new = (difference | -difference) >> 63;
        const uint64_t position = entry[words] + ((uint64_t(count) - entry[words]) & -is_new);
        entry[words] = position;
        count += int64_t(is_new);
        return int32_t(position);
    }

    const LinearKeys<D, W>& linear_;
    int64_t count_ = 0;
    bool caching_ = true;
    Memory list_memory_, vertex_memory_, simplex_memory_;
    uint64_t* const list_;
    uint64_t* const vertices_;
    uint64_t* const simplices_;
};

}  // namespace
}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
