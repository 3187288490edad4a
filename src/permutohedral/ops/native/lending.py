"""Tensors are lent to the compiled core as capsules of DLPack: torch makes one in an eighth of the time that the core
takes to ask for one."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from torch import Tensor
from torch.utils import dlpack

Module = TypeVar("Module")

to_dlpack: Any = dlpack.to_dlpack  # type: ignore[attr-defined]


def lend(module: Module) -> Module:
    """A module of the core, whose functions are given capsules for tensors."""
    return cast(Module, _Lending(module))


class _Lending:
    def __init__(self, module: object) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)

        def call(*arguments: Any) -> Any:
            return found(*[to_dlpack(each) if isinstance(each, Tensor) else each for each in arguments])

        kept = call if callable(found) else found
        # found without this method from now on
        setattr(self, name, kept)
        return kept
