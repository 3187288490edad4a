// The derivatives of the barycentric weights. Compiled once per instruction set.
#include <algorithm>

#include "index/embedding.hpp"
#include "runtime/kernel_table.hpp"
#include "runtime/threads.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {
namespace {

constexpr int64_t points_per_task = 8192;

// Calls function(point, ranks by coordinate, elevation) for every point.
template <class T, class Function>
void for_each_simplex(const Points<T>& points, int threads, Function&& function) {
    const Elevation<T> elevation = make_elevation<T>(points.d);
    parallel_ranges(threads, points.num_points, points_per_task, [&](int64_t first, int64_t last, int) {
        Vector<T> features[max_dimension];
        SimplexLanes<T, 0> simplex;
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
        auto coordinate = [&](int64_t i) { return row[d - ranks[i]] - row[ranks[i] == 0 ? 0 : d + 1 - ranks[i]]; };
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

template void embed_gradient(const Points<float>&, const float*, float*, int);
template void embed_gradient(const Points<double>&, const double*, double*, int);
template void embed_differential(const Points<float>&, const float*, float*, int);
template void embed_differential(const Points<double>&, const double*, double*, int);

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
