// The normalized Gaussian between points, from their features: index_points, find_neighbors and filter_gaussian, but the
// simplices stay in the core, and may come in another order than the points.
#pragma once

#include <memory>

#include "index/vertex_index.hpp"
#include "kernels.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {

template <class T>
class PointFilter {
public:
    // Null if a coordinate does not fit below `limit`.
    static std::unique_ptr<PointFilter> index(const Points<T>& points, T limit, bool may_reorder, int threads);

    int64_t num_lattice_points() const;

    // `axis_offsets [2 num_axes, d]`. Called at most once.
    void filter(Matrix<const T> values, const int32_t* axis_offsets, int64_t num_axes, T added_mass, Matrix<T> out,
                int threads);

private:
    PointFilter(int64_t num_points, int64_t num_corners, int threads);

    Memory vertices_, barycentric_;
    VertexIndex index_;
};

}  // namespace permutohedral
