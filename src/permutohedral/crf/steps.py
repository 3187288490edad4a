"""A step of the mean field, composed of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.crf.layout import Layout
from permutohedral.crf.pairwise import Pairwise
from permutohedral.ops.primitives import accumulation_dtype


def dtype_of(pairwise: Sequence[Pairwise], energies: Tensor) -> torch.dtype:
    """In which all is computed: that of the features."""
    return pairwise[0].lattice.dtype if pairwise else accumulation_dtype(energies.dtype)


def scores_of(energies: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Energies times -1, `[rows, labels]`; infinity as the largest number: two infinite ones have no difference."""
    return -layout.to_rows(energies).to(dtype).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)


def softmax(logits: Tensor) -> Tensor:
    """Over labels. Of two it is the logistic function of their difference, which torch computes ten times as fast."""
    return torch.sigmoid(logits - logits.flip(1)) if logits.shape[1] == 2 else torch.softmax(logits, dim=1)


def logarithm(marginals: Tensor) -> Tensor:
    """Of marginals that may be zero: finite."""
    return marginals.clamp_min(torch.finfo(marginals.dtype).tiny).log()


@dataclass(frozen=True, eq=False)
class Field:
    """What a step needs: energies times -1, `[rows, labels]`, kernels, t, and whether these are filtered both ways."""

    scores: Tensor
    pairwise: Sequence[Pairwise]
    damping: float | Tensor
    both_ways: bool

    def step(self, logits: Tensor) -> Tensor:
        """From the logits of marginals to those of the next ones."""
        new = self.undamped(softmax(logits))
        if not isinstance(self.damping, Tensor) and self.damping == 0:
            return new
        return (self.damping * torch.log_softmax(logits, dim=1) + new) / (1 + self.damping)

    def undamped(self, marginals: Tensor) -> Tensor:
        """From marginals to the logits of the next ones."""
        new = self.scores
        for pair in self.pairwise:
            # a sum of its own for each kernel: gradients pass it as they are, and none is negated
            new = new + pair.gain(marginals, self.both_ways)
        return new
