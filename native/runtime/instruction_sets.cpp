#include "kernels.hpp"

#include <atomic>

namespace permutohedral {

#if defined(PERMUTOHEDRAL_X86)
namespace avx512 {
extern const Kernels<float> float32_kernels;
extern const Kernels<double> float64_kernels;
}  // namespace avx512
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
// what -march=x86-64-v4 and -v3 may use
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

bool always() { return true; }

std::atomic<int> chosen{-1};

}  // namespace

const Variant variants[] = {
#if defined(PERMUTOHEDRAL_X86)
    {"avx512", has_avx512, &avx512::float32_kernels, &avx512::float64_kernels},
    {"avx2", has_avx2, &avx2::float32_kernels, &avx2::float64_kernels},
#endif
    {"baseline", always, &baseline::float32_kernels, &baseline::float64_kernels},
};

const int num_variants = int(sizeof(variants) / sizeof(variants[0]));

const Variant& chosen_variant() {
    int index = chosen.load(std::memory_order_relaxed);
    if (index < 0) {
        index = 0;
        while (!variants[index].supported()) ++index;
        chosen.store(index, std::memory_order_relaxed);
    }
    return variants[index];
}

void choose_variant(int index) { chosen.store(index, std::memory_order_relaxed); }

template <>
const Kernels<float>& kernels<float>() {
    return *chosen_variant().float32;
}

template <>
const Kernels<double>& kernels<double>() {
    return *chosen_variant().float64;
}

}  // namespace permutohedral
