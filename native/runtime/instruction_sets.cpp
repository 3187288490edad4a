#include "runtime/instruction_sets.hpp"

#include <atomic>
#include <stdexcept>

namespace permutohedral {

#if defined(PERMUTOHEDRAL_AVX512)
PERMUTOHEDRAL_DECLARE_TABLES(avx512)
#endif
#if defined(PERMUTOHEDRAL_X86)
PERMUTOHEDRAL_DECLARE_TABLES(avx2)
#else
PERMUTOHEDRAL_DECLARE_TABLES(baseline)
#endif

namespace {

#if defined(PERMUTOHEDRAL_X86)
// what the compiler may use: the flags in CMakeLists.txt
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}
#else
bool runs_everywhere() { return true; }
#endif

#if defined(PERMUTOHEDRAL_AVX512)
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

// -1 before the first call
std::atomic<int> chosen{-1};

}  // namespace

#define PERMUTOHEDRAL_SET(set, is_supported) \
    {#set,                                   \
     is_supported,                           \
     &set::float32_point_kernels,            \
     &set::float64_point_kernels,            \
     &set::float32_value_kernels,            \
     &set::float64_value_kernels}

const InstructionSet instruction_sets[] = {
#if defined(PERMUTOHEDRAL_AVX512)
    PERMUTOHEDRAL_SET(avx512, has_avx512),
#endif
#if defined(PERMUTOHEDRAL_X86)
    PERMUTOHEDRAL_SET(avx2, has_avx2),
#else
    PERMUTOHEDRAL_SET(baseline, runs_everywhere),
#endif
};

const int num_instruction_sets = int(sizeof(instruction_sets) / sizeof(instruction_sets[0]));

const InstructionSet& chosen_instruction_set() {
    int index = chosen.load(std::memory_order_relaxed);
    if (index < 0) {
        for (index = 0; index < num_instruction_sets && !instruction_sets[index].is_supported();) ++index;
        if (index == num_instruction_sets) throw std::runtime_error("this processor has no AVX2");
        chosen.store(index, std::memory_order_relaxed);
    }
    return instruction_sets[index];
}

void choose_instruction_set(int index) { chosen.store(index, std::memory_order_relaxed); }

template <>
const PointKernels<float>& point_kernels<float>() {
    return *chosen_instruction_set().float32_points;
}

template <>
const PointKernels<double>& point_kernels<double>() {
    return *chosen_instruction_set().float64_points;
}

template <>
const ValueKernels<float>& value_kernels<float>() {
    return *chosen_instruction_set().float32_values;
}

template <>
const ValueKernels<double>& value_kernels<double>() {
    return *chosen_instruction_set().float64_values;
}

}  // namespace permutohedral
