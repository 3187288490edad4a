"""Devices without float64: functions of float32 inputs make no tensor of float64 there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from public_cases import CASES, run
from support import DEVICE
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

import permutohedral as ph

# their sums lose too much in float32
WITH_FLOAT64 = {"crf.free_energy"}


def tensors_in(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for each in given:
            yield from tensors_in(each)
    elif isinstance(given, dict):
        yield from tensors_in([*given.values()])


class Float64OnTheDevice(TorchFunctionMode):
    """Collects functions of torch that return float64 on the device of the tests.

    On a CPU, tensors count as on the device if they were made or moved with a `torch.device`, not with "cpu", or made
    of such tensors, other than by `cpu()`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        # kept, so that no other tensor gets the place of one of them in memory
        self.on_device: dict[int, Tensor] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # other tensors of float64 are made of the first
        is_first = all(each.dtype != torch.float64 for each in tensors_in((args, kwargs)) if self._is_on_device(each))
        result = function(*args, **(kwargs or {}))
        if DEVICE.type == "cpu":
            # not the argument itself
            result = result.clone() if function is Tensor.cpu else result
            if not self._makes_on_device(function, args, kwargs or {}):
                return result
            self.on_device.update((id(each), each) for each in tensors_in(result))
        on_device = (each for each in tensors_in(result) if each.device.type == DEVICE.type)
        if is_first and any(each.dtype == torch.float64 for each in on_device):
            self.found.add(str(resolve_name(function)))
        return result

    def _is_on_device(self, tensor: Tensor) -> bool:
        return tensor.device.type == DEVICE.type and (DEVICE.type != "cpu" or id(tensor) in self.on_device)

    def _makes_on_device(self, function: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if function is Tensor.cpu:
            return False
        named = any(isinstance(each, torch.device) for each in (*args, *kwargs.values()))
        return named or any(self._is_on_device(each) for each in tensors_in((args, kwargs)))


def draw(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(DEVICE)


# public functions without derivatives
OTHERS: dict[str, Callable[[], Any]] = {
    "estimate_error": lambda: ph.accuracy.estimate_error(draw(20, 3), draw(20, 3), draw(20, 2)),
    "estimate_bilateral_error": lambda: ph.accuracy.estimate_bilateral_error(
        draw(3, 5, 6), draw(3, 5, 6), sigma_space=2.0, sigma_color=0.2
    ),
    "explain_bilateral": lambda: ph.accuracy.explain_bilateral(draw(3, 5, 6), sigma_space=2.0, sigma_color=0.2),
    "auto": lambda: ph.bilateral_filter(draw(1, 200, 300), sigma_space=8.0, sigma_color=0.2, method="auto"),
    "exact": lambda: ph.bilateral_filter(draw(1, 9, 9), sigma_space=1.0, sigma_color=0.2, method="exact"),
    "statistics": lambda: ph.build_lattice(draw(20, 2)).statistics(),
    "gaussian_weight": lambda: ph.lattice.gaussian_weight(2, 2, device=DEVICE),
}


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_functions_of_float32_make_no_float64(name: str, backend: str) -> None:
    inputs = CASES[name].inputs() if name in CASES else {}
    with Float64OnTheDevice() as mode:
        if name in CASES:
            for gradients in ("all", "none"):
                run(CASES[name], torch.float32, inputs=inputs, gradients=gradients)
        else:
            OTHERS[name]()
    assert bool(mode.found) == (name in WITH_FLOAT64), mode.found
