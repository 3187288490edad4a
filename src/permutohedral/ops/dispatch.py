"""Which backend runs an operation: chosen by device, forced by name, never swapped in silence."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import cast

import torch
from torch import Tensor

from permutohedral.errors import BackendUnavailable, InputError
from permutohedral.ops.primitives import Primitives
from permutohedral.ops.tracing import why_in_steps


@cache
def _import(module: str) -> Primitives:
    return cast(Primitives, importlib.import_module(module))


@dataclass(frozen=True)
class Backend:
    """A module that holds the primitives, and the reasons why it may not run.

    Attributes:
        name: what `use_backend` takes.
        module: import path of the primitives.
        why_unavailable: None if the backend works on this machine, else the reason.
        why_not_on: None if the backend can run on a device of this type, else the reason.
        forced_only: device types on which it runs only when asked for by name.
    """

    name: str
    module: str
    why_unavailable: Callable[[], str | None]
    why_not_on: Callable[[str], str | None]
    forced_only: tuple[str, ...] = ()

    def refusal(self, device_type: str) -> str | None:
        """Why this backend cannot run on `device_type` here, None if it can."""
        return self.why_unavailable() or self.why_not_on(device_type)

    def load(self) -> Primitives:
        return _import(self.module)

    def fault(self) -> str | None:
        """Why it is installed here and does not load, None if it does, or is not installed."""
        if self.why_unavailable() is not None:
            return None
        try:
            self.load()
        except (ImportError, BackendUnavailable) as error:
            return str(error)
        return None


def _reference_available() -> str | None:
    return None


def _reference_runs_on(device_type: str) -> str | None:
    return None


@cache
def _native_available() -> str | None:
    # only whether it is there: one that is there and does not load raises when it is used
    if importlib.util.find_spec("permutohedral._native") is None:
        return "its compiled core is not part of this installation; install permutohedral with a C++ compiler at hand"
    return None


def _native_runs_on(device_type: str) -> str | None:
    return None if device_type == "cpu" else f"it runs on the CPU, not on device {device_type!r}"


def _triton_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _triton_available() -> str | None:
    return _triton_refusal(_triton_interpreted())


@cache
def _triton_refusal(interpreted: bool) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; install permutohedral with its extra 'gpu'"
    if interpreted or torch.cuda.is_available():
        return None
    return "torch finds no GPU on this machine, and TRITON_INTERPRET=1, which runs the kernels without one, is not set"


def _triton_runs_on(device_type: str) -> str | None:
    if device_type == "cuda" or (device_type == "cpu" and _triton_interpreted()):
        return None
    return f"it runs on GPUs, not on device {device_type!r}"


# in order of preference
_BACKENDS = [
    Backend("native", "permutohedral.ops.native", _native_available, _native_runs_on),
    Backend("triton", "permutohedral.ops.triton", _triton_available, _triton_runs_on, forced_only=("cpu",)),
    Backend("reference", "permutohedral.ops.reference", _reference_available, _reference_runs_on),
]

# One value for the process, not one per thread: autograd runs the backward pass of CUDA tensors in threads
# of its own, which must use the backend of the forward pass.
_forced: Backend | None = None


def _by_name(name: str) -> Backend:
    for backend in _BACKENDS:
        if backend.name == name:
            return backend
    names = ", ".join(repr(backend.name) for backend in _BACKENDS)
    raise InputError(f"there is no backend {name!r}; choose one of {names}")


def choose_backend(device_type: str) -> Backend:
    """The forced backend, else the first that runs on tensors of `device_type`."""
    if _forced is not None:
        reason = _forced.refusal(device_type)
        if reason is not None:
            raise BackendUnavailable(f"backend {_forced.name!r} was asked for, but {reason}")
        return _forced
    by_default = (backend for backend in _BACKENDS if device_type not in backend.forced_only)
    return next(backend for backend in by_default if backend.refusal(device_type) is None)


# what was chosen for GPUs, and under which circumstances: choosing takes as long as starting a kernel
_on_gpu: tuple[list[Backend], Backend | None, Primitives] | None = None


def primitives_for(tensor: Tensor) -> Primitives:
    """The primitives that run on the device of `tensor`."""
    global _on_gpu
    if not tensor.is_cuda:
        return choose_backend(tensor.device.type).load()
    if _on_gpu is None or _on_gpu[0] is not _BACKENDS or _on_gpu[1] is not _forced:
        _on_gpu = (_BACKENDS, _forced, choose_backend("cuda").load())
    return _on_gpu[2]


def all_backends() -> tuple[Backend, ...]:
    """Every backend, whether it works on this machine or not, in order of preference."""
    return tuple(_BACKENDS)


def available_backends() -> list[str]:
    """Names of the backends that work on this machine, in order of preference.

    >>> "reference" in available_backends()
    True
    """
    return [backend.name for backend in _BACKENDS if backend.why_unavailable() is None and backend.fault() is None]


class use_backend:
    """Force a backend for the whole process, or inside a `with` block.

    Args:
        name: "native", "triton" or "reference"; None chooses by device again.

    Raises:
        BackendUnavailable: the backend does not work on this machine; the message says why.

    >>> import torch
    >>> with use_backend("reference"):
    ...     print(explain_backend(torch.zeros(1)).split(":")[0])
    reference
    """

    def __init__(self, name: str | None) -> None:
        global _forced
        backend = None if name is None else _by_name(name)
        reason = backend and backend.why_unavailable()
        if backend is not None and reason is not None:
            raise BackendUnavailable(f"backend {backend.name!r} cannot be used: {reason}")
        self._previous, _forced = _forced, backend

    def __enter__(self) -> use_backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _forced
        _forced = self._previous


def explain_backend(tensor: Tensor | None = None) -> str:
    """Which backend runs operations on `tensor` (default: a CPU tensor), and why not the others.

    The last line tells whether a whole filter without gradients may be one call of the backend, or why not.

    >>> import torch
    >>> "reference" in explain_backend(torch.zeros(1))
    True
    """
    device_type = "cpu" if tensor is None else tensor.device.type
    chosen = choose_backend(device_type)
    how = "forced by use_backend" if _forced is not None else f"chosen for device {device_type!r}"
    fault = chosen.fault()
    lines = [f"{chosen.name}: {how}" + ("" if fault is None else f", and fails: {fault}")]
    for backend in _BACKENDS:
        if backend is not chosen:
            reason = backend.refusal(device_type) or backend.fault()
            lines.append(f"{backend.name}: {reason or 'available, not chosen'}")
    in_steps = None if tensor is None else why_in_steps(tensor)
    lines.append(f"filters: {'one call of the backend' if in_steps is None else f'in steps, since {in_steps}'}")
    return "\n".join(lines)
