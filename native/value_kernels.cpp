// The kernels that filter values, for one instruction set; see kernels.hpp. Compiled once per set, in a namespace named
// after it.
#include "color_grid/color_grid.hpp"
#include "crf/mean_field.hpp"
#include "filter/convolve.hpp"
#include "filter/encode.hpp"
#include "filter/gaussian.hpp"
#include "filter/largest.hpp"
#include "filter/neighbor_sums.hpp"
#include "filter/pixels.hpp"
#include "filter/slice.hpp"
#include "filter/slice_planes.hpp"
#include "filter/splat.hpp"
#include "filter/weight_gradient.hpp"
#include "filter/window_sums.hpp"
#include "guided/conjugate_gradients.hpp"
#include "index/coarsen_simplices.hpp"

namespace permutohedral {
PERMUTOHEDRAL_DECLARE_TABLES(PERMUTOHEDRAL_INSTRUCTION_SET)
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

template <class T>
constexpr ValueKernels<T> table = {PERMUTOHEDRAL_VALUE_KERNELS(PERMUTOHEDRAL_ADDRESS)};

const ValueKernels<float> float32_value_kernels = table<float>;
const ValueKernels<double> float64_value_kernels = table<double>;

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
