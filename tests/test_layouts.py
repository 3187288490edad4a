"""Every public function and layer, with inputs and incoming gradients of each layout and dtype.

Results and gradients are those of contiguous float64, up to the rounding of the dtype. Uninitialized memory is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from public_cases import CASES, WITHOUT_DERIVATIVES, Case, Input, call, make_layer, public_names
from support import DEVICE, TOLERANCE, assert_close
from torch import Tensor

import permutohedral as ph

MODES = ("float64", "float32", "float16", "bfloat16", "autocast")

Layout = Callable[[Tensor], Tensor]


def transposed(tensor: Tensor) -> Tensor:
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def sliced(tensor: Tensor) -> Tensor:
    """Every second number of a larger tensor, with a storage offset."""
    if tensor.dim() == 0:
        return torch.stack([torch.full_like(tensor, torch.nan), tensor])[1]
    large = tensor.new_full([2 * extent + 1 for extent in tensor.shape], torch.nan)
    view = large[(slice(1, None, 2),) * tensor.dim()]
    return view.copy_(tensor)


def expanded(tensor: Tensor) -> Tensor:
    """The first row in place of all, with a stride of zero."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


def one_number(tensor: Tensor) -> Tensor:
    """As the gradient of a sum: all strides are zero."""
    return tensor.new_ones(()).expand(tensor.shape)


def as_given(tensor: Tensor) -> Tensor:
    return tensor


# of inputs and of incoming gradients
LAYOUTS: list[tuple[Layout, Layout]] = [
    (as_given, as_given),
    *((layout, as_given) for layout in (transposed, sliced, expanded)),
    *((as_given, layout) for layout in (transposed, sliced, expanded, one_number)),
]


def upstream_of(output: Tensor) -> Tensor:
    """Incoming gradient of an output: numbers of six bits, which every dtype holds."""
    numbers = np.random.default_rng(output.numel()).integers(-64, 65, tuple(output.shape)) / 64
    return torch.as_tensor(numbers).to(output)


def run(
    case: Case,
    dtype: torch.dtype,
    layouts: tuple[Layout, Layout] = (as_given, as_given),
    *,
    exact: bool = False,
    autocast: bool = False,
    change: Callable[[Tensor, Input], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return results and gradients; with `exact` in contiguous float64, of the same numbers."""
    layout, upstream_layout = layouts
    layer = make_layer(case, dtype)
    if layer is not None and exact:
        layer = layer.double()
    given = {}
    for name, each in case.inputs().items():
        numbers = each.data.to(DEVICE, torch.float32 if each.wide and dtype.itemsize < 4 else dtype)
        numbers = numbers if layout is expanded and each.varies else layout(numbers)
        numbers = numbers if change is None else change(numbers, each)
        numbers = numbers.double().contiguous() if exact else numbers
        given[name] = numbers.detach().requires_grad_(each.differentiable)
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        outputs = call(case, layer, given)
    leaves = {name: tensor for name, tensor in given.items() if tensor.requires_grad}
    if layer is not None:
        leaves |= {name: each for name, each in layer.named_parameters() if each.requires_grad}
    differentiable = [output for output in outputs if output.requires_grad]
    upstream = [upstream_layout(upstream_of(output)) for output in differentiable]
    gradients = torch.autograd.grad(
        differentiable, [*leaves.values()], [each.contiguous() for each in upstream] if exact else upstream
    )
    found = {f"result {number}": output.detach() for number, output in enumerate(outputs)}
    return found | {f"gradient of {name}": each for name, each in zip(leaves, gradients, strict=True)}


def largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def assert_alike(
    found: dict[str, Tensor], expected: dict[str, Tensor], typical: dict[str, Tensor], tolerance: float, hint: str
) -> None:
    """Compare, relative to the largest number expected, also of `typical` inputs: sums may be zero but for rounding."""
    assert found.keys() == expected.keys()
    errors = {}
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape, f"{hint}: {name}"
        scale = max(largest(wanted), largest(typical[name]), torch.finfo(torch.float32).tiny)
        error = largest(found[name].double() - wanted.double()) / scale
        if not error <= tolerance:
            errors[name] = f"{error:.3g}"
    assert not errors, f"{hint}: relative errors beyond {tolerance:.3g}: {errors}"


def test_every_public_name_is_covered() -> None:
    covered = {name.split()[0] for name in CASES} | WITHOUT_DERIVATIVES
    assert covered == set(public_names()), "add a case, or the reason why a name has no derivatives"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_layouts_and_dtypes(name: str, mode: str) -> None:
    case, autocast = CASES[name], mode == "autocast"
    dtype = torch.float32 if autocast else getattr(torch, mode)
    tolerance = case.roundings * TOLERANCE[torch.bfloat16 if autocast else dtype]
    expected: dict[tuple[Layout, ...], dict[str, Tensor]] = {}
    for layouts in LAYOUTS:
        # other layouts change no number
        numbers = tuple(each if each in (expanded, one_number) else as_given for each in layouts)
        if numbers not in expected:
            expected[numbers] = run(case, dtype, layouts, exact=True)
        found = run(case, dtype, layouts, autocast=autocast)
        hint = f"{layouts[0].__name__} inputs, {layouts[1].__name__} gradients"
        assert_alike(found, expected[numbers], expected[as_given, as_given], tolerance, hint)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.batch])
def test_batch_of_one(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    alone = run(case, dtype)
    found = run(case, dtype, change=lambda numbers, each: numbers[None] if each.in_batch else numbers)
    flat = {key: each.reshape(alone[key].shape) for key, each in found.items()}
    assert_alike(flat, alone, alone, case.roundings * TOLERANCE[dtype], "a batch of one")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.empty is not None])
def test_zero_points(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]

    def cut(numbers: Tensor, each: Input) -> Tensor:
        return numbers if each.points is None else numbers.narrow(each.points, 0, 0)

    if not case.empty:
        with pytest.raises(ph.errors.InputError):
            run(case, dtype, change=cut)
        return
    for key, each in run(case, dtype, change=cut).items():
        assert bool(each.isfinite().all()), key
        assert not each.any() or key.startswith("result"), key


@pytest.mark.skipif(DEVICE.type != "cpu", reason="arrays are on the CPU")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.arrays])
def test_arrays_with_negative_strides(name: str) -> None:
    case = CASES[name]

    def flipped(array: NDArray[Any]) -> NDArray[Any]:
        return np.flip(np.flip(array).copy())

    numbers = {key: each.data.float() for key, each in case.inputs().items()}
    arrays = {key: flipped(each.numpy()) if each.dim() else each for key, each in numbers.items()}
    for found, expected in zip(call(case, None, arrays), call(case, None, numbers), strict=True):
        assert_close(torch.as_tensor(found), expected)
