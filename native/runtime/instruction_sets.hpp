// The choice, at run time, among the instruction sets that the kernels were compiled for.
#pragma once

#include "kernels.hpp"

namespace permutohedral {

struct InstructionSet {
    const char* name;
    bool (*is_supported)();
    const PointKernels<float>* float32_points;
    const PointKernels<double>* float64_points;
    const ValueKernels<float>* float32_values;
    const ValueKernels<double>* float64_values;
};

// Those of this build, the widest vectors first.
extern const InstructionSet instruction_sets[];
extern const int num_instruction_sets;

// The first that this processor supports, unless another was chosen. Throws std::runtime_error if it supports none.
const InstructionSet& chosen_instruction_set();
void choose_instruction_set(int index);

template <class T>
const PointKernels<T>& point_kernels();
template <class T>
const ValueKernels<T>& value_kernels();

}  // namespace permutohedral
