"""Every public function and layer in modes of torch, each in a process of its own: caches are filled in the mode.

Run `python tests/test_modes.py MODE` to see one mode.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from public_cases import CASES, assert_alike, run
from support import DEVICE
from torch import Tensor, nn

import permutohedral as ph

# rounding of float32 where sums have another order
TOLERANCE = 1e-4


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    # some CUDA operations of torch have no deterministic version
    torch.use_deterministic_algorithms(True, warn_only=DEVICE.type == "cuda")
    yield
    torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], Any]] = {
    # what a call makes is on the device of its inputs, also if the default device cannot compute
    "default_device": lambda: torch.device("cuda" if DEVICE.type == "cuda" else "meta"),
    "default_float64": lambda: default_dtype(torch.float64),
    "default_float16": lambda: default_dtype(torch.float16),
    "inference": torch.inference_mode,
    "deterministic": deterministic,
}


def draw(*shape: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu").to(DEVICE)


def capture() -> Tensor:
    step = ph.nn.capture_step(lambda lattice, values: ph.slice(ph.splat(values, lattice), lattice))
    result: Tensor = step(draw(20, 2), draw(20, 3))
    return result


# of the cases, made in the mode
LAYERS: dict[str, nn.Module | None] = dict.fromkeys(CASES)
# public functions without derivatives
OTHERS: dict[str, Callable[[], Any]] = {
    "estimate_error": lambda: ph.accuracy.estimate_error(draw(20, 3), draw(20, 3), draw(20, 2)).relative,
    "estimate_bilateral_error": lambda: (
        ph.accuracy.estimate_bilateral_error(draw(3, 5, 6), draw(3, 5, 6), sigma_space=2.0, sigma_color=0.2).relative
    ),
    "explain_bilateral": lambda: ph.accuracy.explain_bilateral(draw(3, 5, 6), sigma_space=2.0, sigma_color=0.2).reach,
    "explain_gaussian": lambda: ph.accuracy.explain_gaussian(draw(20, 3), draw(20, 2)).reach,
    "energies_from_labels": lambda: ph.crf.energies_from_labels(draw(5, 6).round().long(), 2, certainty=0.7),
    "gaussian_weight": lambda: ph.lattice.gaussian_weight(2, 2, device=DEVICE),
    "forecast_memory": lambda: ph.lattice.forecast_memory(100, 3).total,
    "statistics": lambda: ph.build_lattice(draw(20, 2)).statistics().missing_tap_share,
    "capture_step": capture,
    "Denoiser": lambda: ph.apps.Denoiser.from_pretrained().to(DEVICE)(draw(3, 16, 16), 0.1),
}


def compute(name: str, gradients: str) -> dict[str, Tensor]:
    if name in CASES:
        return run(CASES[name], torch.float32, layer=LAYERS[name], gradients=gradients)
    return {"result": torch.as_tensor(OTHERS[name](), device=DEVICE, dtype=torch.float32)}


def check(mode: str) -> dict[str, str]:
    """Return what is wrong in the mode, by name: errors, and results other than without it, computed later."""
    failures = {}
    for name in [*CASES, *OTHERS]:
        try:
            case = CASES.get(name)
            if case is not None and case.layer is not None:
                # inference tensors cannot be trained
                with nullcontext() if mode == "inference" else MODES[mode](), torch.device(DEVICE):
                    LAYERS[name] = case.layer().float()
            with MODES[mode]():
                found = compute(name, "none" if mode == "inference" else "all")
                again = compute(name, "all") if mode == "deterministic" else found
            assert_alike(found, again, again, 0.0, name)
            expected = compute(name, "all")
            assert_alike(found, expected, expected, TOLERANCE, name)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return failures


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    done = subprocess.run([sys.executable, __file__, mode], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    wrong = check(sys.argv[1])
    print(*(f"{name}: {text}" for name, text in wrong.items()), sep="\n")
    sys.exit(bool(wrong))
