"""The choice of a backend: by device, or forced by name. A forced backend is never replaced silently."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from permutohedral.errors import BackendUnavailable, InputError
from permutohedral.ops.backend import Backend

Result = TypeVar("Result")


def _loader(module: str) -> Callable[[], Backend]:
    """Return a function that imports a module and returns its `BACKEND`."""

    def load() -> Backend:
        backend: Backend = importlib.import_module(module).BACKEND
        return backend

    return load


@dataclass(frozen=True, eq=False)
class BackendEntry:
    """A backend that is loaded on first use, and the conditions under which it runs.

    Attributes:
        name: the argument of `use` and `set_default`.
        load: returns the backend.
        why_unavailable: returns the reason it does not work on this machine, or None.
        why_not_on: returns the reason it does not run on a device of this type, or None.
        forced_only: device types on which it runs only if forced by name.
    """

    name: str
    load: Callable[[], Backend]
    why_unavailable: Callable[[], str | None]
    why_not_on: Callable[[str], str | None]
    forced_only: tuple[str, ...] = ()

    def blocker(self, device_type: str) -> str | None:
        """Return the reason this backend cannot run on `device_type` here, None if it can."""
        return self.why_unavailable() or self.why_not_on(device_type)

    def fault(self) -> str | None:
        """Return the error of a backend that is installed and does not load, else None."""
        if self.why_unavailable() is not None:
            return None
        try:
            self.load()
        except (ImportError, BackendUnavailable) as error:
            return str(error)
        return None


@cache
def _native_available() -> str | None:
    # only whether it is installed: an installed core that does not load raises when it is used
    if importlib.util.find_spec("permutohedral._native") is None:
        return "its compiled core is not part of this installation; install permutohedral with a C++ compiler at hand"
    try:
        from permutohedral import _native
    except ImportError:
        return None
    if not _native.instruction_sets():
        return "its compiled core needs a processor with AVX2"
    return None


def _native_runs_on(device_type: str) -> str | None:
    return None if device_type == "cpu" else f"it runs on the CPU, not on device {device_type!r}"


def _triton_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _triton_available() -> str | None:
    return _triton_unavailable(_triton_interpreted())


@cache
def _triton_unavailable(interpreted: bool) -> str | None:
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
    BackendEntry("native", _loader("permutohedral.ops.native"), _native_available, _native_runs_on),
    BackendEntry(
        "triton", _loader("permutohedral.ops.triton"), _triton_available, _triton_runs_on, forced_only=("cpu",)
    ),
    # always, and everywhere
    BackendEntry("reference", _loader("permutohedral.ops.reference"), lambda: None, lambda device_type: None),
]

# the backend of the whole process, None for the choice by device
_default: BackendEntry | None = None
# the innermost block of this context: its backend, None for the choice by device
_block: ContextVar[tuple[BackendEntry | None] | None] = ContextVar("permutohedral_backend", default=None)


def forced_backend() -> BackendEntry | None:
    """Return the backend of the innermost block, else the process default, None for the choice by device."""
    block = _block.get()
    return _default if block is None else block[0]


def call_on(backend: BackendEntry | None, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on the backend that `forced_backend` returned earlier, such as in the forward pass."""
    if backend is forced_backend():
        return function(*arguments)
    with _force(backend):
        return function(*arguments)


def _by_name(name: str) -> BackendEntry:
    for backend in _BACKENDS:
        if backend.name == name:
            return backend
    names = ", ".join(repr(backend.name) for backend in _BACKENDS)
    raise InputError(f"there is no backend {name!r}; choose one of {names}")


def choose_backend(device_type: str) -> BackendEntry:
    """Return the forced backend, else the first that runs on tensors of `device_type`."""
    forced = forced_backend()
    if forced is not None:
        reason = forced.blocker(device_type)
        if reason is not None:
            raise BackendUnavailable(f"backend {forced.name!r} is forced, but {reason}")
        return forced
    by_default = (backend for backend in _BACKENDS if device_type not in backend.forced_only)
    return next(backend for backend in by_default if backend.blocker(device_type) is None)


# choosing takes as long as a small kernel; bounded, since a program may make backends of its own
@lru_cache(maxsize=16)
def _load(forced: BackendEntry | None, device_type: str) -> Backend:
    return choose_backend(device_type).load()


def backend_on(device_type: str) -> Backend:
    """Return the backend that runs on devices of this type."""
    # `forced_backend`
    block = _block.get()
    return _load(_default if block is None else block[0], device_type)


def all_backends() -> tuple[BackendEntry, ...]:
    """Return every backend, whether it works on this machine or not, in order of preference."""
    return tuple(_BACKENDS)


def available() -> list[str]:
    """Return the names of the backends that work on this machine, in order of preference.

    >>> import permutohedral as ph
    >>> "reference" in ph.backends.available()
    True
    """
    return [backend.name for backend in _BACKENDS if backend.why_unavailable() is None and backend.fault() is None]


def _usable(name: str | Backend | None) -> BackendEntry | None:
    if name is None:
        return None
    if isinstance(name, Backend):
        backend = name
        return BackendEntry(backend.name, lambda: backend, lambda: None, lambda device_type: None)
    entry = _by_name(name)
    reason = entry.why_unavailable()
    if reason is not None:
        raise BackendUnavailable(f"backend {name!r} cannot be used: {reason}")
    return entry


def use(name: str | Backend | None) -> AbstractContextManager[None]:
    """Force a backend inside a `with` block, for the thread or asynchronous task that opens it.

    A backward pass runs on the backend of its forward pass. `set_default` forces a backend for the whole process.

    Args:
        name: "native", "triton" or "reference"; None chooses by device. Tests also pass a `Backend`.

    Raises:
        BackendUnavailable: the backend does not work on this machine; the message says why.

    >>> import torch, permutohedral as ph
    >>> with ph.backends.use("reference"):
    ...     print(ph.backends.explain(torch.zeros(1)).name)
    reference
    """
    return _force(_usable(name))


@contextmanager
def _force(backend: BackendEntry | None) -> Iterator[None]:
    token = _block.set((backend,))
    try:
        yield
    finally:
        _block.reset(token)


def set_default(name: str | None) -> None:
    """Force a backend for the whole process, in all threads, outside of `use` blocks.

    Args:
        name: "native", "triton" or "reference"; None chooses by device again.

    Raises:
        BackendUnavailable: the backend does not work on this machine; the message says why.

    >>> import torch, permutohedral as ph
    >>> ph.backends.set_default("reference")
    >>> ph.backends.explain(torch.zeros(1)).name
    'reference'
    >>> ph.backends.set_default(None)
    """
    global _default
    _default = _usable(name)


@dataclass(frozen=True)
class BackendReport:
    """The backend of a device, and why.

    Attributes:
        name: of the backend.
        reason: why it is used.
        others: reasons why the other backends are not used, by name.
    """

    name: str
    reason: str
    others: dict[str, str]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {reason}" for name, reason in [(self.name, self.reason), *self.others.items()])


def explain(tensor: Tensor | None = None) -> BackendReport:
    """Report which backend runs operations on `tensor`, and why not the others.

    `explain_call` reports which path a given call takes.

    Args:
        tensor: default: a tensor on the CPU.

    >>> import torch, permutohedral as ph
    >>> "reference" in str(ph.backends.explain(torch.zeros(1)))
    True
    """
    device_type = "cpu" if tensor is None else tensor.device.type
    chosen = choose_backend(device_type)
    reason = "forced" if forced_backend() is not None else f"chosen for device {device_type!r}"
    fault = chosen.fault()
    others = {
        backend.name: backend.blocker(device_type) or backend.fault() or "available, not chosen"
        for backend in _BACKENDS
        if backend is not chosen
    }
    return BackendReport(chosen.name, reason if fault is None else f"{reason}, and fails: {fault}", others)
