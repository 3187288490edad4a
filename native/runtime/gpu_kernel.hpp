// Kernels of a GPU that were compiled elsewhere, started without a search for the right one in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace permutohedral {

// Adds the class GpuKernel to the module.
void bind_gpu_kernel(nanobind::module_& module);

}  // namespace permutohedral
