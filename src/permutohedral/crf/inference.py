"""The mean field and its free energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from permutohedral.crf.at_once import AtOnce
from permutohedral.crf.damping import Damping, find_damping, find_repulsions, is_filtered_both_ways, is_undamped
from permutohedral.crf.kernels import Kernel
from permutohedral.crf.layout import Layout, items_of_rows, layout_of
from permutohedral.crf.pairwise import Pairwise, compatibility_of, prepare
from permutohedral.crf.steps import Field, dtype_of, logarithm, scores_of, softmax
from permutohedral.errors import InputError
from permutohedral.lattice import Lattice
from permutohedral.ops.primitives import energies_error
from permutohedral.ops.tracing import is_traced
from permutohedral.tensors import check_count, check_tensor


def mean_field(  # noqa: PLR0913 (a field, how to solve it, and what is known before)
    energies: Tensor,
    kernels: Sequence[Kernel],
    steps: int = 5,
    damping: Damping = "auto",
    tolerance: float | None = None,
    lattices: Sequence[Lattice] | None = None,
    start: Tensor | None = None,
    *,
    logarithms: bool = False,
) -> Tensor:
    """The marginals of a dense conditional random field, by mean field.

    The field has the energy sum_i U_i(x_i) + sum_{i<j} sum_kernels k_ij mu(x_i, x_j). A step replaces the marginals Q
    of all points at once by softmax(-U - sum_kernels K Q mu), where K_ii is not left out. The first Q is softmax(-U).

    Args:
        energies: float `[labels, *space]` or `[batch, labels, *space]` for kernels over pictures and volumes,
            `[points, labels]` or `[batch, points, labels]` for kernels over points: the cost U of each label. Infinity
            forbids a label, unless all labels of a point have it.
        kernels: which points are alike; `spatial_kernel`, `bilateral_kernel`, `Kernel`. Their features may be shared
            by the items of a batch.
        steps: the most that are done.
        damping: t >= 0 makes a step softmax((t log Q - U - K Q mu) / (1 + t)). "auto" takes the t with which the free
            energy does not rise: zero where compatibilities attract, as positive numbers do. If they are tensors of
            several numbers, or repel, kernels are filtered both ways, so that they are symmetric.
        tolerance: an item is done when no marginal changes by more than this.
        lattices: `kernel.build_lattice()` for each kernel, to share them among calls.
        start: marginals to start from, of the shape of energies.
        logarithms: return log Q, which losses take.

    Returns:
        Marginals like energies; computed in the dtype of the features.

    >>> import permutohedral as ph
    >>> energies = torch.randn(21, 40, 50)
    >>> kernels = [ph.crf.spatial_kernel((40, 50), 3.0), ph.crf.bilateral_kernel(torch.rand(3, 40, 50), 20.0, 0.1, 4.0)]
    >>> marginals = ph.crf.mean_field(energies, kernels)
    >>> marginals.shape, bool(torch.allclose(marginals.sum(dim=0), torch.ones(40, 50)))
    (torch.Size([21, 40, 50]), True)
    """
    layout = _check(energies, kernels, lattices, {"start": start})
    check_count("steps", steps)
    if tolerance is not None and not tolerance >= 0:
        raise InputError(f"tolerance must not be negative, got {tolerance}")
    with torch.autocast(energies.device.type, enabled=False):
        compatibilities = [compatibility_of(kernel) for kernel in kernels]
        repulsions = find_repulsions(damping, compatibilities, layout.labels)
        both_ways = is_filtered_both_ways(damping, compatibilities)
        # backends begin a step with the start, so that without a step they would not return it
        has_steps = steps > 0 or start is None
        undamped = tolerance is None and has_steps and is_undamped(damping, repulsions)
        whole = AtOnce(kernels, compatibilities, both_ways, layout, steps)
        # the logarithm of a marginal that was rounded to zero is not what it was: it is taken of the logits
        unbuilt = undamped and lattices is None and not logarithms
        planes = whole.from_points(energies, start) if unbuilt else None
        if planes is None:
            pairwise = _prepare(kernels, lattices, layout)
            planes = whole.on_lattices(energies, start, pairwise, logarithms) if undamped else None
        if planes is not None:
            return layout.from_planes(planes).to(energies.dtype)
        strength = find_damping(damping, repulsions, pairwise)
        _refuse_nan(energies)
        dtype = dtype_of(pairwise, energies)
        field = Field(scores_of(energies, layout, dtype), pairwise, strength, both_ways)
        logits = field.scores if start is None else logarithm(layout.to_rows(start).to(dtype))
        logits = _solve(field, logits, steps, tolerance, lambda: items_of_rows(layout, kernels, energies.device))
        result = torch.log_softmax(logits, dim=1) if logarithms else softmax(logits)
        return layout.from_rows(result).to(energies.dtype)


def free_energy(
    marginals: Tensor, energies: Tensor, kernels: Sequence[Kernel], lattices: Sequence[Lattice] | None = None
) -> Tensor:
    """What the mean field makes small: sum_i Q_i (log Q_i + U_i) + sum_kernels <Q, K Q mu> / 2, for each item.

    It bounds the negative logarithm of the field's partition function from above. With the normalizations "symmetric"
    and "none", steps with damping "auto" do not raise it.

    Args:
        marginals: from `mean_field`.
        energies: see `mean_field`.
        kernels: see `mean_field`.
        lattices: see `mean_field`.

    Returns:
        `[batch]`, or a number for energies without a batch axis; the number of items follows from a ragged batch.

    >>> import permutohedral as ph
    >>> energies, kernels = torch.randn(100, 3), [ph.crf.Kernel(torch.rand(100, 2) * 9)]
    >>> before, after = (ph.crf.mean_field(energies, kernels, steps) for steps in (0, 5))
    >>> bool(ph.crf.free_energy(after, energies, kernels) < ph.crf.free_energy(before, energies, kernels))
    True
    """
    layout = _check(energies, kernels, lattices, {"marginals": marginals})
    _refuse_nan(energies)
    with torch.autocast(energies.device.type, enabled=False):
        pairwise = _prepare(kernels, lattices, layout)
        dtype = dtype_of(pairwise, energies)
        costs, rows = layout.to_rows(energies).to(dtype), layout.to_rows(marginals).to(dtype)
        # a label that never occurs may have cost infinity
        unary = torch.where(rows > 0, rows * costs, 0.0) - torch.special.entr(rows)
        for pair in pairwise:
            unary = unary + rows * pair.cost(rows) / 2
        items, num_items = items_of_rows(layout, kernels, rows.device)
        # summed in float64: terms of both signs over all points
        sums = unary.sum(dim=1).double()
        total = sums.new_zeros(num_items).index_add(0, items, sums)
        has_items = layout.items is not None or any(kernel.batch is not None for kernel in kernels)
        result: Tensor = total if has_items else total.sum()
        return result


def _check(
    energies: Tensor, kernels: Sequence[Kernel], lattices: Sequence[Lattice] | None, marginals: dict[str, Tensor | None]
) -> Layout:
    layout = layout_of(energies, kernels)
    if lattices is not None and len(lattices) != len(kernels):
        raise InputError(f"give a lattice for each of the {len(kernels)} kernels, got {len(lattices)}")
    for name, given in marginals.items():
        if given is None:
            continue
        check_tensor(name, given)
        if given.shape != energies.shape or given.device != energies.device:
            raise InputError(
                f"{name} must be like energies, {tuple(energies.shape)} on {energies.device}, got "
                f"{tuple(given.shape)} on {given.device}"
            )
    return layout


def _refuse_nan(energies: Tensor) -> None:
    """One NaN would spread to all points; a GPU would have to be waited for."""
    if energies.device.type == "cpu" and not is_traced() and bool(energies.detach().sum().isnan()):
        raise energies_error()


def _prepare(kernels: Sequence[Kernel], lattices: Sequence[Lattice] | None, layout: Layout) -> list[Pairwise]:
    lattices = [kernel.build_lattice() for kernel in kernels] if lattices is None else lattices
    pairwise = [prepare(kernel, lattice, layout) for kernel, lattice in zip(kernels, lattices, strict=True)]
    if len({pair.lattice.dtype for pair in pairwise}) > 1:
        raise InputError("the features of all kernels must be of one dtype; convert some with .float() or .double()")
    return pairwise


def _solve(
    field: Field, logits: Tensor, steps: int, tolerance: float | None, items: Callable[[], tuple[Tensor, int]]
) -> Tensor:
    """All steps; with a tolerance until no item changes by more, and an item that is done stays as it is."""
    if tolerance is None:
        for _ in range(steps):
            logits = field.step(logits)
        return logits
    item_of_row, num_items = items()
    done = torch.zeros(num_items, dtype=torch.bool, device=logits.device)
    for _ in range(steps):
        new = field.step(logits)
        change = (torch.softmax(new, dim=1) - torch.softmax(logits, dim=1)).detach().abs().amax(dim=1)
        most = change.new_zeros(num_items).scatter_reduce(0, item_of_row, change, "amax")
        logits = torch.where(done[item_of_row][:, None], logits, new)
        done = done | (most <= tolerance)
        if bool(done.all()):
            break
    return logits
