#include "runtime/gpu_kernel.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace permutohedral {
namespace {

using Tuple = nb::typed<nb::tuple, nb::object, nb::ellipsis>;

// cuLaunchKernel of the CUDA driver: function, grid, block, shared memory, stream, parameters, options
using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                       void**);

constexpr size_t most_arguments = 64;
// memory that Triton may ask for behind the arguments, and did not for the kernels that are started here
constexpr size_t scratch_arguments = 2;
// kernels are compiled for pointers that are multiples of 16 bytes
constexpr uint64_t misaligned = 15;

// The arguments of a launch.
struct KernelLaunch {
    Launch launch;
    void* function;
    unsigned programs[3], threads, shared_bytes;
    void* stream;
    size_t num_arguments;
    uint64_t arguments[most_arguments + scratch_arguments];

    // The driver's error, 0 for none.
    int run() {
        if (programs[0] == 0 || programs[1] == 0 || programs[2] == 0) return 0;
        void* parameters[most_arguments + scratch_arguments];
        for (size_t i = 0; i < num_arguments; ++i) parameters[i] = &arguments[i];
        // the driver may have to wait until its queue has room
        nb::gil_scoped_release unlocked;
        return launch(function, programs[0], programs[1], programs[2], threads, 1, 1, shared_bytes, stream, parameters,
                      nullptr);
    }
};

// A launch to be repeated; it keeps its tensors.
class PreparedLaunch {
public:
    PreparedLaunch(const KernelLaunch& start, nb::tuple tensors) : launch_(start), tensors_(std::move(tensors)) {}

    void run() {
        const int error = launch_.run();
        if (error != 0)
            throw std::runtime_error("the driver could not launch a kernel: error " + std::to_string(error));
    }

private:
    KernelLaunch launch_;
    nb::tuple tensors_;
};

// A compiled kernel for one device and tuple of dtypes.
struct Binary {
    int device;
    std::vector<PyObject*> dtypes;
    // 'i' or 'f' for each size: int32 or float32
    std::string sizes;
    void* function;
    unsigned threads, shared_bytes;
};

// A new reference, or null with no exception set.
PyObject* or_null(PyObject* object) {
    if (object == nullptr) PyErr_Clear();
    return object;
}

class GpuKernel {
public:
    GpuKernel(uint64_t launch, nb::object data_ptr)
        : launch_(reinterpret_cast<Launch>(launch)),
          data_ptr_(std::move(data_ptr)),
          dtype_name_(nb::str("dtype")) {}

    // Starts the binary for these tensors and sizes: false if none was kept or they are out of the ordinary, or if the
    // driver reports an error.
    bool start(Tuple grid, Tuple tensors, Tuple sizes, int device, uint64_t stream) const {
        KernelLaunch start;
        return read(start, grid, tensors, sizes, device, stream) && start.run() == 0;
    }

    // The same for later, None instead of false.
    std::optional<PreparedLaunch> prepare(Tuple grid, Tuple tensors, Tuple sizes, int device, uint64_t stream) const {
        KernelLaunch start;
        if (!read(start, grid, tensors, sizes, device, stream)) return std::nullopt;
        return PreparedLaunch(start, tensors);
    }

    // Keeps what the kernel was compiled to for such tensors and sizes.
    void keep(int device, Tuple dtypes, std::string sizes, uint64_t function, unsigned threads, unsigned shared_bytes) {
        Binary binary{device, {}, std::move(sizes), reinterpret_cast<void*>(function), threads, shared_bytes};
        for (nb::handle dtype : dtypes) binary.dtypes.push_back(dtype.ptr());
        for (Binary& known : binaries_) {
            if (known.device == device && known.dtypes == binary.dtypes) {
                known = std::move(binary);
                return;
            }
        }
        binaries_.push_back(std::move(binary));
    }

private:
    bool read(KernelLaunch& start, const nb::tuple& grid, const nb::tuple& tensors, const nb::tuple& sizes, int device,
              uint64_t stream) const {
        const size_t num_tensors = tensors.size(), num_sizes = sizes.size();
        if (num_tensors + num_sizes > most_arguments || grid.size() != 3) return false;
        PyObject* dtypes[most_arguments];
        uint64_t addresses = 0;
        for (size_t i = 0; i < num_tensors; ++i) {
            PyObject* tensor = PyTuple_GetItem(tensors.ptr(), Py_ssize_t(i));
            dtypes[i] = or_null(PyObject_GetAttr(tensor, dtype_name_.ptr()));
            if (dtypes[i] == nullptr) return false;
            // torch keeps its dtypes for ever
            Py_DECREF(dtypes[i]);
            PyObject* address = or_null(PyObject_Vectorcall(data_ptr_.ptr(), &tensor, 1, nullptr));
            if (address == nullptr) return false;
            start.arguments[i] = PyLong_AsUnsignedLongLong(address);
            Py_DECREF(address);
            addresses |= start.arguments[i];
        }
        if (addresses & misaligned) return false;
        const Binary* binary = find(dtypes, num_tensors, device);
        if (binary == nullptr || binary->sizes.size() != num_sizes) return false;
        for (size_t i = 0; i < num_sizes; ++i) {
            PyObject* size = PyTuple_GetItem(sizes.ptr(), Py_ssize_t(i));
            if (!write_size(size, binary->sizes[i], start.arguments[num_tensors + i])) return false;
        }
        start.num_arguments = num_tensors + num_sizes + scratch_arguments;
        for (size_t i = 1; i <= scratch_arguments; ++i) start.arguments[start.num_arguments - i] = 0;
        for (size_t i = 0; i < 3; ++i) {
            PyObject* programs = PyTuple_GetItem(grid.ptr(), Py_ssize_t(i));
            start.programs[i] = unsigned(PyLong_AsUnsignedLongMask(programs));
            if (PyErr_Occurred()) throw nb::python_error();
        }
        start.launch = launch_;
        start.function = binary->function;
        start.threads = binary->threads;
        start.shared_bytes = binary->shared_bytes;
        start.stream = reinterpret_cast<void*>(stream);
        return true;
    }

    const Binary* find(PyObject* const* dtypes, size_t number, int device) const {
        for (const Binary& binary : binaries_) {
            if (binary.device != device || binary.dtypes.size() != number) continue;
            bool same = true;
            for (size_t i = 0; i < number; ++i) same = same && binary.dtypes[i] == dtypes[i];
            if (same) return &binary;
        }
        return nullptr;
    }

    static bool write_size(PyObject* size, char kind, uint64_t& argument) {
        if (kind == 'f') {
            const float number = float(PyFloat_AsDouble(size));
            if (PyErr_Occurred()) throw nb::python_error();
            std::memcpy(&argument, &number, sizeof number);
            return true;
        }
        if (PyFloat_Check(size)) return false;
        const long long number = PyLong_AsLongLong(size);
        if (PyErr_Occurred()) throw nb::python_error();
        const int32_t narrow = int32_t(number);
        std::memcpy(&argument, &narrow, sizeof narrow);
        return narrow == number;
    }

    Launch launch_;
    nb::object data_ptr_;
    nb::str dtype_name_;
    std::vector<Binary> binaries_;
};

}  // namespace

void bind_gpu_kernel(nb::module_& module) {
    nb::class_<PreparedLaunch>(module, "PreparedLaunch").def("__call__", &PreparedLaunch::run);
    nb::class_<GpuKernel>(module, "GpuKernel")
        .def(nb::init<uint64_t, nb::object>(), "launch"_a, "data_ptr"_a)
        .def("start", &GpuKernel::start, "grid"_a, "tensors"_a, "sizes"_a, "device"_a, "stream"_a)
        .def("prepare", &GpuKernel::prepare, "grid"_a, "tensors"_a, "sizes"_a, "device"_a, "stream"_a)
        .def("keep", &GpuKernel::keep, "device"_a, "dtypes"_a, "sizes"_a, "function"_a, "threads"_a, "shared_bytes"_a);
}

}  // namespace permutohedral
