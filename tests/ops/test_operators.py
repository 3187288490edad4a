"""The torch operators: registration, shapes without data, and derivatives, for every operator and backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, on_default_backend, to_tensor
from torch import Tensor

from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import axis_offsets

pytestmark = pytest.mark.usefixtures("backend")

DIMENSION, POINTS, TARGETS, GROUPS = 2, 7, 5, 2


class Sample:
    """Small inputs for every operator, on the lattice of a few random points."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)

        def leaf(*shape: int) -> Tensor:
            return to_tensor(random.normal(size=shape)).requires_grad_()

        neighborhood = Neighborhood(DIMENSION, 1)
        self.features, self.target_features = leaf(POINTS, DIMENSION), leaf(TARGETS, DIMENSION)
        self.batch = to_tensor(random.integers(0, 2, size=POINTS), torch.int32)
        keys, vertices, barycentric, table = bind(self.features.detach()).index_points(self.features.detach(), None)
        self.keys, self.vertices, self.table = keys, vertices, table
        self.target_keys = bind(self.features.detach()).index_points(self.target_features.detach(), None)[0]
        self.offsets, self.opposite = neighborhood.offsets(DEVICE), neighborhood.opposite(DEVICE)
        self.neighbors = bind(keys).find_neighbors(keys, table, self.target_keys, self.offsets)
        self.reverse = bind(keys).transpose_neighbors(self.neighbors, self.opposite, len(keys))
        self.axis_neighbors = bind(keys).find_neighbors(keys, table, keys, axis_offsets(DIMENSION, DEVICE))
        self.barycentric = barycentric.clone().requires_grad_()
        self.values, self.lattice_values = leaf(POINTS, 4), leaf(len(keys), 4)
        self.barycentric_gradient = leaf(POINTS, DIMENSION + 1)
        self.weight, self.output_gradient = leaf(len(self.offsets), 2, 6), leaf(len(self.target_keys), 6)
        self.directions, self.encoding_table = leaf(POINTS, DIMENSION), leaf(3, 11, 2)
        self.encoding_gradient = leaf(POINTS, 6)
        # matrices and offsets; strides and bases
        self.encoding = (
            leaf(3, DIMENSION, DIMENSION + 1).detach(),
            to_tensor([[5, 1, 0], [7, -3, 9], [1, 2, 3]], torch.int32),
        )
        self.picture, self.guide = leaf(1, 2, 3, 4), leaf(1, 1, 3, 4)

    def arguments(self, name: str) -> tuple[Any, ...]:
        tables = (self.neighbors, GROUPS, self.reverse, self.opposite)
        return {
            "index_points": (self.features, None),
            "index_points_in_batches": (self.features, self.batch),
            "index_keys": (self.keys.repeat(2, 1),),
            "coarsen_lattice": (self.keys, self.table, self.vertices, self.barycentric),
            "find_neighbors": (self.keys, self.table, self.target_keys, self.offsets),
            "transpose_neighbors": (self.neighbors, self.opposite, len(self.keys)),
            "splat": (self.values, self.vertices, self.barycentric, len(self.keys)),
            "slice": (self.lattice_values, self.vertices, self.barycentric),
            "find_largest": (self.values.detach(), self.vertices, len(self.keys)),
            "barycentric_gradient": (self.values, self.lattice_values, self.vertices),
            "convolve": (self.lattice_values, self.weight, *tables),
            "convolve_without_reverse_table": (self.lattice_values, self.weight, *tables[:2], None, self.opposite),
            "convolve_weight_gradient": (self.lattice_values, self.output_gradient, *tables),
            "blur": (self.lattice_values, self.axis_neighbors, False),
            "blur_reversed": (self.lattice_values, self.axis_neighbors, True),
            "filter_gaussian": (
                self.values.detach(),
                *(self.vertices, self.barycentric.detach(), self.axis_neighbors),
                *(self.vertices[:TARGETS], self.barycentric[:TARGETS].detach()),
            ),
            "sum_neighbors": (self.values, self.features, self.target_features, 9.0),
            "sum_window": (self.picture, self.guide, 1.5, 1.0, 2.5),
            "encode": (self.features, None, self.encoding_table, *self.encoding),
            "encode_along": (self.features.detach(), self.directions, self.encoding_table, *self.encoding),
            "encode_backward": (
                *(self.features, None, self.encoding_table, self.encoding_gradient),
                *(*self.encoding, True, True),
            ),
            "encode_backward_along": (
                *(self.features.detach(), self.directions, self.encoding_table, self.encoding_gradient),
                *(*self.encoding, True, True),
            ),
            "embed_gradient": (self.features.detach(), self.barycentric_gradient),
            "embed_differential": (self.features.detach(), self.target_features.new_ones(POINTS, DIMENSION)),
        }[name]


VARIANTS = {
    "index_points_in_batches": "index_points",
    "convolve_without_reverse_table": "convolve",
    "blur_reversed": "blur",
    "encode_along": "encode",
    "encode_backward_along": "encode_backward",
}
INTEGER = ["index_keys", "find_neighbors", "transpose_neighbors", "find_largest"]
WITHOUT_DERIVATIVE = ["filter_gaussian"]
FLOATING = [
    "index_points",
    "index_points_in_batches",
    "splat",
    "slice",
    "barycentric_gradient",
    "convolve",
    "convolve_without_reverse_table",
    "convolve_weight_gradient",
    "blur",
    "blur_reversed",
    "coarsen_lattice",
    "sum_neighbors",
    "sum_window",
    "encode",
    "encode_along",
    "encode_backward",
    "encode_backward_along",
    "embed_gradient",
    "embed_differential",
]


def operator(name: str) -> Any:
    """As torch knows it: what is traced and compiled."""
    return getattr(torch.ops.permutohedral, VARIANTS.get(name, name)).default


def called(name: str) -> Any:
    """As the package calls it, which may take a shorter way where nothing is traced."""

    def run(*arguments: Any) -> Any:
        return getattr(bind(*(each for each in arguments if isinstance(each, Tensor))), VARIANTS.get(name, name))(
            *arguments
        )

    return run


WAYS = [operator, called]


def differentiable(name: str, way: Callable[[str], Any]) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The operator as a function of its inputs with a derivative alone, with its floating outputs alone."""
    arguments, run = list(Sample().arguments(name)), way(name)
    if name.startswith("embed"):
        arguments[1].requires_grad_()
    places = [i for i, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]

    def function(*floating: Tensor) -> Any:
        complete = list(arguments)
        for place, each in zip(places, floating, strict=True):
            complete[place] = each
        result = run(*complete)
        found = [result] if isinstance(result, Tensor) else [each for each in result if each.is_floating_point()]
        return found[0] if len(found) == 1 else torch.cat([each.flatten() for each in found])

    return function, tuple(arguments[place] for place in places)


@on_default_backend
@pytest.mark.parametrize("name", INTEGER + WITHOUT_DERIVATIVE + FLOATING)
def test_opcheck(name: str) -> None:
    """Schema, fake tensors, autograd registration, and the traced operator with static and dynamic shapes."""
    arguments = Sample().arguments(name)
    if not name.startswith(("index_points", "coarsen_lattice")):
        torch.library.opcheck(operator(name), arguments)
        return
    # opcheck adds all outputs up in the dtype of the first, which fails for integers before floats, so it traces
    # this operator without gradients; test_traced_gradient does the rest
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator(name), arguments, test_utils=utilities)
    fixed = tuple(each.detach() if isinstance(each, Tensor) else each for each in arguments)
    torch.library.opcheck(operator(name), fixed)


@on_default_backend
@pytest.mark.parametrize("name", FLOATING)
def test_traced_gradient(name: str) -> None:
    """The gradients of the traced operator equal those of the eager one, bit for bit."""
    function, inputs = differentiable(name, called)
    torch.compiler.reset()
    traced = torch.compile(function, backend="aot_eager", fullgraph=True)
    expected, actual = function(*inputs), traced(*inputs)
    assert (expected == actual).all()
    upstream = torch.randn_like(expected)
    eager = torch.autograd.grad(expected, inputs, upstream)
    compiled = torch.autograd.grad(actual, inputs, upstream)
    assert all(bool((one == other).all()) for one, other in zip(eager, compiled, strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FLOATING)
def test_first_derivative(name: str, way: Callable[[str], Any]) -> None:
    function, inputs = differentiable(name, way)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FLOATING)
def test_second_derivative(name: str, way: Callable[[str], Any]) -> None:
    function, inputs = differentiable(name, way)
    if name.startswith("index_points"):
        # linear inside a simplex: the second derivative is zero, which torch reports as no dependence at all
        random = to_tensor(np.random.default_rng(4).normal(size=(POINTS, DIMENSION + 1)))
        (first,) = torch.autograd.grad((function(*inputs) * random).sum(), inputs, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), inputs, allow_unused=True)
        assert second is None or bool((second == 0).all())
        return
    # the reference adds in no fixed order on a GPU
    nondet_tol = 0.0 if DEVICE.type == "cpu" else 1e-10
    assert torch.autograd.gradgradcheck(function, inputs, nondet_tol=nondet_tol, fast_mode=True)


def test_every_operator_is_tested() -> None:
    names = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "permutohedral::" in name
    }
    assert names == {VARIANTS.get(name, name) for name in INTEGER + WITHOUT_DERIVATIVE + FLOATING}
