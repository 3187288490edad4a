"""Pyramids of a fixed number of rows: the same results as on any other pyramid, without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import assert_close, assert_raises
from torch import Tensor
from torch.overrides import TorchFunctionMode

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.ops.dispatch import use as use_backend

# some rows more than the lattice points that the features below touch
ROWS = [60, 40]
# functions whose result, or the shape of it, the host has to wait for
READS = {
    *(getattr(Tensor, name) for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__")),
    *(getattr(Tensor, name) for name in ("__index__", "nonzero", "unique", "masked_select", "bincount", "equal")),
    *(torch.nonzero, torch.unique, torch.masked_select, torch.bincount, torch.equal, torch.argwhere),
}


class NoHostReads(TorchFunctionMode):
    """Raise if the host asks for numbers of a tensor; a dispatch mode would count as tracing, and change the path."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        masks = function in (Tensor.__getitem__, Tensor.__setitem__) and _has_mask(args[1])
        if function in READS or masks:
            raise AssertionError(f"the host waits for the device in {function.__name__}")
        return function(*args, **(kwargs or {}))


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def bounded_pyramid(features: Tensor) -> ph.levels.LatticePyramid:
    with use_backend("triton"):
        pyramid, numbers = ph.levels.build_bounded_pyramid(features, ROWS)
    assert [level.num_lattice_points for level in pyramid.levels] == ROWS
    assert all(number < rows for number, rows in zip(numbers.tolist(), ROWS, strict=True))
    return pyramid


def rows_in(bounded: ph.Lattice, lattice: ph.Lattice) -> Tensor:
    """The row of the bounded lattice of each lattice point."""
    places = {tuple(key): row for row, key in enumerate(bounded.source.keys.tolist())}
    return torch.tensor([places[tuple(key)] for key in lattice.source.keys.tolist()])


def features_of(shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(3)
    return 3 * draw(*shape)


SHAPES = pytest.mark.parametrize("shape", [(6, 2), (2, 4, 2)], ids=["points", "batch"])


@SHAPES
def test_lattice_points_of_each_level_are_the_same(shape: tuple[int, ...]) -> None:
    features, values = features_of(shape), draw(*shape[:-1], 2)
    bounded, pyramid = bounded_pyramid(features), ph.levels.build_pyramid(features, len(ROWS))
    for one, other in zip(bounded.levels, pyramid.levels, strict=True):
        used = one.source.keys[:, 0] >= 0
        assert sorted(one.source.keys[used].tolist()) == sorted(other.source.keys.tolist())
        with use_backend("triton"):
            assert_close(ph.splat(values, one)[rows_in(one, other)], ph.splat(values, other))


@SHAPES
def test_rows_are_in_the_order_of_their_keys_in_deterministic_mode(shape: tuple[int, ...]) -> None:
    torch.use_deterministic_algorithms(True)
    features, values = features_of(shape), draw(*shape[:-1], 2)
    with use_backend("triton"):
        bounded, pyramid = bounded_pyramid(features), ph.levels.build_pyramid(features, len(ROWS))
        for one, other in zip(bounded.levels, pyramid.levels, strict=True):
            number = other.num_lattice_points
            assert torch.equal(one.source.keys[:number], other.source.keys)
            assert torch.equal(one.source.vertices, other.source.vertices)
            assert torch.equal(one.neighbors[:, :number], other.neighbors)
            assert_close(ph.splat(values, one)[:number], ph.splat(values, other))


@SHAPES
@pytest.mark.parametrize("operation", ["coarsen", "refine", "pool", "convolve_down", "convolve_up"])
def test_operations_between_levels_leave_unused_rows_out(operation: str, shape: tuple[int, ...]) -> None:
    features = features_of(shape)
    bounded, pyramid = bounded_pyramid(features), ph.levels.build_pyramid(features, len(ROWS))
    source, target = (1, 0) if operation in ("refine", "convolve_up") else (0, 1)
    values = draw(pyramid.levels[source].num_lattice_points, 2)
    # the values of unused rows would show
    spread = torch.full((ROWS[source], 2), 1e3, dtype=torch.float64)
    spread[rows_in(bounded.levels[source], pyramid.levels[source])] = values
    weight = [draw(len(pyramid.tables[0].down), 2, 3)] if "convolve" in operation else []
    run = getattr(ph.levels, operation)
    found = []
    with use_backend("triton"):
        for given, where in ((values, pyramid), (spread, bounded)):
            leaf = given.clone().requires_grad_()
            output = run(leaf, *weight, where, level=0)
            if where is bounded:
                output = output[rows_in(bounded.levels[target], pyramid.levels[target])]
            (gradient,) = torch.autograd.grad(output.sin().sum(), leaf)
            found.append((output, gradient))
    (expected, expected_gradient), (actual, gradient) = found
    assert_close(actual, expected)
    assert_close(gradient[rows_in(bounded.levels[source], pyramid.levels[source])], expected_gradient)
    assert_close(gradient.abs().sum(), expected_gradient.abs().sum())


def network_step(network: torch.nn.Module, values: Tensor, leaf: Tensor, bounded: bool) -> list[Tensor]:
    """The scores, and the gradients of features and parameters."""
    network.zero_grad()
    if bounded:
        pyramid, _ = ph.levels.build_bounded_pyramid(leaf, ROWS)
    else:
        pyramid = ph.levels.build_pyramid(leaf, len(ROWS))
    scores = network(values, pyramid=pyramid)
    gradients = torch.autograd.grad(scores.square().mean(), [leaf, *network.parameters()])
    return [scores, *gradients]


@pytest.mark.parametrize(("shape", "between"), [((6, 2), "linear"), ((2, 4, 2), "convolution")])
def test_training_step_of_a_u_net(shape: tuple[int, ...], between: Any) -> None:
    """Statistics of the norms, gradients of features and parameters; and the host never waits."""
    leaf, values = features_of(shape).requires_grad_(), draw(*shape[:-1], 2)
    network = ph.nn.LatticeUNet(2, 3, shape[-1], step=1.0, widths=(2, 4), between=between).double()
    with use_backend("triton"):
        expected = network_step(network, values, leaf, False)
        with NoHostReads():
            actual = network_step(network, values, leaf, True)
    for mine, theirs in zip(actual, expected, strict=True):
        assert_close(mine, theirs)


def test_scores_of_clouds_leave_unused_rows_out() -> None:
    features, values = features_of((2, 4, 2)), draw(2, 4, 2)
    network = ph.nn.LatticeUNet(2, 3, 2, step=1.0, widths=(2, 4), head="clouds").double()
    with use_backend("triton"):
        expected = network(values, features)
        bounded, _ = ph.levels.build_bounded_pyramid(features, ROWS)
        assert_close(network(values, pyramid=bounded), expected)
    assert expected.shape == (2, 3)


def test_host_reads_are_noticed() -> None:
    """An ordinary pyramid waits for the number of lattice points, and the norms for the number of items."""
    lattice = ph.build_lattice(features_of((9, 2)))
    values = draw(lattice.num_lattice_points, 2)
    with use_backend("triton"), NoHostReads(), pytest.raises(AssertionError, match="the host waits"):
        ph.nn.LatticeGroupNorm(1, 2, dtype=torch.float64)(values, lattice)
    with NoHostReads(), pytest.raises(AssertionError, match="the host waits"):
        values[values > 0]


def test_pooling_over_items_leaves_unused_rows_out() -> None:
    features = features_of((2, 4, 2))
    lattice, level = ph.build_lattice(features), bounded_pyramid(features).levels[0]
    items = ph.nn.LatticeItems(level)
    values = draw(lattice.num_lattice_points, 2)
    spread = torch.full((ROWS[0], 2), 1e3, dtype=torch.float64)
    spread[rows_in(level, lattice)] = values
    assert items.items == 3
    assert_close(items.mean(spread)[:2], ph.nn.LatticeItems(lattice).mean(values))


@pytest.mark.parametrize("level", [0, 1])
def test_overflow_is_reported(level: int) -> None:
    """Other levels may have room, and every result is still computed within the bounds of memory."""
    features, values = features_of((2, 4, 2)).requires_grad_(), draw(2, 4, 2)
    pyramid = ph.levels.build_pyramid(features, len(ROWS))
    rows = [*ROWS[:level], pyramid.levels[level].num_lattice_points - 3, *ROWS[level + 1 :]]
    network = ph.nn.LatticeUNet(2, 3, 2, step=1.0, widths=(2, 4)).double()
    with use_backend("triton"):
        bounded, numbers = ph.levels.build_bounded_pyramid(features, rows)
        network(values, pyramid=bounded).sum().backward()
    assert numbers.tolist()[: level + 1] == [each.num_lattice_points for each in pyramid.levels[: level + 1]]
    assert numbers[level] > rows[level]
    for each in bounded.levels:
        assert 0 <= int(each.source.vertices.min()) <= int(each.source.vertices.max()) < each.num_lattice_points


def test_features_without_keys_are_reported() -> None:
    features = features_of((6, 2))
    features[3, 1] = float("nan")
    with use_backend("triton"):
        assert int(ph.levels.build_bounded_pyramid(features, ROWS)[1][0]) > ROWS[0]


def test_rejects_wrong_bounds() -> None:
    features = features_of((6, 2))
    with use_backend("triton"):
        wrong: list[Any] = [[], 60, [60, 0]]
        for rows in wrong:
            with pytest.raises(InputError, match="max_lattice_points"):
                ph.levels.build_bounded_pyramid(features, rows)
    assert_raises(lambda: ph.levels.build_bounded_pyramid(features, ROWS), InputError, "for GPUs")
    assert_raises(lambda: bounded_pyramid(features).to("cuda"), InputError, "bounded pyramid stays on 'cpu'")
