// index_points: from points to numbered vertices.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "index/cell_marks.hpp"
#include "index/digit_ranges.hpp"
#include "index/embedding.hpp"
#include "index/key_packing.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/simd.hpp"
#include "runtime/threads.hpp"

namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// The packed key of the first corner as an affine function of the SimplexLanes::cell, and what each step to the next
// corner adds. D is the dimension and W the number of words if known at compile time, else 0.
template <int D, int W>
struct LinearKeys {
    Extent<D> d;
    Extent<W> num_words;
    Memory memory;
    uint64_t* constant;  // [num_words]
    uint64_t* item;      // [num_words], times the batch item
    uint64_t* cell;      // [d, num_words], times cell i
    uint64_t* step;      // [d + 1, num_words], from a corner to the next, which is lower by d+1 along coordinate i

    // Of keys packed by a KeyPacking, or by a CellGrid.
    template <class Packing>
    explicit LinearKeys(const Packing& packing)
        : d(packing.num_columns - 1),
          num_words(packing.num_words),
          memory(sizeof(uint64_t) * num_words * (2 * d + 3)),
          constant(as<uint64_t>(memory)),
          item(constant + num_words),
          cell(item + num_words),
          step(cell + d * num_words) {
        int64_t key[max_columns] = {1};
        pack_origin(packing, constant);
        pack_linear(packing, key, item);
        key[0] = 0;
        for (int64_t i = 0; i < d; ++i) {
            key[i + 1] = d + 1;
            pack_linear(packing, key, cell + i * num_words);
            key[i + 1] = 0;
        }
        for (int64_t i = 0; i <= d; ++i) {
            for (int64_t j = 0; j < d; ++j) key[j + 1] = i == j ? -d : 1;
            pack_linear(packing, key, step + i * num_words);
        }
    }
};

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

// The cells of all corners of the points in lanes.
template <class T, int D>
inline void find_cells(const SimplexLanes<T, D>& simplex, const LinearKeys<D, 1>& linear, int64_t num_cells,
                       const int32_t* batch, int64_t count, IntegerVector<T>* cells) {
    // unsigned, so that it may wrap: the terms may be larger than the sum
    using Unsigned = std::make_unsigned_t<Integer<T>>;
    using U = typename VectorOf<Unsigned, lanes<T>>::type;
    U cell = U{} + Unsigned(linear.constant[0]);
    for (int64_t i = 0; i < D; ++i) cell += (U)simplex.cell[i] * Unsigned(linear.cell[i]);
    if (batch != nullptr) {
        for (int64_t l = 0; l < count; ++l) cell[l] += Unsigned(batch[l]) * Unsigned(linear.item[0]);
    }
    const U last = U{} + Unsigned(num_cells - 1);
    for (int64_t j = 0; j <= D; ++j) {
        // if another thread modifies the features meanwhile the lattice is wrong, but every write stays in the grid
        cells[j] = (IntegerVector<T>)(cell < last ? cell : last);
        for (int64_t i = 0; i <= D && j < D; ++i) {
            cell += simplex.rank[i] == Integer<T>(D - j) ? U{} + Unsigned(linear.step[i]) : U{};
        }
    }
}

// From lanes to a matrix [count, d + 1].
template <class T, int D>
inline void store_cells(const IntegerVector<T>* columns, int64_t count, int32_t* rows) {
    if constexpr (sizeof(T) == 4) return store_weights<int32_t, D>(columns, D, count, rows);
    for (int64_t l = 0; l < count; ++l) {
        for (int64_t j = 0; j <= D; ++j) rows[l * (D + 1) + j] = int32_t(columns[j][l]);
    }
}

// Writes the cell of every corner to `vertices`, and marks it.
template <class T, int D>
void mark_points(const Points<T>& points, const CellGrid& grid, const LinearKeys<D, 1>& linear, Range range,
                 CellGroup* marks, int32_t* vertices, T* barycentric) {
    const Elevation<T> elevation = make_elevation<T>(D);
    Vector<T> features[D], weights[D + 1];
    IntegerVector<T> cells[D + 1];
    SimplexLanes<T, D> simplex;
    for (int64_t begin = range.begin; begin < range.end; begin += lanes<T>) {
        const int64_t count = std::min<int64_t>(lanes<T>, range.end - begin);
        load_points<T, D>(points.features + begin * D, D, count, features);
        find_simplex<T, D>(features, D, elevation, simplex);
        find_barycentric<T, D>(simplex, D, weights);
        const int32_t* batch = points.batch == nullptr ? nullptr : points.batch + begin;
        find_cells<T, D>(simplex, linear, grid.num_cells, batch, count, cells);
        store_weights<T, D>(weights, D, count, barycentric + begin * (D + 1));
        int32_t* rows = vertices + begin * (D + 1);
        store_cells<T, D>(cells, count, rows);
        for (int64_t i = 0; i < count * (D + 1); ++i) mark_cell(marks, uint32_t(rows[i]));
    }
}

template <class T, int D>
void number_by_cells(const Points<T>& points, VertexIndex& index, T* barycentric) {
    static_assert(D <= max_grid_dimension, "see write_packed_keys");
    CellGrid& grid = index.grid;
    const LinearKeys<D, 1> linear(grid);
    clear_marks(grid, index.threads);
    CellGroup* marks = as<CellGroup>(grid.groups);
    parallel_ranges(index.threads, points.num_points, points_per_task, [&](int64_t begin, int64_t end, int) {
        mark_points<T, D>(points, grid, linear, {begin, end}, marks, index.vertices, barycentric);
    });
    number_marked_cells(index);
}

// points of a chunk after which TouchedKeys decides whether its caches pay off
constexpr int64_t trial_points = 1024;

// For one vector of points, by lane: the keys of their first corners, and their ranks, packed by four bits each.
template <class T, int D, int W>
struct LaneKeys {
    uint64_t key[lanes<T> * capacity_for<W, max_columns>];
    Integer<T> packed_ranks[lanes<T>];
};

template <class T, int D, int W>
inline void find_keys(const SimplexLanes<T, D>& simplex, const LinearKeys<D, W>& linear, const int32_t* batch,
                      int64_t count, LaneKeys<T, D, W>& out) {
    const int64_t d = linear.d, words = linear.num_words;
    if constexpr (TouchedKeys<T, D, W>::has_simplices) {
        IntegerVector<T> packed = simplex.rank[0];
        for (int64_t i = 1; i <= d; ++i) packed |= simplex.rank[i] << Integer<T>(4 * i);
        store<Integer<T>, lanes<T>>(out.packed_ranks, packed);
    }
    for (int64_t w = 0; w < words; ++w) {
        uint64_t key[lanes<T>];
        for (int l = 0; l < lanes<T>; ++l) key[l] = linear.constant[w];
        for (int64_t i = 0; i < d; ++i) {
            const uint64_t factor = linear.cell[i * words + w];
            for (int l = 0; l < lanes<T>; ++l) key[l] += uint64_t(int64_t(simplex.cell[i][l])) * factor;
        }
        if (batch != nullptr) {
            for (int l = 0; l < count; ++l) key[l] += uint64_t(batch[l]) * linear.item[w];
        }
        for (int l = 0; l < lanes<T>; ++l) out.key[l * words + w] = key[l];
    }
}

template <class T, int D, int W>
void collect_chunk(const Points<T>& points, VertexIndex& index, int64_t chunk, const LinearKeys<D, W>& linear,
                   TouchedKeys<T, D, W>& touched, T* barycentric) {
    const Extent<D> d(points.d);
    const Elevation<T> elevation = make_elevation<T>(d);
    const int64_t last = std::min((chunk + 1) * index.chunk_points, points.num_points);
    Vector<T> features[capacity<D>], weights[capacity<D> + 1];
    SimplexLanes<T, D> simplex;
    LaneKeys<T, D, W> lane_keys;
    touched.start();
    const int64_t first = chunk * index.chunk_points;
    for (int64_t begin = first; begin < last; begin += lanes<T>) {
        if (begin - first == trial_points) touched.adapt(trial_points);
        const int64_t count = std::min<int64_t>(lanes<T>, last - begin);
        load_points<T, D>(points.features + begin * d, d, count, features);
        find_simplex<T, D>(features, d, elevation, simplex);
        find_barycentric<T, D>(simplex, d, weights);
        find_keys<T, D, W>(simplex, linear, points.batch == nullptr ? nullptr : points.batch + begin, count, lane_keys);
        store_weights<T, D>(weights, d, count, barycentric + begin * (d + 1));
        const Integer<T>* ranks = reinterpret_cast<const Integer<T>*>(simplex.rank);
        touched.add(lane_keys.key, lane_keys.packed_ranks, ranks, count, index.vertices + begin * (d + 1));
    }
    index.store_chunk(chunk, touched.keys(), touched.count());
}

// The first corners of a sample of the points, by which the keys are divided into ranges.
template <class T, int D, int W>
void sample_keys(const Points<T>& points, VertexIndex& index, const LinearKeys<D, W>& linear) {
    constexpr int64_t wanted = 4096;
    const Extent<D> d(points.d);
    const int64_t words = linear.num_words;
    const Elevation<T> elevation = make_elevation<T>(d);
    const int64_t blocks = std::min(wanted, points.num_points) / lanes<T>;
    const Memory sample(sizeof(uint64_t) * blocks * lanes<T> * words);
    Vector<T> features[capacity<D>];
    SimplexLanes<T, D> simplex;
    LaneKeys<T, D, W> lane_keys;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = block_range(points.num_points, blocks, b).begin;
        load_points<T, D>(points.features + begin * d, d, lanes<T>, features);
        find_simplex<T, D>(features, d, elevation, simplex);
        find_keys<T, D, W>(simplex, linear, points.batch == nullptr ? nullptr : points.batch + begin, lanes<T>,
                           lane_keys);
        std::memcpy(as<uint64_t>(sample) + b * lanes<T> * words, lane_keys.key, sizeof(uint64_t) * lanes<T> * words);
    }
    index.choose_ranges(as<uint64_t>(sample), blocks * lanes<T>);
}

template <class T, int D, int W>
void number_by_hashing(const Points<T>& points, VertexIndex& index, T* barycentric) {
    const LinearKeys<D, W> linear(index.packing);
    sample_keys<T, D, W>(points, index, linear);
    // one list per thread, allocated by the thread that uses it
    std::vector<std::unique_ptr<TouchedKeys<T, D, W>>> lists(index.threads);
    parallel_for(index.threads, index.num_chunks, [&](int64_t chunk, int worker) {
        std::unique_ptr<TouchedKeys<T, D, W>>& list = lists[worker];
        const int64_t most = std::min(index.chunk_points, index.num_points);
        if (!list) list = std::make_unique<TouchedKeys<T, D, W>>(linear, most);
        collect_chunk<T, D, W>(points, index, chunk, linear, *list, barycentric);
    });
}

template <class T, int D>
bool index_points_in(const Points<T>& points, T limit, VertexIndex& index, T* barycentric) {
    KeyDigits digits{};
    if (!find_digit_ranges<T, D>(points, limit, index.threads, digits)) return false;
    find_item_range(points.batch, points.num_points, digits.range);
    index.packing = plan_packing(points.d + 1, digits.range, digits.reduction);
    if constexpr (D > 0) {
        if (digits.exact && index.packing.num_words == 1 &&
            plan_grid(D + 1, digits.range, digits.reduction, points.num_points * (D + 1), index.grid)) {
            number_by_cells<T, D>(points, index, barycentric);
            return true;
        }
    }
    if (index.packing.num_words == 1) {
        number_by_hashing<T, D, 1>(points, index, barycentric);
    } else {
        // keys this wide are rare in few dimensions: compiled once, for any number
        number_by_hashing<T, 0, 0>(points, index, barycentric);
    }
    index.merge();
    return true;
}

template <class T>
bool index_points(const Points<T>& points, T limit, VertexIndex& index, T* barycentric) {
    return dispatch<1, 2, 3, 4, 5, 6, 0>(points.d, [&](auto dimension) {
        return index_points_in<T, decltype(dimension)::value>(points, limit, index, barycentric);
    });
}

}  // namespace
}  // namespace permutohedral::PERMUTOHEDRAL_INSTRUCTION_SET
