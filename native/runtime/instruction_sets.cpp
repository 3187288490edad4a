#include "runtime/instruction_sets.hpp"

#include <atomic>

namespace permutohedral {

#if defined(PERMUTOHEDRAL_AVX512)
namespace avx512 {
extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;
}  // namespace avx512
#endif
#if defined(PERMUTOHEDRAL_X86)
namespace avx2 {
extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;
}  // namespace avx2
#endif
namespace baseline {
extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;
}  // namespace baseline

namespace {

#if defined(PERMUTOHEDRAL_X86)
// what the compiler may use: the flags in CMakeLists.txt
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}
#endif

#if defined(PERMUTOHEDRAL_AVX512)
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

bool runs_everywhere() { return true; }

// -1 before the first call
std::atomic<int> chosen{-1};

}  // namespace

const InstructionSet instruction_sets[] = {
#if defined(PERMUTOHEDRAL_AVX512)
    {"avx512", has_avx512, &avx512::float32_kernels, &avx512::float64_kernels},
#endif
#if defined(PERMUTOHEDRAL_X86)
    {"avx2", has_avx2, &avx2::float32_kernels, &avx2::float64_kernels},
#endif
    {"baseline", runs_everywhere, &baseline::float32_kernels, &baseline::float64_kernels},
};

const int num_instruction_sets = int(sizeof(instruction_sets) / sizeof(instruction_sets[0]));

const InstructionSet& chosen_instruction_set() {
    int index = chosen.load(std::memory_order_relaxed);
    if (index < 0) {
        index = 0;
        while (!instruction_sets[index].is_supported()) ++index;
        chosen.store(index, std::memory_order_relaxed);
    }
    return instruction_sets[index];
}

void choose_instruction_set(int index) { chosen.store(index, std::memory_order_relaxed); }

template <>
const Kernels<float>& kernels<float>() {
    return *chosen_instruction_set().float32;
}

template <>
const Kernels<double>& kernels<double>() {
    return *chosen_instruction_set().float64;
}

}  // namespace permutohedral
