// Arrays of Python as the core reads them: borrowed through DLPack. Shapes were checked in Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

#include "kernels.hpp"

namespace permutohedral {

namespace nb = nanobind;

template <class T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

template <class T>
Simplices<T> simplices_of(const Array<const int32_t, 2>& vertices, const T* barycentric) {
    return {vertices.data(), barycentric, int64_t(vertices.shape(0)), int64_t(vertices.shape(1))};
}

template <class T>
Matrix<T> matrix_of(const Array<T, 2>& array) {
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

inline NeighborTable table_of(const Array<const int32_t, 2>& array) {
    return {array.data(), int64_t(array.shape(0)), int64_t(array.shape(1))};
}

template <class T>
Points<T> points_of(const Array<const T, 2>& features,
                    const std::optional<Array<const int32_t, 1>>& batch = std::nullopt) {
    const int32_t* items = batch.has_value() ? batch->data() : nullptr;
    return {features.data(), items, int64_t(features.shape(0)), int64_t(features.shape(1))};
}

}  // namespace permutohedral
