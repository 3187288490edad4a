// Python's way to native/index/: releases the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "bindings/arrays.hpp"
#include "bindings/parts.hpp"
#include "index/coarsen.hpp"
#include "index/neighbors.hpp"
#include "index/vertex_index.hpp"
#include "runtime/instruction_sets.hpp"

namespace permutohedral {
namespace {

using namespace nb::literals;

// An index whose number of lattice points is known, so that Python can allocate what `finish` writes. It keeps
// `vertices` alive, which `finish` still writes to. Used once.
struct PendingIndex {
    std::unique_ptr<VertexIndex> index;
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
    const Points<T> points = points_of(features, batch);
    nb::gil_scoped_release release;
    pending->index = std::make_unique<VertexIndex>(points.num_points, points.d + 1, vertices.data(), threads);
    if (!kernels<T>().index_points(points, limit, *pending->index, barycentric.data())) return nullptr;
    return pending;
}

std::unique_ptr<PendingIndex> index_given_keys(Array<const int32_t, 2> keys, Array<int32_t, 2> inverse, int threads) {
    auto pending = std::make_unique<PendingIndex>();
    pending->vertices = inverse;
    nb::gil_scoped_release release;
    pending->index = std::make_unique<VertexIndex>(int64_t(keys.shape(0)), 1, inverse.data(), threads);
    index_keys(*pending->index, keys.data(), int64_t(keys.shape(1)));
    return pending;
}

std::unique_ptr<PendingIndex> index_parents_of(Array<const int32_t, 2> keys, Array<const int64_t, 1> table,
                                               Array<int32_t, 2> parents, int threads) {
    auto pending = std::make_unique<PendingIndex>();
    pending->vertices = parents;
    const int64_t vertices = int64_t(keys.shape(0)), columns = int64_t(keys.shape(1));
    nb::gil_scoped_release release;
    pending->index = std::make_unique<VertexIndex>(2 * vertices, 1, parents.data(), threads);
    const bool by_cells =
        table.shape(0) > 0 && kernels<float>().index_parents_by_cells(
                                  *pending->index, view_lookup_table(table.data(), int64_t(table.shape(0))));
    if (!by_cells) index_parents_by_hashing(*pending->index, keys.data(), vertices, columns);
    return pending;
}

void connect_levels_in(Array<const int32_t, 2> keys, Array<const int32_t, 2> parents,
                       Array<const int32_t, 2> coarse_keys, Array<const int32_t, 2> offsets, Array<int32_t, 2> down,
                       Array<int32_t, 2> up, int threads) {
    nb::gil_scoped_release release;
    const Levels levels{keys.data(), parents.data(), int64_t(keys.shape(0)), int64_t(coarse_keys.shape(0)),
                        int64_t(keys.shape(1))};
    connect_levels(levels, offsets.data(), down.data(), up.data(), threads);
}

template <class T>
void coarsen_simplices(Array<const int32_t, 2> vertices, Array<const T, 2> barycentric, Array<const int32_t, 2> parents,
                       Array<const int32_t, 2> coarse_keys, Array<int32_t, 2> coarse_vertices,
                       Array<T, 2> coarse_barycentric, int threads) {
    nb::gil_scoped_release release;
    const CoarseSimplices coarse{parents.data(), coarse_keys.data(), int64_t(parents.shape(0))};
    kernels<T>().coarsen_simplices(simplices_of(vertices, barycentric.data()), coarse, coarse_vertices.data(),
                                   coarse_barycentric.data(), threads);
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
void bind_points(nb::module_& module) {
    module.def("index_points", &index_points<T>, "features"_a, "batch"_a.none(), "limit"_a, "vertices"_a,
               "barycentric"_a, "threads"_a);
    module.def("embed_gradient", &embed_gradient<T>);
    module.def("embed_differential", &embed_differential<T>);
    module.def("coarsen_simplices", &coarsen_simplices<T>);
}

}  // namespace

void bind_index(nb::module_& module, nb::module_& float32, nb::module_& float64) {
    nb::class_<PendingIndex>(module, "PendingIndex")
        .def_prop_ro("num_lattice_points", [](const PendingIndex& self) { return self.index->num_lattice_points; })
        .def_prop_ro("table_size", [](const PendingIndex& self) { return self.index->table_size(); })
        .def("finish", &PendingIndex::finish);
    module.def("index_keys", &index_given_keys);
    module.def("index_parents", &index_parents_of);
    module.def("connect_levels", &connect_levels_in);
    module.def("find_neighbors", &find_neighbors_in);
    module.def("transpose_neighbors", &transpose_neighbors_in);
    bind_points<float>(float32);
    bind_points<double>(float64);
}

}  // namespace permutohedral
