"""All steps of a mean field in one call of the backend, where nothing is damped and all steps are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from permutohedral.crf.kernels import Kernel
from permutohedral.crf.layout import Layout
from permutohedral.crf.pairwise import Pairwise, to_points
from permutohedral.crf.steps import Field, scores_of, softmax
from permutohedral.memory import check_rows, is_negligible
from permutohedral.ops import fused_fields
from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.tracing import wants_gradient
from permutohedral.tensors import check_features


@dataclass(frozen=True, eq=False)
class AtOnce:
    """A field, and how often its marginals are replaced. Results are planes, `[items, labels, points]`.

    Attributes:
        kernels: of the field.
        compatibilities: their costs, from `compatibility_of`.
        both_ways: whether they are filtered both ways.
        layout: of the energies.
        steps: their number.
    """

    kernels: Sequence[Kernel]
    compatibilities: Sequence[float | Tensor]
    both_ways: bool
    layout: Layout
    steps: int

    def from_points(self, energies: Tensor, start: Tensor | None) -> Tensor | None:
        """With the building of the lattices, None where they are built first: as derivatives are wanted, the items of a
        batch share a lattice, or so much memory would be needed that its size is to be checked.
        """
        layout, corners = self.layout, 0
        if not fused_fields.has_mean_field_points(energies, start, *self.compatibilities):
            return None
        for kernel in self.kernels:
            corners += kernel.features.numel() // check_features(kernel.features, None) + kernel.features.numel()
            if (kernel.features.dim() == 2 and layout.num_items > 1) or kernel.features.dtype != self._dtype:
                return None
        if not is_negligible(3 * corners * layout.labels, energies):
            return None
        kernels = [
            to_points(kernel, compatibility, self.both_ways)
            for kernel, compatibility in zip(self.kernels, self.compatibilities, strict=True)
        ]
        return fused_fields.mean_field_points(*self._planes(energies, start), kernels, self.steps)

    def on_lattices(
        self, energies: Tensor, start: Tensor | None, pairwise: Sequence[Pairwise], logarithms: bool
    ) -> Tensor | None:
        """On lattices that are built, None where steps are composed of operators."""
        planes = self._planes(energies, start)
        if not logarithms and not wants_gradient(energies, start, *self.compatibilities):
            return fused_fields.mean_field(*planes, self._tables(pairwise, 0), self.steps)

        def compose(energies: Tensor, start: Tensor | None, *parameters: float | Tensor) -> Tensor:
            changed = [pair.with_costs(each) for pair, each in zip(pairwise, parameters, strict=True)]
            return self._compose(energies, start, changed)

        tables = self._tables(pairwise, self.steps)
        logits = fused_fields.mean_field_logits(*planes, tables, self.steps, compose)
        if logits is None:
            return None
        return torch.log_softmax(logits, dim=1) if logarithms else torch.softmax(logits, dim=1)

    def _compose(self, energies: Tensor, start: Tensor | None, pairwise: Sequence[Pairwise]) -> Tensor:
        """The logits of the last marginals by operators; energies and start are planes."""
        layout, dtype = replace(self.layout, shape=tuple(energies.shape), labels_last=False), self._dtype
        field = Field(scores_of(energies, layout, dtype), pairwise, 0.0, self.both_ways)
        marginals = softmax(field.scores) if start is None else layout.to_rows(start).to(dtype)
        logits = field.undamped(marginals)
        for _ in range(self.steps - 1):
            logits = field.step(logits)
        return layout.from_rows(logits)

    def _tables(self, pairwise: Sequence[Pairwise], kept: int) -> list[PairwiseTables]:
        """Of all kernels; refused if they, and so many more tables of each, do not fit what is free."""
        tables = [pair.tables(self.both_ways) for pair in pairwise]
        # a kernel has a table that is read and one that is written, and a third where it is filtered both ways
        rows = sum((kept + (3 if each.both_ways else 2)) * each.axis_neighbors.shape[1] for each in tables)
        if tables:
            # and backends arrange the energies anew
            rows += self.layout.num_items * self.layout.points
            check_rows(rows, self.layout.labels, tables[0].barycentric)
        return tables

    def _planes(self, energies: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.layout.to_planes(energies), None if start is None else self.layout.to_planes(start)

    @property
    def _dtype(self) -> torch.dtype:
        return self.kernels[0].features.dtype
