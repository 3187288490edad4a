// The kernels that find simplices, for one instruction set; see kernels.hpp. Compiled once per set, in a namespace named
// after it.
#include "index/embedding.hpp"
#include "index/index_points.hpp"

namespace permutohedral {
PERMUTOHEDRAL_DECLARE_TABLES(PERMUTOHEDRAL_INSTRUCTION_SET)
namespace PERMUTOHEDRAL_INSTRUCTION_SET {

template <class T>
constexpr PointKernels<T> table = {PERMUTOHEDRAL_POINT_KERNELS(PERMUTOHEDRAL_ADDRESS)};

const PointKernels<float> float32_point_kernels = table<float>;
const PointKernels<double> float64_point_kernels = table<double>;

}  // namespace PERMUTOHEDRAL_INSTRUCTION_SET
}  // namespace permutohedral
