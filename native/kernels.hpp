// The kernels: one list, from which follow the tables of functions per instruction set and their Python bindings.
// A new kernel is a header that a unit includes (value_kernels.cpp), and a line in the list.
#pragma once

#include <cstdint>
#include <vector>

#include "index/vertex_index.hpp"
#include "runtime/memory.hpp"

namespace permutohedral {

// Arrays of Python, borrowed for one call: row-major and contiguous.
template <class T, int N>
struct View {
    T* data;
    int64_t shape[N];
};

// Values of points, or of lattice points.
template <class T>
struct Matrix {
    T* data;  // [num_rows, num_channels]
    int64_t num_rows, num_channels;
};

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
    const T* barycentric;     // [num_points, num_corners], or null where only the vertices matter
    int64_t num_points, num_corners;
};

// The lattice point that each tap of a filter reads for each target; -1 where there is none. A separable filter has two
// taps for each axis.
struct NeighborTable {
    const int32_t* data;  // [filter_size, num_targets]
    int64_t filter_size, num_targets;
};

// A Gaussian between points, and its effect on their labels. Values are divided by a power of the mass of their point,
// splatted, blurred, multiplied by the matrix of costs, sliced, multiplied by factor, and divided by a power of the mass.
// The mass of a point is the same blur of ones.
template <class T>
struct PairwiseKernel {
    Simplices<T> simplices;
    NeighborTable axis_neighbors;
    T source_power, target_power;  // each 0, or one 1, or both 1/2
    const T* costs;                // [labels, labels], or null for the identity
    T factor;
    bool both_ways;  // take the mean of the blur and its reverse
};

// A dense conditional random field: softmax(-energies + messages of all kernels), `steps` times.
template <class T>
struct MeanField {
    const T* energies;  // [num_items, labels, num_points]
    const T* start;     // the first marginals, of the same shape; null for softmax(-energies)
    int64_t num_items, labels, num_points;
    const PairwiseKernel<T>* kernels;  // over num_items * num_points points
    int64_t num_kernels, steps;
    T smallest_mass;  // added to the mass of each point
};

// The gradient of a mean field needs its state, small compared with the marginals of all steps, which are recomputed: for
// each step and each kernel the blurred values; then for each kernel 1 / mass of each point, or its root, empty where it
// is not divided.
using FieldState = std::vector<Memory>;

template <class T>
struct FieldGradients {
    T* energies;              // like the energies
    T* start;                 // the same, or null without a start
    std::vector<T*> kernels;  // for each kernel that of its costs, or, where it has none, of its factor
};

// The equations of the bilateral solver on a lattice: A y = strength (mass y - scale B scale y) + D y for each channel, with
// B the sum of `sum_axis_neighbors`. D is the diagonal of `data`, or the adjoint of the means of interpolated values
// over cells, times `weights`, times these means.
template <class T>
struct SmoothEquations {
    NeighborTable axis_neighbors;
    Matrix<const T> scale;  // [lattice points, 1 or channels]
    View<const T, 1> mass, strength;
    Matrix<const T> diagonal, data;  // [lattice points, channels]; no data with cells
    Simplices<T> points;
    Matrix<const T> weights;            // [cells, channels]
    std::vector<int64_t> coarse, fine;  // extents of the cells and of the points; empty without cells
};

// K(name, result, (parameters)): the functions template <class T> name, documented where they are defined. Those whose
// parameters are all arrays, numbers and vectors of numbers are bound as they are, with the GIL released.
//
// Compiled without contraction to fused multiply-add, which would let two copies of the same formula round differently:
#define PERMUTOHEDRAL_POINT_KERNELS(K)                                                            \
    K(index_points, bool, (const Points<T>& points, T limit, VertexIndex& index, T* barycentric)) \
    K(embed_gradient, void, (Matrix<const T> gradient, Points<T> points, Matrix<T> out, int threads))

#define PERMUTOHEDRAL_VALUE_KERNELS(K)                                                                                \
    K(coarsen_simplices, void,                                                                                        \
      (Simplices<T> fine, Matrix<const int32_t> parents, Matrix<const int32_t> coarse_keys, Matrix<int32_t> vertices, \
       Matrix<T> barycentric, int threads))                                                                           \
    K(splat, void, (Matrix<const T> values, Simplices<T> simplices, Matrix<T> out, int threads))                      \
    K(slice, void, (Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out, int threads))              \
    K(barycentric_gradient, void,                                                                                     \
      (Matrix<const T> values, Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out, int threads))   \
    K(slice_planes, void, (Matrix<const T> lattice_values, Simplices<T> simplices, Matrix<T> out, int threads))       \
    K(find_largest, void, (Matrix<const T> values, Simplices<T> simplices, Matrix<int32_t> winners, int threads))     \
    K(blur, void,                                                                                                     \
      (Matrix<const T> lattice_values, NeighborTable axis_neighbors, bool reverse, Matrix<T> out, int threads))       \
    K(filter_gaussian, void,                                                                                          \
      (Matrix<const T> values, Simplices<T> source, NeighborTable axis_neighbors, Simplices<T> target, T added_mass,  \
       Matrix<T> out, int threads))                                                                                   \
    K(mean_field, void, (const MeanField<T>& field, T* out, FieldState* state, int threads))                          \
    K(mean_field_gradient, void,                                                                                      \
      (const MeanField<T>& field, const std::vector<View<const T, 1>>& state, const T* gradient,                      \
       const FieldGradients<T>& out, int threads))                                                                    \
    K(convolve, void,                                                                                                 \
      (Matrix<const T> lattice_values, View<const T, 3> weight, NeighborTable neighbors, int64_t groups,              \
       Matrix<T> out, int threads))                                                                                   \
    K(convolve_weight_gradient, void,                                                                                 \
      (Matrix<const T> lattice_values, Matrix<const T> output_gradient, NeighborTable neighbors, int64_t groups,      \
       View<T, 3> out, int threads))                                                                                  \
    K(sum_window, void,                                                                                               \
      (View<const T, 4> values, View<const T, 4> guide, double sigma_y, double sigma_x, double reach, View<T, 4> out, \
       int threads))                                                                                                  \
    K(sum_color_grid, void,                                                                                           \
      (View<const T, 4> values, View<const T, 4> guide, const std::vector<double>& sigma,                             \
       const std::vector<int64_t>& cells, double blur_reach, const std::vector<std::vector<double>>& directions,      \
       const std::vector<double>& origin, const std::vector<double>& color_blur, View<T, 4> out, int threads))        \
    K(sum_neighbors, void,                                                                                            \
      (Matrix<const T> values, Points<T> sources, Points<T> targets, double reach, Matrix<T> out, int threads))       \
    K(encode, void,                                                                                                   \
      (Matrix<const T> positions, Matrix<const T> directions, View<const T, 3> table, View<const T, 3> transforms,    \
       Matrix<const int32_t> strides, Matrix<T> out, int threads))                                                    \
    K(encode_backward, void,                                                                                          \
      (Matrix<const T> positions, Matrix<const T> directions, View<const T, 3> table, Matrix<const T> gradient,       \
       View<const T, 3> transforms, Matrix<const int32_t> strides, Matrix<T> to_positions, View<T, 3> to_table,       \
       int threads))                                                                                                  \
    K(sum_axis_neighbors, void, (Matrix<const T> rows, NeighborTable axis_neighbors, Matrix<T> out, int threads))     \
    K(solve_smooth, void,                                                                                             \
      (const SmoothEquations<T>& equations, Matrix<const T> right, Matrix<T> solution, int64_t iterations,            \
       double tolerance, int threads))                                                                                \
    K(picture_features, void,                                                                                         \
      (View<const T, 1> images, bool channels_last, const std::vector<int64_t>& space,                                \
       const std::vector<int64_t>& origin, const std::vector<T>& sigma_space, const std::vector<T>& sigma_color,      \
       T shift, Matrix<T> features, int threads))                                                                     \
    K(interleave, void, (Matrix<const T> planes, Matrix<T> rows, int threads))                                        \
    K(divide_rows, void, (Matrix<T> values, View<const T, 1> divisors, int threads))                                  \
    K(add_to_rows, void, (Matrix<T> values, View<const T, 1> added, int threads))                                     \
    K(is_sum_nan, bool, (View<const T, 3> values, int threads))

#define PERMUTOHEDRAL_MEMBER(name, result, parameters) result(*name) parameters;

template <class T>
struct PointKernels {
    PERMUTOHEDRAL_POINT_KERNELS(PERMUTOHEDRAL_MEMBER)
};

template <class T>
struct ValueKernels {
    PERMUTOHEDRAL_VALUE_KERNELS(PERMUTOHEDRAL_MEMBER)
};

// The tables of one instruction set, each defined by one unit: point_kernels.cpp, value_kernels.cpp.
#define PERMUTOHEDRAL_ADDRESS(name, result, parameters) &name<T>,
#define PERMUTOHEDRAL_DECLARE_TABLES(set)                    \
    namespace set {                                          \
    extern const PointKernels<float> float32_point_kernels;  \
    extern const PointKernels<double> float64_point_kernels; \
    extern const ValueKernels<float> float32_value_kernels;  \
    extern const ValueKernels<double> float64_value_kernels; \
    }

}  // namespace permutohedral
