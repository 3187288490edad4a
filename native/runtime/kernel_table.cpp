#include "runtime/kernel_table.hpp"

namespace permutohedral {
namespace PERMUTOHEDRAL_VARIANT {

const Kernels<float> float32_kernels = {
    &index_points<float>, &embed_gradient<float>,       &embed_differential<float>,
    &splat<float>,        &slice<float>,                &barycentric_gradient<float>,
    &blur<float>,         &filter_gaussian<float>,      &convolve<float>,
    &convolve_weight_gradient<float>,
};

const Kernels<double> float64_kernels = {
    &index_points<double>, &embed_gradient<double>,      &embed_differential<double>,
    &splat<double>,        &slice<double>,               &barycentric_gradient<double>,
    &blur<double>,         &filter_gaussian<double>,     &convolve<double>,
    &convolve_weight_gradient<double>,
};

}  // namespace PERMUTOHEDRAL_VARIANT
}  // namespace permutohedral
