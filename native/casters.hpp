// From Python to the structs of kernels.hpp: arrays are borrowed through DLPack, and shapes were checked in Python. The
// caller keeps the arrays alive. Python converts and copies inputs; arrays that a kernel writes have a type of their own, so
// that the two cannot be confused.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <type_traits>

#include "kernels.hpp"

namespace permutohedral {

template <class T, int N>
using Array = nanobind::ndarray<T, nanobind::ndim<N>, nanobind::c_contig, nanobind::device::cpu>;

// What Python passes: an input by itself, an array that is written in a tuple of one (`written` in bridge.py).
template <class T, int N>
using Passed = std::conditional_t<std::is_const_v<T>, Array<T, N>, std::tuple<Array<T, N>>>;

template <class T, int N>
const Array<T, N>& unwrap(const Array<T, N>& array) {
    return array;
}

template <class T, int N>
const Array<T, N>& unwrap(const std::tuple<Array<T, N>>& written) {
    return std::get<0>(written);
}

template <class T, int N>
View<T, N> read(const Passed<T, N>& passed, View<T, N>*) {
    const Array<T, N>& array = unwrap<T, N>(passed);
    View<T, N> view{array.data(), {}};
    for (int i = 0; i < N; ++i) view.shape[i] = int64_t(array.shape(i));
    return view;
}

template <class T>
Matrix<T> read(const Passed<T, 2>& passed, Matrix<T>*) {
    const Array<T, 2>& array = unwrap<T, 2>(passed);
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

inline NeighborTable read(const Array<const int32_t, 2>& array, NeighborTable*) {
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

// (features, batch or None)
template <class T>
using PointArrays = std::tuple<Array<const T, 2>, std::optional<Array<const int32_t, 1>>>;

template <class T>
Points<T> read(const PointArrays<T>& arrays, Points<T>*) {
    const auto& [features, batch] = arrays;
    return {features.data(), batch ? batch->data() : nullptr, int64_t(features.shape(0)), int64_t(features.shape(1))};
}

// (vertices, barycentric or None)
template <class T>
using SimplexArrays = std::tuple<Array<const int32_t, 2>, std::optional<Array<const T, 2>>>;

template <class T>
Simplices<T> read(const SimplexArrays<T>& arrays, Simplices<T>*) {
    const auto& [vertices, barycentric] = arrays;
    return {vertices.data(), barycentric ? barycentric->data() : nullptr, int64_t(vertices.shape(0)),
            int64_t(vertices.shape(1))};
}

// (simplices, axis neighbors, source power, target power, costs or None, factor, both ways)
template <class T>
using PairwiseArrays =
    std::tuple<Simplices<T>, NeighborTable, double, double, std::optional<Array<const T, 2>>, double, bool>;

template <class T>
PairwiseKernel<T> read(const PairwiseArrays<T>& arrays, PairwiseKernel<T>*) {
    const auto& [simplices, axis_neighbors, source_power, target_power, costs, factor, both_ways] = arrays;
    return {simplices, axis_neighbors, T(source_power), T(target_power), costs ? costs->data() : nullptr,
            T(factor), both_ways};
}

// (axis neighbors, scale, mass, strength, diagonal, data, points, weights, coarse, fine)
template <class T>
using SmoothArrays =
    std::tuple<NeighborTable, Matrix<const T>, View<const T, 1>, View<const T, 1>, Matrix<const T>, Matrix<const T>,
               Simplices<T>, Matrix<const T>, std::vector<int64_t>, std::vector<int64_t>>;

template <class T>
SmoothEquations<T> read(const SmoothArrays<T>& arrays, SmoothEquations<T>*) {
    return std::apply([](const auto&... each) { return SmoothEquations<T>{each...}; }, arrays);
}

}  // namespace permutohedral

namespace nanobind::detail {

// Reads a `Read` from the Python object that `Source` is read from.
template <class Read, class Source>
struct read_caster {
    // in stubs; Python passes DLPack capsules
    NB_TYPE_CASTER(Read, const_name("object"))

    bool from_python(handle object, uint32_t flags, cleanup_list* cleanup) noexcept {
        make_caster<Source> source;
        // a converted copy would not outlive this function
        const auto unconverted = flags & ~uint32_t(cast_flags::convert);
        if (!source.from_python(object, flags_for_local_caster<Source>(unconverted), cleanup)) return false;
        value = permutohedral::read(source.operator cast_t<Source>(), static_cast<Read*>(nullptr));
        return true;
    }
};

template <class T, int N>
struct type_caster<permutohedral::View<T, N>> : read_caster<permutohedral::View<T, N>, permutohedral::Passed<T, N>> {};
template <class T>
struct type_caster<permutohedral::Matrix<T>> : read_caster<permutohedral::Matrix<T>, permutohedral::Passed<T, 2>> {};
template <>
struct type_caster<permutohedral::NeighborTable>
    : read_caster<permutohedral::NeighborTable, permutohedral::Array<const int32_t, 2>> {};
template <class T>
struct type_caster<permutohedral::Points<T>> : read_caster<permutohedral::Points<T>, permutohedral::PointArrays<T>> {};
template <class T>
struct type_caster<permutohedral::Simplices<T>>
    : read_caster<permutohedral::Simplices<T>, permutohedral::SimplexArrays<T>> {};
template <class T>
struct type_caster<permutohedral::PairwiseKernel<T>>
    : read_caster<permutohedral::PairwiseKernel<T>, permutohedral::PairwiseArrays<T>> {};
template <class T>
struct type_caster<permutohedral::SmoothEquations<T>>
    : read_caster<permutohedral::SmoothEquations<T>, permutohedral::SmoothArrays<T>> {};

}  // namespace nanobind::detail
