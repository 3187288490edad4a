"""The simplex of the lattice around each point, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def compact_storage(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if it is a small part of its storage, all of which would be saved with it.

    >>> import torch
    >>> compact_storage(torch.zeros(100)[:3]).untyped_storage().nbytes()
    12
    """
    return tensor.clone() if tensor.untyped_storage().nbytes() > 2 * tensor.nbytes else tensor


@dataclass(frozen=True, eq=False)
class Simplices:
    """The simplex around each point of a set.

    Attributes:
        keys: int32 `[lattice_points, 1 + d]`, batch item and first d coordinates of each lattice point.
        vertices: int32 `[points, d + 1]`, rows of `keys`: the corners of each point's simplex.
        barycentric: `[points, d + 1]`, the weights b_{i,j} of the corners.
        table: lookup table of the keys; only the backend that made it can read it.
        bounded: whether there is room for more lattice points than there are, so that a CUDA graph can refill it.
        backend: name of the backend that made `table`.

    >>> import torch
    >>> import permutohedral as ph
    >>> ph.build_lattice(torch.rand(10, 2)).source.vertices.shape
    torch.Size([10, 3])
    """

    keys: Tensor
    vertices: Tensor
    barycentric: Tensor
    table: Tensor
    bounded: bool = field(default=False, kw_only=True)
    backend: str = field(default="", kw_only=True)

    @property
    def num_points(self) -> int:
        return self.vertices.shape[0]

    @property
    def num_lattice_points(self) -> int:
        return self.keys.shape[0]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"keys": compact_storage(self.keys), "made_on": self.table.device.type}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made_on = state["made_on"]
        self.__dict__.update({name: state[name] for name in state if name != "made_on"})
        # `torch.load(map_location=...)` moves the lookup table, which means something only to the backend that made it
        if made_on != self.table.device.type:
            self.__dict__["table"] = self.table[:0]
