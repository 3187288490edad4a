"""Which coarse samples can matter to a fine one: a window on the coarse grid, a few samples wide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.features import Sigma
from permutohedral.geometry import reach
from permutohedral.guided.grids import Grids


@dataclass(frozen=True, eq=False)
class Windows:
    """For each fine sample the coarse ones that a Gaussian on the lattice reaches, and those between which it lies.

    Every coarse sample has a slot, its position modulo the size of the window: no two of a window have the same. So the
    weights of all samples at all targets are found by filtering as many channels as there are slots, of which each
    sample has a one in its own.

    Attributes:
        grids: coarse and fine.
        sizes: of the window along each axis.
        starts: for each axis int64 `[fine extent]`, the first coarse position of the window.

    >>> windows = find_windows(Grids((4,), (32,), "area"), 2.0)
    >>> windows.sizes, windows.samples().tolist()[12:14]
    ((3,), [[0, 1, 2], [3, 1, 2]])
    """

    grids: Grids
    sizes: tuple[int, ...]
    starts: tuple[Tensor, ...]

    @property
    def slots(self) -> int:
        """In all."""
        return math.prod(self.sizes)

    def slots_of(self, samples: Tensor) -> Tensor:
        """The slot of each coarse sample, int64 like the numbers of the samples; those of further items likewise."""
        rest, slots, stride = samples.long(), torch.zeros_like(samples, dtype=torch.int64), 1
        for extent, size in zip(reversed(self.grids.coarse), reversed(self.sizes), strict=True):
            slots = slots + rest.remainder(extent).remainder(size) * stride
            rest, stride = rest.div(extent, rounding_mode="floor"), stride * size
        return slots

    def indicators(self, items: int, dtype: torch.dtype) -> Tensor:
        """A one in the slot of each coarse sample, `[items * coarse samples, slots]`."""
        number = math.prod(self.grids.coarse)
        slots = self.slots_of(torch.arange(number, device=self.starts[0].device))
        rows = torch.zeros(number, self.slots, dtype=dtype, device=slots.device).scatter_(1, slots[:, None], 1.0)
        return rows.repeat(items, 1)

    def samples(self, items: int = 1) -> Tensor:
        """The coarse sample in each slot of the window of each fine one, int32 `[items * fine samples, slots]`."""
        device, number = self.starts[0].device, math.prod(self.grids.coarse)
        slots = torch.arange(self.slots, device=device)
        # the axes' shares in the numbers of samples, each with all slots, so that the sum runs along memory
        table = (torch.arange(items, device=device) * number).to(torch.int32)[:, None].expand(-1, self.slots)
        stride, after = number, self.slots
        for extent, size, start in zip(self.grids.coarse, self.sizes, self.starts, strict=True):
            stride, after = stride // extent, after // size
            own = slots.div(after, rounding_mode="floor").remainder(size)
            along = (start[:, None] + (own - start[:, None]).remainder(size)) * stride
            table = (table[:, None, :] + along.to(torch.int32)).view(-1, self.slots)
        return table


def find_windows(grids: Grids, sigma_space: Sigma, device: torch.device | str = "cpu") -> Windows:
    """The windows of the separable Gaussian, whose bandwidth is `sigma_space` fine samples along each axis."""
    axes = len(grids.fine)
    sigmas = torch.as_tensor(sigma_space, dtype=torch.float64).detach().expand(axes).tolist()
    sizes, starts = [], []
    for axis, (coarse, fine, ratio) in enumerate(zip(grids.coarse, grids.fine, grids.ratios, strict=True)):
        far = max(reach(axis) * sigmas[axis], ratio + 1)
        samples = Grids((coarse,), (fine,), grids.sampling).positions(torch.float64, "cpu")[:, 0]
        places = torch.arange(fine, dtype=torch.float64)
        first = torch.searchsorted(samples, places - far, right=True)
        size = int((torch.searchsorted(samples, places + far) - first).max())
        sizes.append(size)
        starts.append(first.clamp_max(coarse - size).to(device))
    return Windows(grids, tuple(sizes), tuple(starts))
