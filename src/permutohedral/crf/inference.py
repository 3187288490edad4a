"""The mean field and its free energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.crf.damping import Damping, find_damping, find_repulsions, is_filtered_both_ways, is_undamped
from permutohedral.crf.kernels import Kernel
from permutohedral.crf.layout import FieldLayout, field_layout, items_of_rows
from permutohedral.crf.pairwise import CheckedFilter, Pairwise, compatibility_of, prepare
from permutohedral.errors import InputError
from permutohedral.filters.weighting import check_weights
from permutohedral.lattice.memory import check_rows
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.backend import Backend, report_declined
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import FieldPlan, accumulation_dtype, energies_error
from permutohedral.ops.mean_field import allow_labels, finite_logarithm, scores_of, softmax
from permutohedral.ops.tracing import is_traced, wants_gradient


def mean_field(
    energies: Tensor,
    kernels: Sequence[Kernel],
    *,
    num_iterations: int = 5,
    damping: Damping = "auto",
    tolerance: float | None = None,
    sample_weight: Tensor | None = None,
    start: Tensor | None = None,
    logarithms: bool = False,
) -> Tensor:
    """Compute the marginals of a dense conditional random field by mean field.

    The field has the energy sum_i U_i(x_i) + sum_{i<j} sum_kernels k_ij mu(x_i, x_j). A step replaces the marginals Q
    of all points by softmax(-U - sum_kernels K Q mu), including K_ii. The first Q is softmax(-U).

    Args:
        energies: float `[labels, *space]` or `[batch, labels, *space]` for kernels over images and volumes,
            `[points, labels]` or `[batch, points, labels]` for kernels over points: the cost U of each label. An
            infinite energy forbids a label; if all of a point are infinite, they count as equal.
        kernels: `spatial_kernel`, `bilateral_kernel` or `Kernel`. The items of a batch may share their features.
            Several calls share lattices with `Kernel.with_lattice`.
        num_iterations: maximum number of steps.
        damping: t >= 0 makes a step softmax((t log Q - U - K Q mu) / (1 + t)). "auto" takes a t that prevents
            oscillation. It is zero where compatibilities attract, as positive numbers do; near convergence the free
            energy may then rise by a few percent. If they are tensors of several numbers, or repel, kernels are
            filtered in both directions, which makes them symmetric, and the free energy does not rise.
        tolerance: an item has converged when no marginal changes by more than this.
        sample_weight: how much the marginals of each point count for the others, `[*space]` or `[points]`, optionally
            with a batch axis: not negative, or a bool mask that leaves out padding. All points get marginals. Lattice
            points of points without weight stay, which changes marginals a little.
        start: initial marginals, of the shape of energies; they are normalized to sum one.
        logarithms: return log Q, for losses.

    Returns:
        Marginals of the shape of energies, computed in the dtype of the features.

    >>> import torch, permutohedral as ph
    >>> energies = torch.randn(21, 40, 50)
    >>> guide = torch.rand(3, 40, 50)
    >>> bilateral = ph.crf.bilateral_kernel(guide, sigma_space=20.0, sigma_color=0.1, compatibility=4.0)
    >>> kernels = [ph.crf.spatial_kernel((40, 50), 3.0), bilateral]
    >>> marginals = ph.crf.mean_field(energies, kernels)
    >>> marginals.shape, bool(torch.allclose(marginals.sum(dim=0), torch.ones(40, 50)))
    (torch.Size([21, 40, 50]), True)
    """
    layout = _check(energies, kernels, {"start": start})
    check_count("num_iterations", num_iterations)
    if tolerance is not None and not tolerance >= 0:
        raise InputError(f"tolerance must not be negative, got {tolerance}")
    with torch.autocast(energies.device.type, enabled=False):
        compatibilities = [compatibility_of(kernel) for kernel in kernels]
        repulsions = find_repulsions(damping, compatibilities, layout.labels)
        both_ways = is_filtered_both_ways(damping, compatibilities)
        start = None if start is None else layout.normalize(start)
        # without a step, backends would not return the start
        has_steps = num_iterations > 0 or start is None
        undamped = tolerance is None and has_steps and is_undamped(damping, repulsions)
        weight = None if sample_weight is None else _weights_of(sample_weight, energies, layout)
        pairwise = _prepare(kernels, layout, weight)
        learned = [each for pair in pairwise for each in (pair.lattice.source.barycentric, pair.compatibility)]
        ops = bind(energies, start, weight, *(each for each in learned if isinstance(each, Tensor)))
        if weight is not None:
            report_declined("mean_field", "it supports no sample_weight")
        elif undamped and pairwise and (num_iterations > 0 or not logarithms) and energies.numel() > 0:
            if ops.name == "reference":
                # the native core does the same while it reads them
                _reject_nan(energies)
            # `both_ways` is a tensor only where a kernel may repel, and such kernels are damped
            planes = _run_undamped(
                ops, pairwise, both_ways is True, layout, energies, start, num_iterations, logarithms
            )
            return layout.from_planes(planes).to(energies.dtype)
        _reject_nan(energies)
        dtype, composed = _working_dtype(pairwise, energies), [pair.filter_on(ops) for pair in pairwise]
        strength = find_damping(damping, repulsions, composed)
        field = _Field(scores_of(layout.to_rows(energies), dtype), composed, strength, both_ways)
        logits = field.scores if start is None else finite_logarithm(layout.to_rows(start).to(dtype))
        logits = _solve(
            field, logits, num_iterations, tolerance, lambda: items_of_rows(layout, kernels, energies.device)
        )
        result = torch.log_softmax(logits, dim=1) if logarithms else softmax(logits)
        return layout.from_rows(result).to(energies.dtype)


def free_energy(
    marginals: Tensor, energies: Tensor, kernels: Sequence[Kernel], *, sample_weight: Tensor | None = None
) -> Tensor:
    """Return the free energy of marginals, which the mean field minimizes, for each item.

    It is sum_i Q_i (log Q_i + U_i) + sum_kernels <Q, K Q mu> / 2, an upper bound of the negative logarithm of the
    partition function. With the normalizations "symmetric" and "none", steps with damping "auto" do not raise it where
    kernels are filtered in both directions, and hardly raise it elsewhere: see `mean_field`.

    Args:
        marginals: from `mean_field`.
        energies: see `mean_field`.
        kernels: see `mean_field`.
        sample_weight: see `mean_field`; factor of the terms of each point.

    Returns:
        `[batch]`, or a scalar for energies without batch axis or batch vector.

    >>> import torch, permutohedral as ph
    >>> energies, kernels = torch.randn(100, 3), [ph.crf.Kernel(torch.rand(100, 2) * 9)]
    >>> before, after = (ph.crf.mean_field(energies, kernels, num_iterations=steps) for steps in (0, 5))
    >>> bool(ph.crf.free_energy(after, energies, kernels) < ph.crf.free_energy(before, energies, kernels))
    True
    """
    layout = _check(energies, kernels, {"marginals": marginals})
    _reject_nan(energies)
    with torch.autocast(energies.device.type, enabled=False):
        weight = None if sample_weight is None else _weights_of(sample_weight, energies, layout)
        pairwise = _prepare(kernels, layout, weight)
        dtype = _working_dtype(pairwise, energies)
        costs, rows = allow_labels(layout.to_rows(energies), 1).to(dtype), layout.to_rows(marginals).to(dtype)
        # a label of probability zero may cost infinity, and its logarithm has no derivative
        costs = torch.where((rows == 0) & costs.isinf(), 0.0, costs)
        ops = bind(rows, costs, *(pair.lattice.source.barycentric for pair in pairwise))
        unary = rows * (costs + torch.where(rows > 0, rows, 1.0).log())
        for pair in pairwise:
            unary = unary + rows * pair.filter_on(ops).cost(rows) / 2
        unary = unary if weight is None else unary * weight
        items, num_items = items_of_rows(layout, kernels, rows.device)
        # terms of both signs cancel: sum in float64
        sums = unary.sum(dim=1).double()
        total = sums.new_zeros(num_items).index_add(0, items, sums)
        has_items = layout.items is not None or any(kernel.batch is not None for kernel in kernels)
        result: Tensor = total if has_items else total.sum()
        return result


def _check(energies: Tensor, kernels: Sequence[Kernel], marginals: dict[str, Tensor | None]) -> FieldLayout:
    layout = field_layout(energies, kernels)
    for name, tensor in marginals.items():
        if tensor is None:
            continue
        check_tensor(name, tensor)
        if tensor.shape != energies.shape or tensor.device != energies.device:
            raise InputError(
                f"{name} must be like energies, {tuple(energies.shape)} on {energies.device}, got "
                f"{tuple(tensor.shape)} on {tensor.device}"
            )
    return layout


def _reject_nan(energies: Tensor) -> None:
    """Raise if an energy is NaN, which would spread to all points; not on a GPU, which would have to synchronize."""
    if energies.device.type == "cpu" and not is_traced() and bool(energies.detach().sum().isnan()):
        raise energies_error()


def _weights_of(sample_weight: Tensor, energies: Tensor, layout: FieldLayout) -> Tensor:
    """Return the weight of each row, `[rows, 1]`."""
    axes = 1 if layout.labels_last else len(layout.shape) - layout.label_axis - 1
    points = layout.shape[:-1] if layout.labels_last else (*layout.shape[: layout.label_axis], *layout.shape[-axes:])
    return check_weights(sample_weight, points, energies, axes).reshape(-1, 1)


def _prepare(kernels: Sequence[Kernel], layout: FieldLayout, sample_weight: Tensor | None) -> list[Pairwise]:
    pairwise = [prepare(kernel, layout, sample_weight) for kernel in kernels]
    if len({pair.lattice.dtype for pair in pairwise}) > 1:
        raise InputError("the features of all kernels must be of one dtype; convert some with .float() or .double()")
    return pairwise


def _solve(
    field: _Field, logits: Tensor, steps: int, tolerance: float | None, items: Callable[[], tuple[Tensor, int]]
) -> Tensor:
    """Run all steps; with a tolerance, items that have converged keep their logits."""
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


def _working_dtype(pairwise: Sequence[Pairwise], energies: Tensor) -> torch.dtype:
    """Return the dtype of the features, in which everything is computed."""
    return pairwise[0].lattice.dtype if pairwise else accumulation_dtype(energies.dtype)


def _has_infinity(energies: Tensor) -> bool:
    """Return whether an energy may be infinite; without torch, whose threads wait for each other on a busy machine."""
    numbers = energies.detach()
    if numbers.dtype not in (torch.float32, torch.float64):
        # unknown to NumPy
        return True
    return numbers.numel() > 0 and not float(numbers.numpy().max()) < math.inf


@dataclass(frozen=True, eq=False)
class _Field:
    """A mean field, composed of primitives.

    Attributes:
        scores: negative energies, `[rows, labels]`.
        pairwise: the kernels.
        damping: t.
        both_ways: whether kernels are filtered in both directions.
    """

    scores: Tensor
    pairwise: Sequence[CheckedFilter]
    damping: float | Tensor
    both_ways: bool | Tensor

    def step(self, logits: Tensor) -> Tensor:
        """Return the logits of the next marginals."""
        new = self.undamped(softmax(logits))
        if not isinstance(self.damping, Tensor) and self.damping == 0:
            return new
        return (self.damping * torch.log_softmax(logits, dim=1) + new) / (1 + self.damping)

    def undamped(self, marginals: Tensor) -> Tensor:
        """Return the logits of the next marginals without damping."""
        new = self.scores
        for pair in self.pairwise:
            # separate sums pass their gradient on unchanged
            new = new + pair.message(marginals, self.both_ways)
        return new


def _run_undamped(
    ops: Backend,
    pairwise: Sequence[Pairwise],
    both_ways: bool,
    layout: FieldLayout,
    energies: Tensor,
    start: Tensor | None,
    steps: int,
    logarithms: bool,
) -> Tensor:
    """Run all steps without damping and tolerance; return the marginals as planes, `[items, labels, points]`."""
    if energies.device.type == "cpu" and (is_traced() or _has_infinity(energies)):
        # kernels of a GPU do the same
        energies = allow_labels(energies, layout.label_axis)
    learned = wants_gradient(energies, start, *(pair.compatibility for pair in pairwise))
    is_saved = steps > 0 and (logarithms or learned)
    tables = [pair.tables(both_ways) for pair in pairwise]
    # a kernel reads one table and writes one, and needs a third to be filtered in both directions; logits come with
    # one of each step
    num_saved = steps if is_saved else 0
    rows = sum((num_saved + (3 if each.both_ways else 2)) * each.axis_neighbors.shape[1] for each in tables)
    # backends also copy the energies
    check_rows(rows + layout.num_items * layout.points, layout.labels, tables[0].barycentric)
    planes = layout.to_planes(energies), None if start is None else layout.to_planes(start)
    found, _ = ops.mean_field(*planes, FieldPlan(tables, steps, logarithms))
    return torch.log_softmax(found, dim=1) if logarithms else found
