// Python's way to native/filter/: releases the GIL.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/parts.hpp"
#include "filter/cells.hpp"
#include "filter/pixels.hpp"
#include "filter/point_filter.hpp"
#include "filter/rows.hpp"
#include "runtime/instruction_sets.hpp"

namespace permutohedral {
namespace {

using namespace nb::literals;

template <class T>
std::unique_ptr<PointFilter<T>> index_for_filter(Array<const T, 2> features,
                                                 std::optional<Array<const int32_t, 1>> batch, T limit,
                                                 bool may_reorder, int threads) {
    const Points<T> points = points_of(features, batch);
    nb::gil_scoped_release release;
    return PointFilter<T>::index(points, limit, may_reorder, threads);
}

template <class T>
void filter_points(PointFilter<T>& pending, Array<const T, 2> values, Array<const int32_t, 2> axis_offsets,
                   T added_mass, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    const int64_t num_axes = int64_t(axis_offsets.shape(0)) / 2;
    pending.filter(matrix_of(values), axis_offsets.data(), num_axes, added_mass, matrix_of(out), threads);
}

template <class T>
void splat(Array<const T, 2> values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric, Array<T, 2> out,
           int threads) {
    nb::gil_scoped_release release;
    kernels<T>().splat(simplices_of(vertices, barycentric.data()), matrix_of(values), matrix_of(out), threads);
}

template <class T>
void slice(Array<const T, 2> lattice_values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric,
           Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().slice(simplices_of(vertices, barycentric.data()), matrix_of(lattice_values), matrix_of(out), threads);
}

// out [points, channels], or planes [channels, points]
template <class T>
void mix_rows(Array<const T, 2> rows, Array<const int32_t, 2> vertices, Array<const T, 2> weights, bool planes,
              Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().mix_rows(simplices_of(vertices, weights.data()), matrix_of(rows), planes, out.data(), threads);
}

template <class T>
void filter_gaussian(Array<const T, 2> values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric,
                     Array<const int32_t, 2> axis_neighbors, Array<const int32_t, 2> target_vertices,
                     Array<const T, 2> target_barycentric, T added_mass, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    GaussianFilter<T> filter{};
    filter.source = simplices_of(vertices, barycentric.data());
    filter.target = simplices_of(target_vertices, target_barycentric.data());
    filter.axis_neighbors = axis_neighbors.data();
    filter.num_axes = int64_t(axis_neighbors.shape(0)) / 2;
    filter.num_lattice_points = int64_t(axis_neighbors.shape(1));
    filter.added_mass = added_mass;
    kernels<T>().filter_gaussian(filter, matrix_of(values), matrix_of(out), threads);
}

template <class T>
void add_beside(Array<const T, 2> lattice_values, Array<const int32_t, 2> axis_neighbors, Array<T, 2> out,
                int threads) {
    nb::gil_scoped_release release;
    kernels<T>().add_beside(matrix_of(lattice_values), axis_neighbors.data(), int64_t(axis_neighbors.shape(0)),
                            out.data(), threads);
}

// A kernel of a mean field, with the arrays that it borrows.
template <class T>
struct BorrowedKernel {
    Array<const int32_t, 2> vertices;
    Array<const T, 2> barycentric;
    Array<const int32_t, 2> axis_neighbors;
    T source_power, target_power;
    std::optional<Array<const T, 2>> costs;
    T factor;
    bool both_ways;

    PairwiseKernel<T> borrow() const {
        PairwiseKernel<T> kernel{};
        kernel.simplices = simplices_of(vertices, barycentric.data());
        kernel.axis_neighbors = axis_neighbors.data();
        kernel.num_axes = int64_t(axis_neighbors.shape(0)) / 2;
        kernel.num_lattice_points = int64_t(axis_neighbors.shape(1));
        kernel.source_power = source_power;
        kernel.target_power = target_power;
        kernel.costs = costs.has_value() ? costs->data() : nullptr;
        kernel.factor = factor;
        kernel.both_ways = both_ways;
        return kernel;
    }
};

// A mean field, with the kernels that it borrows.
template <class T>
struct BorrowedField {
    BorrowedField(const Array<const T, 3>& energies, const std::optional<Array<const T, 3>>& start,
                  const std::vector<BorrowedKernel<T>*>& borrowed, int64_t steps) {
        for (const BorrowedKernel<T>* each : borrowed) pairwise.push_back(each->borrow());
        field.energies = energies.data();
        field.start = start.has_value() ? start->data() : nullptr;
        field.num_items = int64_t(energies.shape(0));
        field.labels = int64_t(energies.shape(1));
        field.num_points = int64_t(energies.shape(2));
        field.kernels = pairwise.data();
        field.num_kernels = int64_t(pairwise.size());
        field.steps = steps;
    }

    std::vector<PairwiseKernel<T>> pairwise;
    MeanField<T> field{};
};

template <class T>
void mean_field(Array<const T, 3> energies, std::optional<Array<const T, 3>> start,
                const std::vector<BorrowedKernel<T>*>& borrowed, int64_t steps, Array<T, 3> out, KeptField* kept,
                int threads) {
    const BorrowedField<T> field(energies, start, borrowed, steps);
    nb::gil_scoped_release release;
    kernels<T>().mean_field(field.field, out.data(), kept, threads);
}

template <class T>
void mean_field_gradient(Array<const T, 3> energies, std::optional<Array<const T, 3>> start,
                         const std::vector<BorrowedKernel<T>*>& borrowed, int64_t steps, const KeptField& kept,
                         Array<const T, 3> gradient, Array<T, 3> to_energies, std::optional<Array<T, 3>> to_start,
                         const std::vector<Array<T, 2>>& to_kernels, int threads) {
    const BorrowedField<T> field(energies, start, borrowed, steps);
    std::vector<T*> of_kernels;
    for (const Array<T, 2>& each : to_kernels) of_kernels.push_back(each.data());
    const FieldGradients<T> out{to_energies.data(), to_start.has_value() ? to_start->data() : nullptr,
                                of_kernels.data()};
    nb::gil_scoped_release release;
    kernels<T>().mean_field_gradient(field.field, kept, gradient.data(), out, threads);
}

template <class T>
void barycentric_gradient(Array<const T, 2> values, Array<const T, 2> lattice_values, Array<const int32_t, 2> vertices,
                          Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().barycentric_gradient(simplices_of<T>(vertices, nullptr), matrix_of(values), lattice_values.data(),
                                      out.data(), threads);
}

template <class T>
void splat_largest(Array<const T, 2> values, Array<const int32_t, 2> vertices, Array<T, 2> out,
                   Array<int32_t, 2> winners, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().splat_largest(simplices_of<T>(vertices, nullptr), matrix_of(values), matrix_of(out), winners.data(),
                               threads);
}

template <class T>
void largest_gradient(Array<const T, 2> gradient, Array<const int32_t, 2> winners, Array<const int32_t, 2> vertices,
                      Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().largest_gradient(simplices_of<T>(vertices, nullptr), matrix_of(gradient), winners.data(),
                                  matrix_of(out), threads);
}

template <class T>
void blur(Array<const T, 2> lattice_values, Array<const int32_t, 2> axis_neighbors, bool reverse, Array<T, 2> out,
          int threads) {
    nb::gil_scoped_release release;
    kernels<T>().blur(matrix_of(lattice_values), axis_neighbors.data(), int64_t(axis_neighbors.shape(0)) / 2, reverse,
                      out.data(), threads);
}

template <class T>
void convolve(Array<const T, 2> lattice_values, Array<const T, 3> weight, Array<const int32_t, 2> neighbors,
              int64_t groups, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().convolve(matrix_of(lattice_values), weight.data(), table_of(neighbors), groups, matrix_of(out),
                          threads);
}

template <class T>
void convolve_weight_gradient(Array<const T, 2> lattice_values, Array<const T, 2> output_gradient,
                              Array<const int32_t, 2> neighbors, int64_t groups, Array<T, 3> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().convolve_weight_gradient(matrix_of(lattice_values), matrix_of(output_gradient), table_of(neighbors),
                                          groups, out.data(), threads);
}

// The extents of pictures [items, channels, height, width] and of what guides their filter.
template <class Shape, class T>
Shape shape_of(const Array<const T, 4>& values, const Array<const T, 4>& guide) {
    Shape shape{};
    shape.num_items = int64_t(values.shape(0));
    shape.num_channels = int64_t(values.shape(1));
    shape.num_guides = int64_t(guide.shape(1));
    shape.height = int64_t(values.shape(2));
    shape.width = int64_t(values.shape(3));
    return shape;
}

template <class T>
void sum_window(Array<const T, 4> values, Array<const T, 4> guide, double sigma_y, double sigma_x, double reach,
                Array<T, 4> out, int threads) {
    nb::gil_scoped_release release;
    auto shape = shape_of<WindowShape>(values, guide);
    shape.sigma_y = sigma_y;
    shape.sigma_x = sigma_x;
    shape.reach = reach;
    kernels<T>().sum_window(shape, values.data(), guide.data(), out.data(), threads);
}

template <class T>
void sum_landmarks(Array<const T, 4> values, Array<const T, 4> guide, Array<const T, 2> landmarks,
                   Array<const T, 2> mixture, double sigma_y, double sigma_x, int64_t cell_y, int64_t cell_x,
                   double blur_reach, double reach, double small_mass, int64_t most_repaired, Array<T, 4> out,
                   int threads) {
    nb::gil_scoped_release release;
    auto shape = shape_of<LandmarkShape>(values, guide);
    shape.num_landmarks = int64_t(landmarks.shape(0));
    shape.sigma_y = sigma_y;
    shape.sigma_x = sigma_x;
    shape.cell_y = cell_y;
    shape.cell_x = cell_x;
    shape.blur_reach = blur_reach;
    shape.reach = reach;
    shape.small_mass = small_mass;
    shape.most_repaired = most_repaired;
    kernels<T>().sum_landmarks(shape, values.data(), guide.data(), landmarks.data(), mixture.data(), out.data(),
                               threads);
}

template <class T>
void sum_color_grid(Array<const T, 4> values, Array<const T, 4> guide, std::array<double, 2> sigma,
                    std::array<int64_t, 2> cells, double blur_reach, std::vector<std::vector<double>> directions,
                    std::vector<double> origin, std::array<double, 2> color_blur, Array<T, 4> out, int threads) {
    nb::gil_scoped_release release;
    auto shape = shape_of<ColorGridShape>(values, guide);
    shape.sigma_y = sigma[0];
    shape.sigma_x = sigma[1];
    shape.cell_y = cells[0];
    shape.cell_x = cells[1];
    shape.blur_reach = blur_reach;
    for (size_t axis = 0; axis < directions.size(); ++axis) {
        std::copy(directions[axis].begin(), directions[axis].end(), shape.directions[axis]);
    }
    std::copy(origin.begin(), origin.end(), shape.origin);
    shape.own_weight = color_blur[0];
    shape.neighbor_weight = color_blur[1];
    kernels<T>().sum_color_grid(shape, values.data(), guide.data(), out.data(), threads);
}

template <class T>
void sum_neighbors(Array<const T, 2> values, Array<const T, 2> features, Array<const T, 2> target_features,
                   double reach, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().sum_neighbors(points_of(features), matrix_of(values), points_of(target_features), reach,
                               matrix_of(out), threads);
}

// The axes of `pictures` are [count, channels, *space], or [count, *space, channels].
template <class T>
void features_of_pictures(nb::ndarray<const T, nb::c_contig, nb::device::cpu> pictures, bool channels_last,
                          std::vector<int64_t> origin, std::vector<T> sigma_space, std::vector<T> sigma_range,
                          Array<T, 2> features, int threads) {
    nb::gil_scoped_release release;
    Pictures<T> given{pictures.data(), channels_last, int64_t(pictures.shape(0)), int64_t(sigma_range.size()), {}, {}};
    for (size_t axis = 0; axis < origin.size(); ++axis) {
        given.space.push_back(int64_t(pictures.shape(axis + (channels_last ? 1 : 2))));
    }
    given.origin = std::move(origin);
    picture_features(given, sigma_space, sigma_range, features.data(), threads);
}

template <class T>
void interleave_planes(Array<const T, 2> planes, Array<T, 2> rows, int threads) {
    nb::gil_scoped_release release;
    interleave(planes.data(), int64_t(planes.shape(0)), int64_t(planes.shape(1)), rows.data(), threads);
}

template <class T>
void divide_by(Array<T, 2> values, Array<const T, 1> divisors, int threads) {
    nb::gil_scoped_release release;
    divide_rows(values.data(), divisors.data(), int64_t(values.shape(0)), int64_t(values.shape(1)), threads);
}

template <class T>
void coarsen_values(Array<const T, 2> values, Array<const int32_t, 2> parents, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().coarsen_rows(matrix_of(values), parents.data(), matrix_of(out), threads);
}

template <class T>
void refine_values(Array<const T, 2> values, Array<const int32_t, 2> parents, std::optional<Array<const T, 2>> added,
                   Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().refine_rows(matrix_of(values), parents.data(), added ? added->data() : nullptr, matrix_of(out),
                             threads);
}

template <class T>
void add_to(Array<T, 2> values, Array<const T, 1> added, int threads) {
    nb::gil_scoped_release release;
    add_to_rows(values.data(), added.data(), int64_t(values.shape(0)), int64_t(values.shape(1)), threads);
}

template <class T>
bool is_nan_among(Array<const T, 3> values, int threads) {
    nb::gil_scoped_release release;
    return is_sum_nan(values.data(), int64_t(values.size()), threads);
}

template <class T>
CellSums<T> sum_cells(Array<const int32_t, 2> vertices, Array<const T, 2> barycentric, int64_t items,
                      const std::vector<int64_t>& coarse, const std::vector<int64_t>& fine, int threads) {
    const CellGrids grids{items, {coarse.at(0), coarse.at(1), coarse.at(2)}, {fine.at(0), fine.at(1), fine.at(2)}};
    nb::gil_scoped_release release;
    return CellSums<T>(simplices_of(vertices, barycentric.data()), grids, threads);
}

template <class T>
void write_cells(const CellSums<T>& sums, Array<int32_t, 1> cells, Array<int32_t, 2> vertices, Array<T, 2> weights) {
    nb::gil_scoped_release release;
    sums.write(cells.data(), vertices.data(), weights.data());
}

template <class T>
void bind_values(nb::module_& module) {
    nb::class_<PointFilter<T>>(module, "PointFilter")
        .def_prop_ro("num_lattice_points", &PointFilter<T>::num_lattice_points)
        .def("filter", &filter_points<T>);
    module.def("index_for_filter", &index_for_filter<T>, "features"_a, "batch"_a.none(), "limit"_a, "may_reorder"_a,
               "threads"_a);
    module.def("splat", &splat<T>);
    module.def("slice", &slice<T>);
    module.def("mix_rows", &mix_rows<T>);
    module.def("barycentric_gradient", &barycentric_gradient<T>);
    module.def("splat_largest", &splat_largest<T>);
    module.def("largest_gradient", &largest_gradient<T>);
    module.def("blur", &blur<T>);
    module.def("add_beside", &add_beside<T>);
    module.def("filter_gaussian", &filter_gaussian<T>);
    nb::class_<BorrowedKernel<T>>(module, "PairwiseKernel")
        .def(
            "__init__",
            [](BorrowedKernel<T>* self, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric,
               Array<const int32_t, 2> axis_neighbors, T source_power, T target_power,
               std::optional<Array<const T, 2>> costs, T factor, bool both_ways) {
                new (self) BorrowedKernel<T>{vertices,     barycentric, axis_neighbors, source_power,
                                             target_power, costs,       factor,         both_ways};
            },
            "vertices"_a, "barycentric"_a, "axis_neighbors"_a, "source_power"_a, "target_power"_a, "costs"_a.none(),
            "factor"_a, "both_ways"_a);
    module.def("mean_field", &mean_field<T>, "energies"_a, "start"_a.none(), "kernels"_a, "steps"_a, "out"_a,
               "kept"_a.none(), "threads"_a);
    module.def("mean_field_gradient", &mean_field_gradient<T>, "energies"_a, "start"_a.none(), "kernels"_a, "steps"_a,
               "kept"_a, "gradient"_a, "to_energies"_a, "to_start"_a.none(), "to_kernels"_a, "threads"_a);
    module.def("convolve", &convolve<T>);
    module.def("convolve_weight_gradient", &convolve_weight_gradient<T>);
    module.def("sum_window", &sum_window<T>);
    module.def("sum_landmarks", &sum_landmarks<T>);
    module.def("sum_color_grid", &sum_color_grid<T>);
    module.def("sum_neighbors", &sum_neighbors<T>);
    nb::class_<CellSums<T>>(module, "CellSums")
        .def_prop_ro("num_rows", &CellSums<T>::num_rows)
        .def_prop_ro("terms", [](const CellSums<T>&) { return CellSums<T>::terms; })
        .def("write", &write_cells<T>);
    module.def("sum_cells", &sum_cells<T>);
    module.def("picture_features", &features_of_pictures<T>);
    module.def("interleave", &interleave_planes<T>);
    module.def("coarsen_values", &coarsen_values<T>);
    module.def("refine_values", &refine_values<T>, "values"_a, "parents"_a, "added"_a.none(), "out"_a, "threads"_a);
    module.def("divide_rows", &divide_by<T>);
    module.def("add_to_rows", &add_to<T>);
    module.def("is_sum_nan", &is_nan_among<T>);
}

}  // namespace

void bind_filter(nb::module_& module, nb::module_& float32, nb::module_& float64) {
    nb::class_<KeptField>(module, "KeptField").def(nb::init<>());
    bind_values<float>(float32);
    bind_values<double>(float64);
}

}  // namespace permutohedral
