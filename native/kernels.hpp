// What is compiled once per instruction set, and the choice among them at run time.
#pragma once

#include <cstdint>

#include "index/vertex_index.hpp"

namespace permutohedral {

template <class T>
struct Points {
    const T* features;     // [points, d]
    const int32_t* batch;  // [points] or null
    int64_t points, d;
};

// Corners of points: what splat and slice go through.
template <class T>
struct Corners {
    const int32_t* vertices;  // [points, corners]
    const T* barycentric;     // [points, corners]
    int64_t points, corners;
};

// A matrix by rows.
template <class T>
struct Rows {
    T* data;
    int64_t rows, channels;
};

// What the separable Gaussian goes through: splat, blur along the axes, slice divided by the mass.
template <class T>
struct GaussianFilter {
    Corners<T> source, target;
    const int32_t* axis_neighbors;  // [2 axes, rows]
    int64_t axes, rows;
    T added_mass;  // the result is divided by mass + added_mass
    // point of each visit, where the corners come in another order than the points; else null. Source is target then.
    const uint32_t* order;
};

struct Neighbors {
    const int32_t* data;  // [filter_size, targets]
    int64_t filter_size, targets;
};

template <class T>
struct Kernels {
    // Numbers the vertices up to Index::merge; false if a coordinate does not fit below `limit`. Where the index may
    // reorder, `barycentric` is by visit, too.
    bool (*index_points)(const Points<T>& points, T limit, Index& index, T* barycentric);
    void (*embed_gradient)(const Points<T>& points, const T* gradient, T* out, int threads);
    void (*embed_differential)(const Points<T>& points, const T* differential, T* out, int threads);
    void (*splat)(const Corners<T>& corners, Rows<const T> values, Rows<T> out, int threads);
    void (*slice)(const Corners<T>& corners, Rows<const T> lattice_values, Rows<T> out, int threads);
    void (*barycentric_gradient)(const Corners<T>& corners, Rows<const T> values, const T* lattice_values, T* out,
                                 int threads);
    void (*blur)(Rows<const T> lattice_values, const int32_t* axis_neighbors, int64_t axes, bool reverse, T* out,
                 int threads);
    void (*filter_gaussian)(const GaussianFilter<T>& filter, Rows<const T> values, Rows<T> out, int threads);
    // weight [filter_size, in_channels / groups, out_channels]
    void (*convolve)(Rows<const T> lattice_values, const T* weight, const Neighbors& neighbors, int64_t groups,
                     Rows<T> out, int threads);
    void (*convolve_weight_gradient)(Rows<const T> lattice_values, Rows<const T> output_gradient,
                                     const Neighbors& neighbors, int64_t groups, T* out, int threads);
};

struct Variant {
    const char* name;
    bool (*supported)();
    const Kernels<float>* float32;
    const Kernels<double>* float64;
};

// The variants of this build, the widest first; the last always runs.
extern const Variant variants[];
extern const int num_variants;

// The first variant that this processor supports, or the one chosen by name.
const Variant& chosen_variant();
void choose_variant(int index);

template <class T>
const Kernels<T>& kernels();

}  // namespace permutohedral
