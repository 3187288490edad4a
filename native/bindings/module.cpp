// The Python module: its memory, its threads, its choice of instructions; the other files here bind what it computes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/parts.hpp"
#include "forecast.hpp"
#include "kernels.hpp"
#include "runtime/cache_sizes.hpp"
#include "runtime/gpu_kernel.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace permutohedral {
namespace {

// A new tensor of uninitialized memory, laid out as a DLManagedTensor. Its deleter does not touch Python: tensors may be
// freed on any thread, and after the interpreter has ended.
struct FreshTensor {
    nb::dlpack::dltensor tensor;
    void* owner;
    void (*deleter)(FreshTensor*);
    std::vector<int64_t> shape;
};

void free_tensor(FreshTensor* fresh) {
    free_memory(fresh->tensor.data);
    delete fresh;
}

// A capsule that nobody has consumed still owns its tensor; consuming it renames it.
void free_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
    free_tensor(static_cast<FreshTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

nb::object allocate(std::vector<int64_t> shape, bool floating, int bits) {
    size_t bytes = size_t(bits) / 8;
    for (const int64_t size : shape) bytes *= size_t(size);
    auto fresh = std::make_unique<FreshTensor>();
    fresh->shape = std::move(shape);
    fresh->deleter = free_tensor;
    const auto code = floating ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::Int;
    fresh->tensor.device = {nb::device::cpu::value, 0};
    fresh->tensor.ndim = int32_t(fresh->shape.size());
    fresh->tensor.dtype = {uint8_t(code), uint8_t(bits), 1};
    fresh->tensor.shape = fresh->shape.data();
    fresh->tensor.data = allocate_memory(bytes);
    PyObject* capsule = PyCapsule_New(fresh.get(), "dltensor", free_capsule);
    if (capsule == nullptr) {
        free_memory(fresh->tensor.data);
        throw nb::python_error();
    }
    fresh.release();
    return nb::steal(capsule);
}

// Python runs signal handlers on this thread only
unsigned long main_thread = 0;

// For Ctrl-C during a long call: runs the handlers, and what they raise ends the call.
void handle_signals() {
    if (PyThread_get_thread_ident() != main_thread) return;
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::vector<std::string> supported_instruction_sets() {
    std::vector<std::string> names;
    for (int i = 0; i < num_instruction_sets; ++i) {
        if (instruction_sets[i].is_supported()) names.emplace_back(instruction_sets[i].name);
    }
    return names;
}

void use_instruction_set(const std::string& name) {
    for (int i = 0; i < num_instruction_sets; ++i) {
        const InstructionSet& set = instruction_sets[i];
        if (name == set.name && set.is_supported()) return choose_instruction_set(i);
    }
    throw std::invalid_argument("this processor does not support the instruction set " + name);
}

nb::tuple forecast(int64_t num_points, int64_t dimension, int64_t num_lattice_points, int64_t element_bytes,
                   double row_bytes, bool ordered, int threads) {
    const CoreMemory memory =
        forecast_memory({num_points, dimension, num_lattice_points, element_bytes, row_bytes, ordered, threads});
    return nb::make_tuple(memory.table, memory.scratch, memory.order);
}

}  // namespace
}  // namespace permutohedral

NB_MODULE(_native, module) {
    using namespace permutohedral;
    // kernels of a GPU are kept until the process ends
    nb::set_leak_warnings(false);
    main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    set_interruption(handle_signals);
    module.attr("MAX_DIMENSION") = max_dimension;
    module.attr("CACHE_LINE_BYTES") = cache_line_bytes;
    module.attr("LEAST_KEPT_BYTES") = least_kept_bytes;
    bind_gpu_kernel(module);
    module.def("allocate", &allocate, "shape"_a, "floating"_a, "bits"_a);
    module.def("forecast", &forecast, "num_points"_a, "dimension"_a, "num_lattice_points"_a, "element_bytes"_a,
               "row_bytes"_a, "ordered"_a, "threads"_a);
    module.def("kept_memory", &kept_memory);
    module.def("limit_kept_memory", &limit_kept_memory, "limit"_a);
    nb::module_ float32 = module.def_submodule("float32"), float64 = module.def_submodule("float64");
    bind_index(module, float32, float64);
    bind_filter(module, float32, float64);
    module.def("instruction_sets", &supported_instruction_sets);
    module.def("instruction_set", [] { return std::string(chosen_instruction_set().name); });
    module.def("use_instruction_set", &use_instruction_set);
}
