// The Python module: borrows buffers through DLPack and releases the GIL. Shapes were validated in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace permutohedral {
namespace {

template <class T, int Axes>
using Array = nb::ndarray<T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;

template <class T>
Corners<T> corners_of(const Array<const int32_t, 2>& vertices, const T* barycentric) {
    return {vertices.data(), barycentric, int64_t(vertices.shape(0)), int64_t(vertices.shape(1))};
}

template <class T>
Rows<T> rows_of(const Array<T, 2>& array) {
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

Neighbors neighbors_of(const Array<const int32_t, 2>& array) {
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

template <class T>
Points<T> points_of(const Array<const T, 2>& features) {
    return {features.data(), nullptr, int64_t(features.shape(0)), int64_t(features.shape(1))};
}

// A new tensor of uninitialized memory, as DLPack hands it over. Its deleter knows nothing of Python: tensors are freed
// on any thread, and after the interpreter has ended.
struct FreshTensor {
    nb::dlpack::dltensor tensor;
    void* owner;
    void (*deleter)(FreshTensor*);
    std::vector<int64_t> shape;
};

void free_tensor(FreshTensor* fresh) {
    return_memory(fresh->tensor.data);
    delete fresh;
}

// A capsule that nobody took over still owns its tensor; one that was taken over has another name.
void free_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
    free_tensor(static_cast<FreshTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

nb::object allocate(std::vector<int64_t> shape, bool floating, int bits) {
    size_t bytes = size_t(bits) / 8;
    for (const int64_t size : shape) bytes *= size_t(size);
    auto fresh = std::make_unique<FreshTensor>();
    fresh->shape = std::move(shape);
    fresh->deleter = free_tensor;
    const auto code = floating ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::Int;
    fresh->tensor.device = {nb::device::cpu::value, 0};
    fresh->tensor.ndim = int32_t(fresh->shape.size());
    fresh->tensor.dtype = {uint8_t(code), uint8_t(bits), 1};
    fresh->tensor.shape = fresh->shape.data();
    fresh->tensor.data = take_memory(bytes);
    PyObject* capsule = PyCapsule_New(fresh.get(), "dltensor", free_capsule);
    if (capsule == nullptr) {
        return_memory(fresh->tensor.data);
        throw nb::python_error();
    }
    fresh.release();
    return nb::steal(capsule);
}

// An index between its two steps: before, the number of lattice points is not known; after, it is spent.
// It keeps `vertices` alive, which `finish` still writes to.
struct PendingIndex {
    std::unique_ptr<Index> index;
    Array<int32_t, 2> vertices;

    void finish(Array<int32_t, 2> keys, Array<int64_t, 1> table) {
        nb::gil_scoped_release release;
        index->finish(keys.data(), table.data());
        index.reset();
    }
};

template <class T>
std::unique_ptr<PendingIndex> index_points(Array<const T, 2> features, std::optional<Array<const int32_t, 1>> batch,
                                           T limit, Array<int32_t, 2> vertices, Array<T, 2> barycentric, int threads) {
    auto pending = std::make_unique<PendingIndex>();
    pending->vertices = vertices;
    Points<T> points = points_of(features);
    if (batch.has_value()) points.batch = batch->data();
    nb::gil_scoped_release release;
    pending->index = std::make_unique<Index>(points.points, points.d + 1, vertices.data(), threads);
    if (!kernels<T>().index_points(points, limit, *pending->index, barycentric.data())) return nullptr;
    return pending;
}

// The normalized Gaussian between points, from their features: what PendingIndex and filter_gaussian do, but the
// simplices stay here, and may come in another order than the points.
template <class T>
struct PendingFilter {
    std::unique_ptr<Index> index;
    Memory vertices, barycentric;

    int64_t num_lattice_points() const { return index->num_lattice_points; }

    void filter(Array<const T, 2> values, Array<const int32_t, 2> offsets, T added_mass, Array<T, 2> out, int threads) {
        nb::gil_scoped_release release;
        const int64_t rows = index->num_lattice_points, taps = int64_t(offsets.shape(0));
        const Memory table(sizeof(int64_t) * index->table_size()), neighbors(sizeof(int32_t) * rows * taps);
        index->finish(nullptr, as<int64_t>(table));
        NeighborQuery query{};
        query.table = as<int64_t>(table);
        query.table_size = index->table_size();
        query.num_targets = rows;
        query.offsets = offsets.data();
        query.filter_size = taps;
        query.same = true;
        find_neighbors(query, as<int32_t>(neighbors), threads);
        GaussianFilter<T> filter{};
        filter.source = {as<int32_t>(vertices), as<T>(barycentric), index->rows, index->corners};
        filter.target = filter.source;
        filter.axis_neighbors = as<int32_t>(neighbors);
        filter.axes = taps / 2;
        filter.rows = rows;
        filter.added_mass = added_mass;
        filter.order = index->order();
        kernels<T>().filter_gaussian(filter, rows_of(values), rows_of(out), threads);
    }
};

template <class T>
std::unique_ptr<PendingFilter<T>> index_for_filter(Array<const T, 2> features,
                                                   std::optional<Array<const int32_t, 1>> batch, T limit,
                                                   bool may_reorder, int threads) {
    auto pending = std::make_unique<PendingFilter<T>>();
    Points<T> points = points_of(features);
    if (batch.has_value()) points.batch = batch->data();
    nb::gil_scoped_release release;
    const int64_t corners = points.d + 1;
    pending->vertices = Memory(sizeof(int32_t) * points.points * corners);
    pending->barycentric = Memory(sizeof(T) * points.points * corners);
    pending->index = std::make_unique<Index>(points.points, corners, as<int32_t>(pending->vertices), threads);
    pending->index->may_reorder = may_reorder;
    if (!kernels<T>().index_points(points, limit, *pending->index, as<T>(pending->barycentric))) return nullptr;
    return pending;
}

std::unique_ptr<PendingIndex> index_keys(Array<const int32_t, 2> keys, Array<int32_t, 2> inverse, int threads) {
    auto pending = std::make_unique<PendingIndex>();
    pending->vertices = inverse;
    nb::gil_scoped_release release;
    pending->index = std::make_unique<Index>(int64_t(keys.shape(0)), 1, inverse.data(), threads);
    index_rows(*pending->index, keys.data(), int64_t(keys.shape(1)));
    return pending;
}

void find_neighbors_in(Array<const int64_t, 1> table, Array<const int32_t, 2> target_keys,
                       Array<const int32_t, 2> offsets, bool same, Array<int32_t, 2> neighbors, int threads) {
    nb::gil_scoped_release release;
    NeighborQuery query{};
    query.table = table.data();
    query.table_size = int64_t(table.shape(0));
    query.target_keys = target_keys.data();
    query.num_targets = int64_t(target_keys.shape(0));
    query.offsets = offsets.data();
    query.filter_size = int64_t(offsets.shape(0));
    query.same = same;
    find_neighbors(query, neighbors.data(), threads);
}

void transpose_neighbors_in(Array<const int32_t, 2> neighbors, Array<const int64_t, 1> opposite,
                            Array<int32_t, 2> transposed, int threads) {
    nb::gil_scoped_release release;
    const NeighborShape shape{int64_t(neighbors.shape(0)), int64_t(neighbors.shape(1)), int64_t(transposed.shape(1))};
    transpose_neighbors(neighbors.data(), opposite.data(), shape, transposed.data(), threads);
}

template <class T>
void embed_gradient(Array<const T, 2> features, Array<const T, 2> gradient, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().embed_gradient(points_of(features), gradient.data(), out.data(), threads);
}

template <class T>
void embed_differential(Array<const T, 2> features, Array<const T, 2> differential, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().embed_differential(points_of(features), differential.data(), out.data(), threads);
}

template <class T>
void splat(Array<const T, 2> values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric, Array<T, 2> out,
           int threads) {
    nb::gil_scoped_release release;
    kernels<T>().splat(corners_of(vertices, barycentric.data()), rows_of(values), rows_of(out), threads);
}

template <class T>
void slice(Array<const T, 2> lattice_values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric,
           Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().slice(corners_of(vertices, barycentric.data()), rows_of(lattice_values), rows_of(out), threads);
}

template <class T>
void filter_gaussian(Array<const T, 2> values, Array<const int32_t, 2> vertices, Array<const T, 2> barycentric,
                     Array<const int32_t, 2> axis_neighbors, Array<const int32_t, 2> target_vertices,
                     Array<const T, 2> target_barycentric, T added_mass, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    GaussianFilter<T> filter{};
    filter.source = corners_of(vertices, barycentric.data());
    filter.target = corners_of(target_vertices, target_barycentric.data());
    filter.axis_neighbors = axis_neighbors.data();
    filter.axes = int64_t(axis_neighbors.shape(0)) / 2;
    filter.rows = int64_t(axis_neighbors.shape(1));
    filter.added_mass = added_mass;
    kernels<T>().filter_gaussian(filter, rows_of(values), rows_of(out), threads);
}

template <class T>
void barycentric_gradient(Array<const T, 2> values, Array<const T, 2> lattice_values,
                          Array<const int32_t, 2> vertices, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().barycentric_gradient(corners_of<T>(vertices, nullptr), rows_of(values), lattice_values.data(),
                                      out.data(), threads);
}

template <class T>
void blur(Array<const T, 2> lattice_values, Array<const int32_t, 2> axis_neighbors, bool reverse, Array<T, 2> out,
          int threads) {
    nb::gil_scoped_release release;
    kernels<T>().blur(rows_of(lattice_values), axis_neighbors.data(), int64_t(axis_neighbors.shape(0)) / 2, reverse,
                      out.data(), threads);
}

template <class T>
void convolve(Array<const T, 2> lattice_values, Array<const T, 3> weight, Array<const int32_t, 2> neighbors,
              int64_t groups, Array<T, 2> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().convolve(rows_of(lattice_values), weight.data(), neighbors_of(neighbors), groups, rows_of(out),
                          threads);
}

template <class T>
void convolve_weight_gradient(Array<const T, 2> lattice_values, Array<const T, 2> output_gradient,
                              Array<const int32_t, 2> neighbors, int64_t groups, Array<T, 3> out, int threads) {
    nb::gil_scoped_release release;
    kernels<T>().convolve_weight_gradient(rows_of(lattice_values), rows_of(output_gradient), neighbors_of(neighbors),
                                          groups, out.data(), threads);
}

// The kernels of one dtype, as a submodule.
template <class T>
void bind_kernels(nb::module_ module) {
    module.def("index_points", &index_points<T>, "features"_a, "batch"_a.none(), "limit"_a, "vertices"_a,
               "barycentric"_a, "threads"_a);
    nb::class_<PendingFilter<T>>(module, "PendingFilter")
        .def_prop_ro("num_lattice_points", &PendingFilter<T>::num_lattice_points)
        .def("filter", &PendingFilter<T>::filter);
    module.def("index_for_filter", &index_for_filter<T>, "features"_a, "batch"_a.none(), "limit"_a, "may_reorder"_a,
               "threads"_a);
    module.def("embed_gradient", &embed_gradient<T>);
    module.def("embed_differential", &embed_differential<T>);
    module.def("splat", &splat<T>);
    module.def("slice", &slice<T>);
    module.def("barycentric_gradient", &barycentric_gradient<T>);
    module.def("blur", &blur<T>);
    module.def("filter_gaussian", &filter_gaussian<T>);
    module.def("convolve", &convolve<T>);
    module.def("convolve_weight_gradient", &convolve_weight_gradient<T>);
}

// the thread that runs Python's signal handlers
unsigned long main_thread = 0;

// Ctrl-C during a long call: the handler runs here, and what it raises ends the call.
void handle_signals() {
    if (PyThread_get_thread_ident() != main_thread) return;
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (int i = 0; i < num_variants; ++i) {
        if (variants[i].supported()) names.emplace_back(variants[i].name);
    }
    return names;
}

void use_instruction_set(const std::string& name) {
    for (int i = 0; i < num_variants; ++i) {
        if (name == variants[i].name && variants[i].supported()) return choose_variant(i);
    }
    throw std::invalid_argument("this processor does not support the instruction set " + name);
}

}  // namespace
}  // namespace permutohedral

NB_MODULE(_native, module) {
    using namespace permutohedral;
    main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    set_interruption(handle_signals);
    module.attr("MAX_DIMENSION") = max_dimension;
    nb::class_<PendingIndex>(module, "PendingIndex")
        .def_prop_ro("num_lattice_points", [](const PendingIndex& self) { return self.index->num_lattice_points; })
        .def_prop_ro("table_size", [](const PendingIndex& self) { return self.index->table_size(); })
        .def("finish", &PendingIndex::finish);
    module.def("allocate", &allocate, "shape"_a, "floating"_a, "bits"_a);
    module.def("kept_memory", &kept_memory);
    module.def("limit_kept_memory", &limit_kept_memory, "limit"_a);
    module.def("index_keys", &index_keys);
    module.def("find_neighbors", &find_neighbors_in);
    module.def("transpose_neighbors", &transpose_neighbors_in);
    bind_kernels<float>(module.def_submodule("float32"));
    bind_kernels<double>(module.def_submodule("float64"));
    module.def("instruction_sets", &instruction_sets);
    module.def("instruction_set", [] { return std::string(chosen_variant().name); });
    module.def("use_instruction_set", &use_instruction_set);
}
