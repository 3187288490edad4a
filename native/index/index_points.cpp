// index_points: from points to numbered vertices. Compiled once per instruction set.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "index/bucket_sort.hpp"
#include "index/digit_ranges.hpp"
#include "index/embedding.hpp"
#include "index/number_by_cells.hpp"
#include "index/touched_keys.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

// points of a chunk after which TouchedKeys decides whether its caches pay off
constexpr int64_t trial_points = 1024;
// fewer points, or fewer lattice points, stay in the processor's caches in any order
constexpr int64_t least_sorted = 65536;
constexpr int64_t slab_points = 8192, max_slabs = 256, sampled_steps = 1024;

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

// Slabs of the space of features, cut along the first feature: the most significant digit, of c_1, depends on it alone,
// so points of a slab have keys near each other.
template <class T>
struct Slabs {
    const T* features;
    int64_t d, num_slabs;
    T factor, offset;

    Slabs(const Points<T>& points, const DigitRange& range)
        : features(points.features),
          d(points.d),
          num_slabs(std::clamp(points.num_points / slab_points, int64_t{2}, max_slabs)) {
        const T low = T(range.low[2]), num_values = T(range.high[2]) - low + 1;
        factor = T(2) * make_elevation<T>(d).scale[0] / T(d + 1) * T(num_slabs) / num_values;
        offset = -low * T(num_slabs) / num_values;
    }

    // The slab of a point.
    int64_t operator()(int64_t point) const {
        return std::clamp(int64_t(features[point * d] * factor + offset), int64_t{0}, num_slabs - 1);
    }
};

// Whether consecutive points lie far apart, on more lattice points than the caches hold.
template <class T>
bool are_points_scattered(const Points<T>& points, const DigitRange& range, const Slabs<T>& slabs) {
    double cells = 1;
    for (int64_t column = 1; column <= points.d; ++column) cells *= double(range.high[column] - range.low[column]);
    if (cells < double(least_sorted)) return false;
    int64_t num_far = 0;
    for (int64_t s = 0; s < sampled_steps; ++s) {
        const int64_t point = block_range(points.num_points - 1, sampled_steps, s).begin;
        const int64_t step = slabs(point + 1) - slabs(point);
        num_far += step > 1 || step < -1;
    }
    return 2 * num_far > sampled_steps;
}

// The points slab by slab, where that is allowed and pays off; their features are then in `sorted`.
template <class T, int D>
Points<T> sort_points(const Points<T>& points, const DigitRange& range, VertexIndex& index, Memory& sorted) {
    const bool sortable = points.d > 1 && points.num_points >= least_sorted && points.num_points < int64_t(UINT32_MAX);
    if (!index.may_reorder || !sortable || points.batch != nullptr) return points;
    const Slabs<T> slabs(points, range);
    if (!are_points_scattered(points, range, slabs)) return points;
    const Extent<D> d(points.d);
    sorted = Memory(sizeof(T) * points.num_points * d);
    uint32_t* order = index.reorder();
    BucketSort<Slabs<T>>(points.num_points, slabs.num_slabs, slabs)
        .for_each_place(index.threads, [&](int64_t point, int64_t place) {
            order[place] = uint32_t(point);
            std::memcpy(as<T>(sorted) + place * d, points.features + point * d, sizeof(T) * d);
        });
    return {as<T>(sorted), nullptr, points.num_points, points.d};
}

template <class T, int D>
bool index_points_in(const Points<T>& given, T limit, VertexIndex& index, T* barycentric) {
    KeyDigits digits{};
    if (!find_digit_ranges<T, D>(given, limit, index.threads, digits)) return false;
    find_item_range(given.batch, given.num_points, digits.range);
    index.packing = plan_packing(given.d + 1, true, digits.range, digits.reduction);
    Memory sorted;
    const Points<T> points = sort_points<T, D>(given, digits.range, index, sorted);
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

}  // namespace

template <class T>
bool index_points(const Points<T>& points, T limit, VertexIndex& index, T* barycentric) {
    return dispatch<1, 2, 3, 4, 5, 6, 0>(points.d, [&](auto dimension) {
        return index_points_in<T, decltype(dimension)::value>(points, limit, index, barycentric);
    });
}

template bool index_points(const Points<float>&, float, VertexIndex&, float*);
template bool index_points(const Points<double>&, double, VertexIndex&, double*);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
