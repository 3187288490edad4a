"""Notes how kernels are launched, for compiling them later (tests/ops/test_triton_compile.py).

`RECORDED_LAUNCHES` names the folder into which each process of the session writes a JSON file: by kernel, the launches
that differ in types or constants.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction

# of torch's dtypes, what Triton calls them
_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
_launches: dict[str, list[dict[str, Any]]] = {}
_interpret = InterpretedFunction.run


def type_of(argument: Any, annotation: Any) -> str:
    """Triton's name for the type of an argument; None has no other value, so that it is a constant."""
    if argument is None or "constexpr" in str(annotation):
        return "constexpr"
    if isinstance(argument, torch.Tensor):
        return "*" + _TYPES[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


def note_launch(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Add a launch if none of the same types and constants is known."""
    parameters = inspect.signature(kernel.fn).parameters
    given = dict(zip(parameters, arguments, strict=False)) | {n: v for n, v in options.items() if n in parameters}
    types = {name: type_of(given[name], parameters[name].annotation) for name in parameters}
    launch = {
        "types": types,
        "constants": {name: given[name] for name, kind in types.items() if kind == "constexpr"},
        "options": {name: value for name, value in options.items() if name not in parameters},
    }
    known = _launches.setdefault(f"{kernel.fn.__module__}.{kernel.fn.__name__}", [])
    if launch not in known:
        known.append(launch)


def _note_and_interpret(kernel: Any, *arguments: Any, **options: Any) -> Any:
    launched = {name: value for name, value in options.items() if name not in ("grid", "warmup")}
    note_launch(kernel, arguments, launched)
    return _interpret(kernel, *arguments, **options)


def start() -> None:
    """Note every launch from now on."""
    InterpretedFunction.run = _note_and_interpret


def write() -> None:
    """Write what was noted; processes of one session write files of their own."""
    folder = Path(os.environ["RECORDED_LAUNCHES"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}.json").write_text(json.dumps(_launches))
