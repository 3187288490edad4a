// index_points up to the merge, and the derivatives of the barycentric weights. Compiled once per instruction set.
#include "index/embedding.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "index/bucket_sort.hpp"
#include "index/touched_keys.hpp"
#include "kernels.hpp"
#include "index/number_by_cells.hpp"
#include "index/digit_ranges.hpp"
#include "runtime/threads.hpp"
#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {
namespace {

// after so many points of a chunk it is decided whether caches pay
constexpr int64_t trial_points = 1024;
// fewer points, or fewer lattice points, stay in the caches
constexpr int64_t least_sorted = 65536;
constexpr int64_t slab_points = 8192, max_slabs = 256, sampled_steps = 1024;

// One block of points in lanes: keys of their first corners by lane, and their ranks packed by four bits each.
template <class T, int D, int W>
struct LaneKeys {
    uint64_t key[lanes<T> * (W > 0 ? W : max_columns)];
    Whole<T> packed_ranks[lanes<T>];
};

template <class T, int D, int W>
inline void find_keys(const Simplex<T, D>& simplex, const KeyMap<D, W>& map, const int32_t* batch, int64_t count,
                      LaneKeys<T, D, W>& out) {
    const int64_t d = D > 0 ? D : map.d, words = W > 0 ? W : map.words;
    if constexpr (KeyCollector<T, D, W>::has_simplices) {
        WholeVector<T> packed = simplex.rank[0];
        for (int64_t i = 1; i <= d; ++i) packed |= simplex.rank[i] << Whole<T>(4 * i);
        store<Whole<T>, lanes<T>>(out.packed_ranks, packed);
    }
    for (int64_t w = 0; w < words; ++w) {
        uint64_t key[lanes<T>];
        for (int l = 0; l < lanes<T>; ++l) key[l] = map.constant[w];
        for (int64_t i = 0; i < d; ++i) {
            const uint64_t factor = map.cell[i * words + w];
            for (int l = 0; l < lanes<T>; ++l) key[l] += uint64_t(int64_t(simplex.cell[i][l])) * factor;
        }
        if (batch != nullptr) {
            for (int l = 0; l < count; ++l) key[l] += uint64_t(batch[l]) * map.item[w];
        }
        for (int l = 0; l < lanes<T>; ++l) out.key[l * words + w] = key[l];
    }
}

template <class T, int D, int W>
void collect_chunk(const Points<T>& points, Index& index, int64_t chunk, const KeyMap<D, W>& map,
                   KeyCollector<T, D, W>& collector, T* barycentric) {
    const int64_t d = D > 0 ? D : points.d;
    const Elevation<T> elevation = make_elevation<T>(d);
    const int64_t last = std::min((chunk + 1) * index.chunk_rows, points.points);
    Vector<T> features[room<D>], weights[room<D> + 1];
    Simplex<T, D> simplex;
    LaneKeys<T, D, W> found;
    collector.start();
    const int64_t first = chunk * index.chunk_rows;
    for (int64_t begin = first; begin < last; begin += lanes<T>) {
        if (begin - first == trial_points) collector.adapt(trial_points);
        const int64_t count = std::min<int64_t>(lanes<T>, last - begin);
        load_points<T, D>(points.features + begin * d, d, count, features);
        find_simplex<T, D>(features, d, elevation, simplex);
        find_barycentric<T, D>(simplex, d, weights);
        find_keys<T, D, W>(simplex, map, points.batch == nullptr ? nullptr : points.batch + begin, count, found);
        store_weights<T, D>(weights, d, count, barycentric + begin * (d + 1));
        const Whole<T>* ranks = reinterpret_cast<const Whole<T>*>(simplex.rank);
        collector.add(found.key, found.packed_ranks, ranks, count, index.vertices + begin * (d + 1));
    }
    index.store_chunk(chunk, collector.keys(), collector.count());
}

// First corners of some points all over, to cut the range of keys into parts.
template <class T, int D, int W>
void sample_keys(const Points<T>& points, Index& index, const KeyMap<D, W>& map) {
    constexpr int64_t wanted = 4096;
    const int64_t d = D > 0 ? D : points.d, words = W > 0 ? W : map.words;
    const Elevation<T> elevation = make_elevation<T>(d);
    const int64_t blocks = std::min(wanted, points.points) / lanes<T>;
    const Memory sample(sizeof(uint64_t) * blocks * lanes<T> * words);
    Vector<T> features[room<D>];
    Simplex<T, D> simplex;
    LaneKeys<T, D, W> found;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = block_range(points.points, blocks, b).begin;
        load_points<T, D>(points.features + begin * d, d, lanes<T>, features);
        find_simplex<T, D>(features, d, elevation, simplex);
        find_keys<T, D, W>(simplex, map, points.batch == nullptr ? nullptr : points.batch + begin, lanes<T>, found);
        std::memcpy(as<uint64_t>(sample) + b * lanes<T> * words, found.key, sizeof(uint64_t) * lanes<T> * words);
    }
    index.choose_parts(as<uint64_t>(sample), blocks * lanes<T>);
}

template <class T, int D, int W>
void collect(const Points<T>& points, Index& index, T* barycentric) {
    const KeyMap<D, W> map(index.packing);
    sample_keys<T, D, W>(points, index, map);
    // one collector per thread, made by the thread that uses it
    std::vector<std::unique_ptr<KeyCollector<T, D, W>>> collectors(index.threads);
    parallel_for(index.threads, index.num_chunks, [&](int64_t chunk, int worker) {
        std::unique_ptr<KeyCollector<T, D, W>>& collector = collectors[worker];
        const int64_t rows = std::min(index.chunk_rows, index.rows);
        if (!collector) collector = std::make_unique<KeyCollector<T, D, W>>(map, rows);
        collect_chunk<T, D, W>(points, index, chunk, map, *collector, barycentric);
    });
}

// Slabs of points that are near each other, by the first feature: the digit of c_1 depends on it alone.
template <class T>
struct Slabs {
    const T* features;
    int64_t d, count;
    T factor, offset;

    Slabs(const Points<T>& points, const DigitRange& range)
        : features(points.features),
          d(points.d),
          count(std::clamp(points.points / slab_points, int64_t{2}, max_slabs)) {
        const T low = T(range.low[2]), values = T(range.high[2]) - low + 1;
        factor = T(2) * make_elevation<T>(d).scale[0] / T(d + 1) * T(count) / values;
        offset = -low * T(count) / values;
    }

    int64_t operator()(int64_t point) const {
        return std::clamp(int64_t(features[point * d] * factor + offset), int64_t{0}, count - 1);
    }
};

// Whether points that follow each other lie far apart, on so many lattice points that the caches do not hold them.
template <class T>
bool is_scattered(const Points<T>& points, const DigitRange& range, const Slabs<T>& slabs) {
    double cells = 1;
    for (int64_t column = 1; column <= points.d; ++column) cells *= double(range.high[column] - range.low[column]);
    if (cells < double(least_sorted)) return false;
    int64_t num_far = 0;
    for (int64_t s = 0; s < sampled_steps; ++s) {
        const int64_t point = block_range(points.points - 1, sampled_steps, s).begin;
        const int64_t step = slabs(point + 1) - slabs(point);
        num_far += step > 1 || step < -1;
    }
    return 2 * num_far > sampled_steps;
}

// The points slab by slab, where that is allowed and pays; `sorted` holds their features.
template <class T, int D>
Points<T> sort_points(const Points<T>& points, const DigitRange& range, Index& index, Memory& sorted) {
    const bool sortable = points.d > 1 && points.points >= least_sorted && points.points < int64_t(UINT32_MAX);
    if (!index.may_reorder || !sortable || points.batch != nullptr) return points;
    const Slabs<T> slabs(points, range);
    if (!is_scattered(points, range, slabs)) return points;
    const int64_t d = D > 0 ? D : points.d;
    sorted = Memory(sizeof(T) * points.points * d);
    uint32_t* order = index.reorder();
    Buckets<Slabs<T>>(points.points, slabs.count, slabs).place(index.threads, [&](int64_t point, int64_t place) {
        order[place] = uint32_t(point);
        std::memcpy(as<T>(sorted) + place * d, points.features + point * d, sizeof(T) * d);
    });
    return {as<T>(sorted), nullptr, points.points, points.d};
}

template <class T, int D>
bool index_points_in(const Points<T>& given, T limit, Index& index, T* barycentric) {
    Digits digits{};
    if (!measure_points<T, D>(given, limit, index.threads, digits)) return false;
    measure_batch(given.batch, given.points, digits.range);
    index.packing = plan_packing(given.d + 1, true, digits.range, digits.reduction);
    Memory sorted;
    const Points<T> points = sort_points<T, D>(given, digits.range, index, sorted);
    if constexpr (D > 0) {
        const int64_t most = std::min(most_cells, cells_per_corner * points.points * (D + 1));
        if (digits.exact && index.packing.words == 1 &&
            plan_grid(points.d + 1, digits.range, digits.reduction, most, index.grid)) {
            mark_and_number<T, D>(points, index, barycentric);
            return true;
        }
    }
    if (index.packing.words == 1) {
        collect<T, D, 1>(points, index, barycentric);
    } else {
        collect<T, D, 0>(points, index, barycentric);
    }
    index.merge();
    return true;
}

}  // namespace

template <class T>
bool index_points(const Points<T>& points, T limit, Index& index, T* barycentric) {
    switch (points.d) {
        case 1: return index_points_in<T, 1>(points, limit, index, barycentric);
        case 2: return index_points_in<T, 2>(points, limit, index, barycentric);
        case 3: return index_points_in<T, 3>(points, limit, index, barycentric);
        case 4: return index_points_in<T, 4>(points, limit, index, barycentric);
        case 5: return index_points_in<T, 5>(points, limit, index, barycentric);
        case 6: return index_points_in<T, 6>(points, limit, index, barycentric);
        default: return index_points_in<T, 0>(points, limit, index, barycentric);
    }
}

namespace {

// Calls function(point, ranks by coordinate) for every point.
template <class T, class Function>
void for_each_simplex(const Points<T>& points, int threads, Function&& function) {
    const Elevation<T> elevation = make_elevation<T>(points.d);
    parallel_ranges(threads, points.points, point_block, [&](int64_t first, int64_t last, int) {
        Vector<T> features[max_dimension];
        Simplex<T, 0> simplex;
        int32_t ranks[max_dimension + 1];
        for (int64_t begin = first; begin < last; begin += lanes<T>) {
            const int64_t count = std::min<int64_t>(lanes<T>, last - begin);
            load_points<T, 0>(points.features + begin * points.d, points.d, count, features);
            find_simplex<T, 0>(features, points.d, elevation, simplex);
            for (int64_t l = 0; l < count; ++l) {
                for (int64_t i = 0; i <= points.d; ++i) ranks[i] = int32_t(simplex.rank[i][l]);
                function(begin + l, ranks, elevation);
            }
        }
    });
}

}  // namespace

template <class T>
void embed_gradient(const Points<T>& points, const T* gradient, T* out, int threads) {
    const int64_t d = points.d;
    for_each_simplex(points, threads, [=](int64_t point, const int32_t* ranks, const Elevation<T>& elevation) {
        const T* row = gradient + point * (d + 1);
        // the coordinate of rank r adds to b_{d-r} and takes from b_{d+1-r}, indices modulo d+1
        auto coordinate = [&](int64_t i) {
            return row[d - ranks[i]] - row[ranks[i] == 0 ? 0 : d + 1 - ranks[i]];
        };
        T sum = coordinate(0);
        for (int64_t j = 1; j <= d; ++j) {
            const T own = coordinate(j);
            out[point * d + j - 1] = elevation.scale[j - 1] * (sum - T(j) * own) / T(d + 1);
            sum += own;
        }
    });
}

template <class T>
void embed_differential(const Points<T>& points, const T* differential, T* out, int threads) {
    const int64_t d = points.d;
    for_each_simplex(points, threads, [=](int64_t point, const int32_t* ranks, const Elevation<T>& elevation) {
        T ascending[max_dimension + 1] = {0};
        T sum = 0;
        for (int64_t j = d; j > 0; --j) {
            const T scaled = differential[point * d + j - 1] * elevation.scale[j - 1] / T(d + 1);
            ascending[d - ranks[j]] = sum - T(j) * scaled;
            sum += scaled;
        }
        ascending[d - ranks[0]] = sum;
        for (int64_t j = 0; j <= d; ++j) out[point * (d + 1) + j] = ascending[j] - ascending[j == 0 ? d : j - 1];
    });
}

template bool index_points(const Points<float>&, float, Index&, float*);
template bool index_points(const Points<double>&, double, Index&, double*);
template void embed_gradient(const Points<float>&, const float*, float*, int);
template void embed_gradient(const Points<double>&, const double*, double*, int);
template void embed_differential(const Points<float>&, const float*, float*, int);
template void embed_differential(const Points<double>&, const double*, double*, int);

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
