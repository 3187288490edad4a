// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace permutohedral {

// What reads and writes keys and tables of integers; then the functions of points in float32 and float64.
void bind_index(nanobind::module_& module, nanobind::module_& float32, nanobind::module_& float64);

// What reads and writes values.
void bind_filter(nanobind::module_& module, nanobind::module_& float32, nanobind::module_& float64);

}  // namespace permutohedral
