// The kernels of one instruction set, each declared in the namespace of that set; kernels.hpp says what they do.
#pragma once

#include "kernels.hpp"

#ifndef PERMUTOHEDRAL_INSTRUCTION_SET
#error "define PERMUTOHEDRAL_INSTRUCTION_SET, the namespace of the instruction set this file is compiled for"
#endif

namespace permutohedral {
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

template <class T>
struct PointOrder;

template <class T>
bool index_points(const Points<T>& points, T limit, VertexIndex& index, T* barycentric);
bool index_parents_by_cells(VertexIndex& index, const LookupTable& fine);
template <class T>
void coarsen_simplices(const Simplices<T>& fine, const CoarseSimplices& coarse, int32_t* vertices, T* barycentric,
                       int threads);
template <class T>
void embed_gradient(const Points<T>& points, const T* gradient, T* out, int threads);
template <class T>
void embed_differential(const Points<T>& points, const T* differential, T* out, int threads);
template <class T>
void splat(const Simplices<T>& simplices, Matrix<const T> values, Matrix<T> out, int threads);
template <class T>
void slice(const Simplices<T>& simplices, Matrix<const T> lattice_values, Matrix<T> out, int threads);
template <class T>
void mix_rows(const Simplices<T>& simplices, Matrix<const T> rows, bool planes, T* out, int threads);
template <class T>
void barycentric_gradient(const Simplices<T>& simplices, Matrix<const T> values, const T* lattice_values, T* out,
                          int threads);
template <class T>
void splat_largest(const Simplices<T>& simplices, Matrix<const T> values, Matrix<T> out, int32_t* winners, int threads);
template <class T>
void largest_gradient(const Simplices<T>& simplices, Matrix<const T> gradient, const int32_t* winners, Matrix<T> out,
                      int threads);
template <class T>
void coarsen_rows(Matrix<const T> fine, const int32_t* parents, Matrix<T> coarse, int threads);
template <class T>
void refine_rows(Matrix<const T> coarse, const int32_t* parents, const T* added, Matrix<T> fine, int threads);
template <class T>
void blur(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t num_axes, bool reverse, T* out,
          int threads);
template <class T>
void add_beside(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t number, T* out, int threads);
template <class T>
void filter_gaussian(const GaussianFilter<T>& filter, Matrix<const T> values, Matrix<T> out, int threads);
template <class T>
void mean_field(const MeanField<T>& field, T* out, KeptField* kept, int threads);
template <class T>
void mean_field_gradient(const MeanField<T>& field, const KeptField& kept, const T* gradient,
                         const FieldGradients<T>& out, int threads);
template <class T>
void convolve(Matrix<const T> lattice_values, const T* weight, const NeighborTable& neighbors, int64_t groups,
              Matrix<T> out, int threads);
template <class T>
void convolve_weight_gradient(Matrix<const T> lattice_values, Matrix<const T> output_gradient,
                              const NeighborTable& neighbors, int64_t groups, T* out, int threads);
template <class T>
void sum_window(const WindowShape& shape, const T* values, const T* guide, T* out, int threads);
template <class T>
void sum_landmarks(const LandmarkShape& shape, const T* values, const T* guide, const T* landmarks, const T* mixture,
                   T* out, int threads);
template <class T>
void sum_color_grid(const ColorGridShape& shape, const T* values, const T* guide, T* out, int threads);
template <class T>
void sum_neighbors(const Points<T>& sources, Matrix<const T> values, const Points<T>& targets, double reach,
                   Matrix<T> out, int threads);

// Both ends of filter_gaussian, on consecutive panels (channel_panels.hpp); the last channel of the lattice is the
// mass.
template <class T>
void splat_with_mass(const PointOrder<T>& order, Matrix<const T> values, Matrix<T> out, int threads);
template <class T>
void slice_normalized(const PointOrder<T>& order, Matrix<const T> lattice_values, T added_mass, Matrix<T> out,
                      int threads);

extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
