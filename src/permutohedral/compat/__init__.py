"""Drop-ins for other libraries: one module each, with the names, argument order and units of the original.

import permutohedral.compat.bilateralfilter as bilateralfilter  # a program that you edit
permutohedral.compat.install("bilateralfilter")  # a program that you do not edit, before its imports

`python -m permutohedral.compat program.py` runs a program with all drop-ins.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from importlib.abc import Loader, MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from permutohedral.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType

    import torch

__all__ = ["install"]

# For each drop-in, the modules of the original and those of this package.
_DROP_INS = {
    "pydensecrf": {
        "pydensecrf": "pydensecrf",
        "pydensecrf.densecrf": "pydensecrf.densecrf",
        "pydensecrf.eigen": "pydensecrf.eigen",
        "pydensecrf.utils": "pydensecrf.utils",
    },
    "simplecrf": {"denseCRF": "simplecrf.denseCRF", "denseCRF3D": "simplecrf.denseCRF3D"},
    "bilateralfilter": {"bilateralfilter": "bilateralfilter"},
    "bilateral_solver": {"bilateral_solver": "bilateral_solver"},
    "monai": {"monai.networks.layers.filtering": "monai", "monai.networks.blocks.crf": "monai"},
    "permutohedral_encoding": {"permutohedral_encoding": "permutohedral_encoding"},
}
# Programs have modules of their own with these names, which stay unless they define the function of the original.
_FUNCTIONS = {
    "bilateralfilter": "bilateralfilter_batch",
    "bilateral_solver": "bilateral_solver_output",
    "denseCRF": "densecrf",
    "denseCRF3D": "densecrf3d",
}
# Variables that processes started by this one inherit. The first lists drop-ins for workers/sitecustomize.py.
_NAMES_VARIABLE, _DEVICE_VARIABLE = "PERMUTOHEDRAL_COMPAT", "PERMUTOHEDRAL_DEVICE"
_WORKERS = str(Path(__file__).parent / "workers")


def install(*names: str, device: str | torch.device | None = None) -> None:
    """Make imports of other libraries find the drop-ins, also in processes started later.

    A module of the program itself stays if it has only the name in common with the original.

    Args:
        names: "pydensecrf", "simplecrf", "bilateralfilter", "bilateral_solver", "monai", "permutohedral_encoding";
            default: all.
        device: torch device of the computations, such as "cuda"; default: the environment variable
            PERMUTOHEDRAL_DEVICE, or "cpu". Arguments and results stay NumPy arrays.

    Raises:
        InputError: a name is unknown, the original is already imported, or the device does not exist.

    Example, which changes the process and is not run by the tests:

        import permutohedral as ph

        ph.compat.install("pydensecrf", device="cuda")
        import pydensecrf.densecrf as dcrf  # permutohedral.compat.pydensecrf.densecrf
    """
    names = names or tuple(_DROP_INS)
    wanted: dict[str, str] = {}
    for name in names:
        if name not in _DROP_INS:
            raise InputError(f"names must be among {', '.join(_DROP_INS)}, got {name!r}")
        wanted |= {original: f"{__name__}.{module}" for original, module in _DROP_INS[name].items()}
    for original, module in wanted.items():
        if original in sys.modules and sys.modules[original].__name__ != module and not _is_another(original):
            raise InputError(f"{original} is already imported; call install before the first import of {original}")
    if device is not None:
        os.environ[_DEVICE_VARIABLE] = str(default_device(device))
    finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.modules |= wanted
    inherited = [name for name in os.environ.get(_NAMES_VARIABLE, "").split(",") if name and name not in names]
    os.environ[_NAMES_VARIABLE] = ",".join([*inherited, *names])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != _WORKERS]
    os.environ["PYTHONPATH"] = os.pathsep.join([_WORKERS, *paths])


def default_device(device: str | torch.device | None = None) -> torch.device:
    """Return `device`, by default that of PERMUTOHEDRAL_DEVICE; raise `InputError` if it does not exist."""
    import torch

    name = "device" if device is not None else _DEVICE_VARIABLE
    wanted = device if device is not None else os.environ.get(_DEVICE_VARIABLE) or "cpu"
    try:
        found = torch.device(wanted)
        if found.type == "cuda":
            # without a CUDA context, so that processes can still be forked
            if (found.index or 0) >= torch.cuda.device_count():
                raise InputError(f"{name} must exist, got {wanted}; torch finds {torch.cuda.device_count()} CUDA GPUs")
        elif found.type != "cpu":
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"{name} must be a torch device such as cpu or cuda:0, got {wanted!r}: {reason}") from None
    return found


class _Finder(MetaPathFinder):
    """Finds the drop-ins under the names of the originals; imported on first use, since some of them load torch."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.modules or _is_another(fullname):
            return None
        return ModuleSpec(fullname, _Alias(self.modules[fullname]))


def _is_another(name: str) -> bool:
    """Return whether a file of the program has the name of an original, and not its function."""
    spec = PathFinder.find_spec(name) if name in _FUNCTIONS else None
    if spec is None or not isinstance(spec.loader, SourceLoader):
        return False
    function, source = _FUNCTIONS[name], spec.loader.get_source(name) or ""
    return re.search(rf"^(def {function}\b|{function} *=)", source, flags=re.MULTILINE) is None


class _Alias(Loader):
    """Loader that registers another module under the name."""

    def __init__(self, module: str) -> None:
        self.module = module

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.module)
