// The kernels: what the core computes, as a table of functions that is compiled once per instruction set.
// All matrices are row-major and contiguous.
#pragma once

#include <cstdint>
#include <vector>

#include "index/lookup_table.hpp"
#include "index/vertex_index.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {

template <class T>
struct Points {
    const T* features;     // [num_points, d]
    const int32_t* batch;  // [num_points], the item of each point; or null for a single item
    int64_t num_points, d;
};

// The simplex around each point: its num_corners = d + 1 vertices and the point's weights there.
template <class T>
struct Simplices {
    const int32_t* vertices;  // [num_points, num_corners]
    const T* barycentric;     // [num_points, num_corners]
    int64_t num_points, num_corners;
};

// The lattice points of a lattice and of that of twice the step.
struct CoarseSimplices {
    const int32_t* parents;      // [num_fine, 2], rows of the coarse lattice
    const int32_t* coarse_keys;  // [num_coarse, d + 1]
    int64_t num_fine;
};

// Values of points, or of lattice points.
template <class T>
struct Matrix {
    T* data;  // [num_rows, num_channels]
    int64_t num_rows, num_channels;
};

// The lattice point that each tap of a filter reads for each target; -1 where there is none.
struct NeighborTable {
    const int32_t* data;  // [filter_size, num_targets]
    int64_t filter_size, num_targets;
};

// The separable Gaussian: splat, blur along the axes, slice divided by the mass.
template <class T>
struct GaussianFilter {
    Simplices<T> source, target;
    const int32_t* axis_neighbors;  // [2 num_axes, num_lattice_points]
    int64_t num_axes, num_lattice_points;
    T added_mass;  // the result is divided by mass + added_mass
    // The point of each simplex, where the simplices come in another order than the points; source and target are
    // then the same. Else null.
    const uint32_t* order;
};

// A window around every pixel of pictures, for sums by the definition of the Gaussian.
struct WindowShape {
    int64_t num_items, num_channels, num_guides, height, width;
    double sigma_y, sigma_x;
    double reach;  // pixels farther away than this many standard deviations are left out
};

struct LandmarkShape {
    int64_t num_items, num_channels, num_guides, height, width, num_landmarks;
    double sigma_y, sigma_x;
    int64_t cell_y, cell_x;  // pixels between the nodes on which is blurred
    double blur_reach;       // how far that blur reaches, in its standard deviations
    // pixels whose last sum is smaller, times the root of what landmarks lack at their color, are summed over a window, at
    // most so many of each item
    double reach, small_mass;
    int64_t most_repaired;
};

struct ColorGridShape {
    int64_t num_items, num_channels, num_guides, height, width;
    double sigma_y, sigma_x;
    int64_t cell_y, cell_x;              // pixels between the nodes on which is blurred
    double blur_reach;                   // how far that blur reaches, in its standard deviations
    double directions[3][3], origin[3];  // of the first num_guides axes of colors: from a color to its place, in nodes
    double own_weight, neighbor_weight;  // of the blur along each axis of colors
};

// A Gaussian between points, and what it says about their labels: values are divided by a power of the mass of their
// point, splatted, blurred, multiplied by the matrix of costs, sliced, multiplied by factor, and divided by a power of
// the mass. The mass of a point is what the same blur makes of ones.
template <class T>
struct PairwiseKernel {
    Simplices<T> simplices;
    const int32_t* axis_neighbors;  // [2 num_axes, num_lattice_points]
    int64_t num_axes, num_lattice_points;
    T source_power, target_power;  // each 0, or one 1, or both 1/2
    const T* costs;                // [labels, labels], or null for the identity
    T factor;
    bool both_ways;  // take the mean of the blur and its reverse
};

// A dense conditional random field: softmax(-energies + what all kernels say), `steps` times.
template <class T>
struct MeanField {
    const T* energies;  // [num_items, labels, num_points]
    const T* start;     // the first marginals, of the same shape; null for softmax(-energies)
    int64_t num_items, labels, num_points;
    const PairwiseKernel<T>* kernels;  // over num_items * num_points points
    int64_t num_kernels, steps;
};

// What the gradient of a mean field needs of the field: small beside the marginals of all steps, which are made again.
struct KeptField {
    KeptField() = default;
    KeptField(const KeptField&) = delete;

    std::vector<Memory> tables;  // for each step and each kernel, what was blurred
    std::vector<Memory> scales;  // for each kernel 1 / mass of each point, or its root; empty where it is not divided
};

// The gradients of a mean field.
template <class T>
struct FieldGradients {
    T* energies;  // like the energies
    T* start;     // the same, or null without a start
    T** kernels;  // for each kernel that of its costs, or, where it has none, of its factor
};

template <class T>
struct Kernels {
    // Numbers the vertices, so that VertexIndex::finish can follow; false if a coordinate does not fit below `limit`.
    // Writes `barycentric [num_points, d + 1]`, in the order of the index where that reorders the points.
    bool (*index_points)(const Points<T>& points, T limit, VertexIndex& index, T* barycentric);
    // Numbers the parents of the vertices in a table, see index_parents_by_hashing; false where that is to do it.
    bool (*index_parents_by_cells)(VertexIndex& index, const LookupTable& fine);
    // vertices and barycentric [num_points, d + 1] on the lattice of twice the step
    void (*coarsen_simplices)(const Simplices<T>& fine, const CoarseSimplices& coarse, int32_t* vertices,
                              T* barycentric, int threads);
    void (*embed_gradient)(const Points<T>& points, const T* gradient, T* out, int threads);
    void (*embed_differential)(const Points<T>& points, const T* differential, T* out, int threads);
    void (*splat)(const Simplices<T>& simplices, Matrix<const T> values, Matrix<T> out, int threads);
    void (*slice)(const Simplices<T>& simplices, Matrix<const T> lattice_values, Matrix<T> out, int threads);
    // each result is the sum of the rows at the vertices; out [num_points, num_channels], or with `planes`
    // [num_channels, num_points]. For rows that stay in the caches.
    void (*mix_rows)(const Simplices<T>& simplices, Matrix<const T> rows, bool planes, T* out, int threads);
    void (*barycentric_gradient)(const Simplices<T>& simplices, Matrix<const T> values, const T* lattice_values, T* out,
                                 int threads);
    // the largest value of each channel at each vertex, zero where there is none, and the first point that has it, or -1
    void (*splat_largest)(const Simplices<T>& simplices, Matrix<const T> values, Matrix<T> out, int32_t* winners,
                          int threads);
    void (*largest_gradient)(const Simplices<T>& simplices, Matrix<const T> gradient, const int32_t* winners,
                             Matrix<T> out, int threads);
    // from one level of a pyramid to the next: half of each fine row is added to both of its parents [num_fine, 2], rows
    // of the coarse level
    void (*coarsen_rows)(Matrix<const T> fine, const int32_t* parents, Matrix<T> coarse, int threads);
    // the transpose: each fine row is the mean of its parents, and what is added [num_fine, num_channels], if not null
    void (*refine_rows)(Matrix<const T> coarse, const int32_t* parents, const T* added, Matrix<T> fine, int threads);
    void (*blur)(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t num_axes, bool reverse, T* out,
                 int threads);
    // number times each lattice value, and those at its neighbors [number, num_lattice_points] that are not missing
    void (*add_beside)(Matrix<const T> lattice_values, const int32_t* axis_neighbors, int64_t number, T* out,
                       int threads);
    void (*filter_gaussian)(const GaussianFilter<T>& filter, Matrix<const T> values, Matrix<T> out, int threads);
    // out [num_items, labels, num_points], marginals; where something is to be kept, their logits but for a constant for
    // all labels of a point
    void (*mean_field)(const MeanField<T>& field, T* out, KeptField* kept, int threads);
    // of the gradient with respect to these logits, [num_items, labels, num_points]; at least one step
    void (*mean_field_gradient)(const MeanField<T>& field, const KeptField& kept, const T* gradient,
                                const FieldGradients<T>& out, int threads);
    // weight [filter_size, in_channels / groups, out_channels]
    void (*convolve)(Matrix<const T> lattice_values, const T* weight, const NeighborTable& neighbors, int64_t groups,
                     Matrix<T> out, int threads);
    void (*convolve_weight_gradient)(Matrix<const T> lattice_values, Matrix<const T> output_gradient,
                                     const NeighborTable& neighbors, int64_t groups, T* out, int threads);
    // values and out [num_items, num_channels, height, width], guide [num_items, num_guides, height, width]
    void (*sum_window)(const WindowShape& shape, const T* values, const T* guide, T* out, int threads);
    // likewise, out [num_items, num_channels + 1, height, width]: the sums of ones are the last; landmarks
    // [num_landmarks, num_guides], mixture [num_landmarks, num_landmarks]
    void (*sum_landmarks)(const LandmarkShape& shape, const T* values, const T* guide, const T* landmarks,
                          const T* mixture, T* out, int threads);
    // likewise
    void (*sum_color_grid)(const ColorGridShape& shape, const T* values, const T* guide, T* out, int threads);
    // values [sources.num_points, num_channels], out [targets.num_points, num_channels]
    void (*sum_neighbors)(const Points<T>& sources, Matrix<const T> values, const Points<T>& targets, double reach,
                          Matrix<T> out, int threads);
};

}  // namespace permutohedral
