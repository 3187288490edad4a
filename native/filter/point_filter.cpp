#include "filter/point_filter.hpp"

#include "index/neighbors.hpp"
#include "runtime/instruction_sets.hpp"

namespace permutohedral {

template <class T>
PointFilter<T>::PointFilter(int64_t num_points, int64_t num_corners, int threads)
    : vertices_(sizeof(int32_t) * num_points * num_corners),
      barycentric_(sizeof(T) * num_points * num_corners),
      index_(num_points, num_corners, as<int32_t>(vertices_), threads) {}

template <class T>
std::unique_ptr<PointFilter<T>> PointFilter<T>::index(const Points<T>& points, T limit, bool may_reorder, int threads) {
    std::unique_ptr<PointFilter> filter(new PointFilter(points.num_points, points.d + 1, threads));
    filter->index_.may_reorder = may_reorder;
    const bool fits = kernels<T>().index_points(points, limit, filter->index_, as<T>(filter->barycentric_));
    return fits ? std::move(filter) : nullptr;
}

template <class T>
int64_t PointFilter<T>::num_lattice_points() const {
    return index_.num_lattice_points;
}

template <class T>
void PointFilter<T>::filter(Matrix<const T> values, const int32_t* axis_offsets, int64_t num_axes, T added_mass,
                            Matrix<T> out, int threads) {
    const int64_t num_lattice_points = index_.num_lattice_points, filter_size = 2 * num_axes;
    const Memory table(sizeof(int64_t) * index_.table_size());
    const Memory neighbors(sizeof(int32_t) * num_lattice_points * filter_size);
    index_.finish(nullptr, as<int64_t>(table));
    NeighborQuery query{};
    query.table = as<int64_t>(table);
    query.table_size = index_.table_size();
    query.num_targets = num_lattice_points;
    query.offsets = axis_offsets;
    query.filter_size = filter_size;
    query.same = true;
    find_neighbors(query, as<int32_t>(neighbors), threads);
    GaussianFilter<T> gaussian{};
    gaussian.source = {as<int32_t>(vertices_), as<T>(barycentric_), index_.num_points, index_.num_corners};
    gaussian.target = gaussian.source;
    gaussian.axis_neighbors = as<int32_t>(neighbors);
    gaussian.num_axes = num_axes;
    gaussian.num_lattice_points = num_lattice_points;
    gaussian.added_mass = added_mass;
    gaussian.order = index_.order();
    kernels<T>().filter_gaussian(gaussian, values, out, threads);
}

template class PointFilter<float>;
template class PointFilter<double>;

}  // namespace permutohedral
