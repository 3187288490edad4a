// The kernels of one instruction set, declared once in the namespace of each; see kernels.hpp for what they do.
#pragma once

#include "kernels.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {

template <class T>
struct Visits;

template <class T>
bool index_points(const Points<T>& points, T limit, Index& index, T* barycentric);
template <class T>
void embed_gradient(const Points<T>& points, const T* gradient, T* out, int threads);
template <class T>
void embed_differential(const Points<T>& points, const T* differential, T* out, int threads);
template <class T>
void splat(const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads);
template <class T>
void slice(const Corners<T>& corners, Rows<const T> lattice_values, Rows<T> out, int threads);
template <class T>
void barycentric_gradient(const Corners<T>& corners, Rows<const T> values, const T* lattice_values, T* out,
                          int threads);
template <class T>
void blur(Rows<const T> lattice_values, const int32_t* axis_neighbors, int64_t axes, bool reverse, T* out,
          int threads);
template <class T>
void filter_gaussian(const GaussianFilter<T>& filter, Rows<const T> values, Rows<T> out, int threads);
template <class T>
void convolve(Rows<const T> lattice_values, const T* weight, const Neighbors& neighbors, int64_t groups, Rows<T> out,
              int threads);
template <class T>
void convolve_weight_gradient(Rows<const T> lattice_values, Rows<const T> output_gradient,
                              const Neighbors& neighbors, int64_t groups, T* out, int threads);

// The ends of filter_gaussian, on panels (panels.hpp); the last channel of the lattice is the mass.
template <class T>
void splat_with_mass(const Visits<T>& visits, Rows<const T> values, Rows<T> out, int threads);
template <class T>
void slice_normalized(const Visits<T>& visits, Rows<const T> lattice_values, T added_mass, Rows<T> out, int threads);

extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
