"""Which backend runs an operation: chosen by device, forced by name, never swapped in silence."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
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
    # always, and everywhere
    Backend("reference", "permutohedral.ops.reference", lambda: None, lambda device_type: None),
]

# What was asked for and still holds, in that order; replaced, never changed, so that it can be read without the lock.
_requests: tuple[use_backend, ...] = ()
_lock = threading.Lock()
# calls that open no block are forgotten beyond the latest ones, each of which hides those before it
_MOST_CALLS = 64


def forced_backend() -> Backend | None:
    """The backend asked for, None where it is chosen by device.

    A thread inside a block of its own follows the latest request of its own; any other thread, such as those in which
    autograd runs backward passes, the latest of all.
    """
    requests = _requests
    if not requests:
        return None
    thread = threading.get_ident()
    if len(requests) > 1 and any(each.in_block and each.thread == thread for each in requests):
        requests = tuple(each for each in requests if each.thread == thread)
    return requests[-1].backend


def _by_name(name: str) -> Backend:
    for backend in _BACKENDS:
        if backend.name == name:
            return backend
    names = ", ".join(repr(backend.name) for backend in _BACKENDS)
    raise InputError(f"there is no backend {name!r}; choose one of {names}")


def choose_backend(device_type: str) -> Backend:
    """The forced backend, else the first that runs on tensors of `device_type`."""
    forced = forced_backend()
    if forced is not None:
        reason = forced.refusal(device_type)
        if reason is not None:
            raise BackendUnavailable(f"backend {forced.name!r} was asked for, but {reason}")
        return forced
    by_default = (backend for backend in _BACKENDS if device_type not in backend.forced_only)
    return next(backend for backend in by_default if backend.refusal(device_type) is None)


# what was chosen for GPUs, and under which circumstances: choosing takes as long as starting a kernel
_on_gpu: tuple[list[Backend], Backend | None, Primitives] | None = None


def primitives_for(tensor: Tensor) -> Primitives:
    """The primitives that run on the device of `tensor`."""
    global _on_gpu
    if not tensor.is_cuda:
        return choose_backend(tensor.device.type).load()
    forced, known = forced_backend(), _on_gpu
    if known is None or known[0] is not _BACKENDS or known[1] is not forced:
        known = _on_gpu = (_BACKENDS, forced, choose_backend("cuda").load())
    return known[2]


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

    The block holds for the thread that opens it, and for threads without a block of their own. A backward pass
    runs on the backend of its forward pass, wherever it is started.

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
        self.backend = None if name is None else _by_name(name)
        reason = self.backend and self.backend.why_unavailable()
        if self.backend is not None and reason is not None:
            raise BackendUnavailable(f"backend {self.backend.name!r} cannot be used: {reason}")
        self._ask(in_block=False)

    def _ask(self, in_block: bool) -> None:
        global _requests
        self.in_block, self.thread = in_block, threading.get_ident()
        with _lock:
            calls = [each for each in _requests if not each.in_block and each is not self]
            forgotten = calls[:-_MOST_CALLS]
            _requests = (*(each for each in _requests if each is not self and each not in forgotten), self)

    def __enter__(self) -> use_backend:
        self._ask(in_block=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _requests
        with _lock:
            _requests = tuple(each for each in _requests if each is not self)


def on_backend(backend: Backend | None) -> use_backend:
    """A block on the backend that `forced_backend` told elsewhere."""
    return use_backend(None if backend is None else backend.name)


def explain_backend(tensor: Tensor | None = None) -> str:
    """Which backend runs operations on `tensor` (default: a CPU tensor), and why not the others.

    The last line tells whether a whole filter without gradients may be one call of the backend, or why not.

    >>> import torch
    >>> "reference" in explain_backend(torch.zeros(1))
    True
    """
    device_type = "cpu" if tensor is None else tensor.device.type
    chosen = choose_backend(device_type)
    how = "forced by use_backend" if forced_backend() is not None else f"chosen for device {device_type!r}"
    fault = chosen.fault()
    lines = [f"{chosen.name}: {how}" + ("" if fault is None else f", and fails: {fault}")]
    for backend in _BACKENDS:
        if backend is not chosen:
            reason = backend.refusal(device_type) or backend.fault()
            lines.append(f"{backend.name}: {reason or 'available, not chosen'}")
    in_steps = None if tensor is None else why_in_steps(tensor)
    lines.append(f"filters: {'one call of the backend' if in_steps is None else f'in steps, since {in_steps}'}")
    return "\n".join(lines)
