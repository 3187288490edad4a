#include "runtime/instruction_sets.hpp"

#include <atomic>
#include <stdexcept>

#if defined(PERMUTOHEDRAL_X86)
#include <cpuid.h>
#endif

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
// What the compiler may use: the flags in CMakeLists.txt. __builtin_cpu_supports would need a library of the compiler that
// clang lacks on Windows.
struct Processor {
    unsigned leaf_1 = 0, leaf_7 = 0;
    // the registers that the system keeps for each thread
    unsigned kept_registers = 0;

    Processor() {
        unsigned eax, ebx, ecx, edx;
        if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) leaf_1 = ecx;
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) leaf_7 = ebx;
        if (leaf_1 & bit_OSXSAVE) __asm__("xgetbv" : "=a"(kept_registers), "=d"(edx) : "c"(0));
    }

    bool has(unsigned features, unsigned registers) const {
        return (leaf_1 & bit_FMA) && (leaf_7 & features) == features && (kept_registers & registers) == registers;
    }
};

constexpr unsigned avx2_features = bit_AVX2 | bit_BMI | bit_BMI2, ymm_registers = 0x06;
bool has_avx2() { return Processor().has(avx2_features, ymm_registers); }
#else
bool runs_everywhere() { return true; }
#endif

#if defined(PERMUTOHEDRAL_AVX512)
constexpr unsigned zmm_registers = 0xe6;
bool has_avx512() {
    return Processor().has(avx2_features | bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL,
                           zmm_registers);
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
