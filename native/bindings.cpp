// The Python module. Kernels are bound by their list in kernels.hpp; this file binds the functions that need more.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "casters.hpp"
#include "index/neighbors.hpp"
#include "index/vertex_index.hpp"
#include "runtime/gpu_kernel.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/memory.hpp"
#include "runtime/threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace permutohedral {
namespace {

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

// A new tensor of uninitialized memory, laid out as a DLManagedTensor. Its deleter does not touch Python: tensors may be
// freed on any thread, and after the interpreter has ended.
struct FreshTensor {
    nb::dlpack::dltensor tensor;
    void* owner;
    void (*deleter)(FreshTensor*);
    std::vector<int64_t> shape;
};

void free_tensor(FreshTensor* fresh) {
    if (fresh->tensor.data != nullptr) free_memory(fresh->tensor.data);
    delete fresh;
}

// Frees the tensor of a capsule that was never consumed; consuming renames it.
void free_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;
    free_tensor(static_cast<FreshTensor*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

// Returns a DLPack capsule that owns `memory`.
nb::object to_capsule(Memory memory, std::vector<int64_t> shape, bool floating, int bits) {
    auto fresh = std::make_unique<FreshTensor>();
    fresh->shape = std::move(shape);
    fresh->deleter = free_tensor;
    const auto code = floating ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::Int;
    fresh->tensor.device = {nb::device::cpu::value, 0};
    fresh->tensor.ndim = int32_t(fresh->shape.size());
    fresh->tensor.dtype = {uint8_t(code), uint8_t(bits), 1};
    fresh->tensor.shape = fresh->shape.data();
    fresh->tensor.data = memory.data();
    PyObject* capsule = PyCapsule_New(fresh.get(), "dltensor", free_capsule);
    if (capsule == nullptr) throw nb::python_error();
    memory.release();
    fresh.release();
    return nb::steal(capsule);
}

nb::object allocate(std::vector<int64_t> shape, bool floating, int bits) {
    size_t bytes = size_t(bits) / 8;
    for (const int64_t size : shape) bytes *= size_t(size);
    return to_capsule(Memory(bytes), std::move(shape), floating, bits);
}

// Python runs signal handlers on this thread only
unsigned long main_thread = 0;

// Runs the signal handlers during a long call, such as after Ctrl-C; an exception of theirs ends the call.
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

// Ends an index: returns the keys and the lookup table as DLPack capsules.
std::pair<nb::object, nb::object> finish(VertexIndex& index) {
    const int64_t rows = index.num_lattice_points, columns = index.packing.num_columns, words = index.table_size();
    Memory keys(sizeof(int32_t) * rows * columns), table(sizeof(int64_t) * words);
    {
        nb::gil_scoped_release release;
        index.finish(as<int32_t>(keys), as<int64_t>(table));
    }
    return {to_capsule(std::move(keys), {rows, columns}, false, 32), to_capsule(std::move(table), {words}, false, 64)};
}

// Returns None where a feature is out of range.
template <class T>
std::optional<std::pair<nb::object, nb::object>> index_points(Points<T> points, T limit, Matrix<int32_t> vertices,
                                                              Matrix<T> barycentric, int threads) {
    VertexIndex index(points.num_points, points.d + 1, vertices.data, threads);
    bool fits;
    {
        nb::gil_scoped_release release;
        fits = point_kernels<T>().index_points(points, limit, index, barycentric.data);
    }
    if (!fits) return std::nullopt;
    return finish(index);
}

// Numbers the keys that `number` makes of each row, one or two.
template <void (*number)(VertexIndex&, const int32_t*, int64_t)>
std::pair<nb::object, nb::object> index_rows(Matrix<const int32_t> keys, Matrix<int32_t> numbers, int threads) {
    VertexIndex index(keys.num_rows * numbers.num_channels, 1, numbers.data, threads);
    {
        nb::gil_scoped_release release;
        number(index, keys.data, keys.num_channels);
    }
    return finish(index);
}

template <class T>
MeanField<T> read_field(View<const T, 3> energies, std::optional<View<const T, 3>> start,
                        const std::vector<PairwiseKernel<T>>& kernels, int64_t steps, T smallest_mass) {
    const auto& [items, labels, points] = energies.shape;
    const T* first = start ? start->data : nullptr;
    return {energies.data, first, items, labels, points, kernels.data(), int64_t(kernels.size()), steps, smallest_mass};
}

// Returns the state for the gradient as DLPack capsules, if it is wanted.
template <class T>
std::vector<nb::object> mean_field(View<const T, 3> energies, std::optional<View<const T, 3>> start,
                                   const std::vector<PairwiseKernel<T>>& kernels, int64_t steps, T smallest_mass,
                                   bool with_state, View<T, 3> out, int threads) {
    FieldState state;
    {
        nb::gil_scoped_release release;
        const MeanField<T> field = read_field(energies, start, kernels, steps, smallest_mass);
        value_kernels<T>().mean_field(field, out.data, with_state ? &state : nullptr, threads);
    }
    std::vector<nb::object> capsules;
    for (Memory& each : state) {
        const auto size = int64_t(each.size() / sizeof(T));
        capsules.push_back(to_capsule(std::move(each), {size}, true, 8 * sizeof(T)));
    }
    return capsules;
}

template <class T>
void mean_field_gradient(View<const T, 3> energies, std::optional<View<const T, 3>> start,
                         const std::vector<PairwiseKernel<T>>& kernels, int64_t steps, T smallest_mass,
                         const std::vector<View<const T, 1>>& state, View<const T, 3> gradient, View<T, 3> to_energies,
                         std::optional<View<T, 3>> to_start, const std::vector<Matrix<T>>& to_kernels, int threads) {
    FieldGradients<T> out{to_energies.data, to_start ? to_start->data : nullptr, {}};
    for (const Matrix<T>& each : to_kernels) out.kernels.push_back(each.data);
    const MeanField<T> field = read_field(energies, start, kernels, steps, smallest_mass);
    value_kernels<T>().mean_field_gradient(field, state, gradient.data, out, threads);
}

// Whether Python can pass a parameter of a kernel.
template <class Parameter>
constexpr bool is_bindable = !std::is_pointer_v<Parameter> && !std::is_same_v<std::decay_t<Parameter>, VertexIndex> &&
                             !std::is_same_v<std::decay_t<Parameter>, MeanField<float>> &&
                             !std::is_same_v<std::decay_t<Parameter>, MeanField<double>>;

// Binds a kernel of the tables that `kernels` returns, unless it is bound by hand.
template <class Module, class Table, class Result, class... Parameters>
void bind_kernel(Module& module, const char* name, const Table& (*kernels)(), Result (*Table::*kernel)(Parameters...)) {
    if constexpr ((is_bindable<Parameters> && ...)) {
        module.def_static(
            name, [=](Parameters... arguments) -> Result { return (kernels().*kernel)(arguments...); }, ReleaseGil());
    }
}

// The kernels for one dtype, as static methods of a class.
template <class T>
void bind_kernels(nb::module_& module, const char* name) {
    nb::class_<ValueKernels<T>> kernels(module, name);
#define BIND_POINT_KERNEL(name, result, parameters) \
    bind_kernel(kernels, #name, &point_kernels<T>, &PointKernels<T>::name);
#define BIND_VALUE_KERNEL(name, result, parameters) \
    bind_kernel(kernels, #name, &value_kernels<T>, &ValueKernels<T>::name);
    PERMUTOHEDRAL_POINT_KERNELS(BIND_POINT_KERNEL)
    PERMUTOHEDRAL_VALUE_KERNELS(BIND_VALUE_KERNEL)
    kernels.def_static("index_points", &index_points<T>);
    kernels.def_static("mean_field", &mean_field<T>);
    kernels.def_static("mean_field_gradient", &mean_field_gradient<T>, ReleaseGil());
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
    module.attr("LEAST_KEPT_BYTES") = least_kept_bytes;
    bind_gpu_kernel(module);
    module.def("instruction_sets", &supported_instruction_sets,
               "Return the instruction sets that this processor supports, the widest first.");
    module.def("instruction_set", [] { return std::string(chosen_instruction_set().name); });
    module.def("use_instruction_set", &use_instruction_set, "name"_a);
    module.def("allocate", &allocate, "shape"_a, "floating"_a, "bits"_a,
               "Return a new tensor of uninitialized memory, as a DLPack capsule.");
    module.def("kept_memory", &kept_memory, "Return the bytes that are free, but not returned to the system.");
    module.def("kept_memory_limit", &kept_memory_limit);
    module.def("limit_kept_memory", &limit_kept_memory, "limit"_a);
    module.def("index_keys", &index_rows<index_keys>);
    module.def("index_parents", &index_rows<index_parents>);
    module.def("find_neighbors", &find_neighbors, ReleaseGil());
    module.def("transpose_neighbors", &transpose_neighbors, ReleaseGil());
    bind_kernels<float>(module, "float32");
    bind_kernels<double>(module, "float64");
}
