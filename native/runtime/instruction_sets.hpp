// The choice, at run time, among the instruction sets that the kernels were compiled for.
#pragma once

#include "kernels.hpp"

namespace permutohedral {

struct InstructionSet {
    const char* name;
    bool (*is_supported)();
    const Kernels<float>* float32;
    const Kernels<double>* float64;
};

// Those of this build, the widest vectors first; the last one runs on every processor of the architecture.
extern const InstructionSet instruction_sets[];
extern const int num_instruction_sets;

// The first that this processor supports, unless another was chosen.
const InstructionSet& chosen_instruction_set();
void choose_instruction_set(int index);

template <class T>
const Kernels<T>& kernels();

}  // namespace permutohedral
