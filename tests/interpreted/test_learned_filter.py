"""The learned filter, from features and on a lattice, with its derivatives, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError, MemoryLimitError
from permutohedral.filters.normalization import Normalization
from permutohedral.lattice import memory
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton import BACKEND as kernels


@dataclass(frozen=True)
class Case:
    """A layer, and what is asked of it."""

    channels: tuple[int, int]
    dtype: torch.dtype = torch.float64
    normalization: Normalization = "density"
    groups: int = 1
    targets: bool = True
    # whether that of the values is wanted, too
    gradient: bool = False
    batched: bool = True

    def layer(self) -> ph.nn.PermutohedralConv:
        """In two dimensions, with a bias."""
        layer = ph.nn.PermutohedralConv(
            *self.channels, 2, 1, groups=self.groups, normalization=self.normalization, dtype=self.dtype
        )
        assert layer.bias is not None
        torch.nn.init.normal_(layer.bias)
        return layer

    def points(self) -> tuple[Tensor, Tensor | None]:
        """Features and target features."""
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        items = (2,) if self.batched else ()
        features = 2 * torch.randn(*items, 15, 2, dtype=exact)
        return features, torch.randn(*items, 10, 2, dtype=exact) if self.targets else None


CASES = [
    Case((2, 4)),
    Case((2, 4), normalization="none", groups=2, gradient=True),
    Case((1, 3), torch.float32, targets=False, gradient=True, batched=False),
    Case((3, 2), targets=False),
    Case((9, 3), torch.float16, batched=False),
    # on the matrix units
    Case((16, 24), torch.float32),
    Case((8, 16), torch.float16, gradient=True),
    Case((16, 32), torch.float32, groups=2, gradient=True),
]


def assert_as_reference(
    layer: ph.nn.PermutohedralConv,
    case: Case,
    features: Tensor | None,
    targets: Tensor | None,
    lattice: ph.Lattice | None = None,
) -> None:
    """The same output and derivatives as the reference, of random values and gradient."""
    items = (2,) if case.batched else ()
    values = torch.randn(*items, 15, case.channels[0]).to(case.dtype).requires_grad_(case.gradient)
    upstream = torch.randn(*items, 10 if case.targets else 15, case.channels[1]).to(case.dtype)
    leaves = [*layer.parameters(), *([values] if case.gradient else [])]

    def run(backend: str) -> list[Tensor]:
        with use_backend(backend):
            output = layer(values, features, targets, lattice)
            return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]

    for found, expected in zip(run("triton"), run("reference"), strict=True):
        assert_close(found, expected, case.dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_from_features(case: Case) -> None:
    assert_as_reference(case.layer(), case, *case.points())


@pytest.mark.parametrize(
    ("case", "halo"),
    [
        (Case((1, 5), gradient=True), 1),
        (Case((8, 3), gradient=True), 0),
        (Case((16, 24), torch.float32, gradient=True), 0),
        (Case((4, 2), normalization="none", gradient=True), 0),
        (Case((2, 4), torch.float16, gradient=True), 0),
        (Case((4, 8), torch.float16, normalization="none", gradient=True), 0),
    ],
    ids=str,
)
def test_on_a_lattice(case: Case, halo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step what it is as operators; a halo holds no density."""
    calls, fused = [], kernels.filter_learned

    def count(*arguments: object) -> object:
        calls.append(arguments)
        return fused(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(kernels), "filter_learned", staticmethod(count))
    features, targets = case.points()
    lattice = ph.build_lattice(features, targets, neighborhood_size=1, halo=halo)
    assert_as_reference(case.layer(), case, None, None, lattice)
    assert len(calls) == 1


@pytest.mark.parametrize("channels", [(2, 4), (16, 16)])
def test_a_small_density_is_in_the_range_of_sixteen_bits(channels: tuple[int, int]) -> None:
    """Points that hardly touch a vertex: a gradient over its density would be infinite in float16."""
    case = Case(channels, torch.float16, targets=False, gradient=True, batched=False)
    features = torch.cat([torch.full((1, 2), 1e-6), 40 * torch.randn(14, 2)])
    layer = case.layer()
    assert_as_reference(layer, case, features, None)
    values = torch.randn(15, channels[0]).half().requires_grad_()
    with use_backend("triton"):
        (gradient,) = torch.autograd.grad(layer(values, features).float().sum() * 64, values)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("case", [Case((3, 5), torch.float32, gradient=True), Case((2, 4), torch.float16)], ids=str)
def test_the_same_bits_every_time(case: Case) -> None:
    torch.use_deterministic_algorithms(True)
    assert_as_reference(case.layer(), case, *case.points())


def test_differentiated_twice() -> None:
    """As the reference is, whose second derivatives are checked against differences."""
    features = 2 * torch.randn(7, 1, dtype=torch.float64)
    layer = ph.nn.PermutohedralConv(1, 2, 1, 1, dtype=torch.float64)
    values = torch.randn(7, 1, dtype=torch.float64, requires_grad=True)
    leaves = [values, *layer.parameters()]
    upstream, along = torch.randn(7, 2, dtype=torch.float64), [torch.randn_like(leaf) for leaf in leaves]

    def run(backend: str) -> tuple[Tensor, ...]:
        with use_backend(backend):
            first = torch.autograd.grad(layer(values, features).square(), leaves, upstream, create_graph=True)
            return torch.autograd.grad(first, leaves, along)

    for found, expected in zip(run("triton"), run("reference"), strict=True):
        assert_close(found, expected)


def test_a_graph_that_is_kept_is_run_back_twice() -> None:
    layer, features = ph.nn.PermutohedralConv(1, 2, 2, 1), torch.randn(20, 2)
    with use_backend("triton"):
        for _ in range(5):
            output = layer(torch.randn(20, 1), features)
            upstream = torch.randn_like(output)
            first = torch.autograd.grad(output, list(layer.parameters()), upstream, retain_graph=True)
            # not contiguous
            strided = upstream.T.contiguous().T
            second = torch.autograd.grad(output, list(layer.parameters()), strided)
            for one, other in zip(first, second, strict=True):
                assert_close(one, other)


def test_parameters_that_are_not_contiguous() -> None:
    """Nor are the values, whose rows are."""
    layer, features = ph.nn.PermutohedralConv(3, 4, 2), 3 * torch.rand(20, 2)
    layer.weight = torch.nn.Parameter(torch.randn(4, 3, 7).permute(2, 1, 0))
    layer.bias = torch.nn.Parameter(torch.randn(8)[::2])
    values, found = torch.randn(20, 5)[:, 1:4].requires_grad_(), []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            output = layer(values, features)
            found.append((output, *torch.autograd.grad(output.square().sum(), (values, *layer.parameters()))))
    for expected, ours in zip(*found, strict=True):
        assert_close(ours, expected)


def test_points_of_changing_extent() -> None:
    """One call after another: far fewer lattice points, a few more, far more."""
    layer, features, values = ph.nn.PermutohedralConv(1, 2, 2, 1), torch.randn(20, 2), torch.randn(20, 1)
    for scale in (1.0, 1.0, 0.01, 1.05, 30.0):
        with use_backend("triton"), torch.no_grad():
            found = layer(values, scale * features)
        with use_backend("reference"), torch.no_grad():
            assert_close(found, layer(values, scale * features))


def test_points_too_far_apart_for_packed_keys() -> None:
    layer, values = ph.nn.PermutohedralConv(1, 2, 7, 0), torch.randn(2, 5, 1)
    features = torch.randn(2, 5, 7)
    for scale in (1.0, 300.0, 300.0):
        with use_backend("triton"), torch.no_grad():
            found = layer(values, scale * features)
        with use_backend("reference"), torch.no_grad():
            assert_close(found, layer(values, scale * features))


def test_no_output_channels() -> None:
    values, weight = torch.randn(9, 2, requires_grad=True), torch.randn(7, 2, 0, requires_grad=True)
    with use_backend("triton"):
        output = ph.permutohedral_filter(values, torch.randn(9, 2), weight, normalization="density")
        assert output.shape == (9, 0)
        to_values, to_weight = torch.autograd.grad(output.sum(), [values, weight])
    assert torch.equal(to_values, torch.zeros(9, 2))
    assert to_weight.shape == weight.shape


def test_tensors_that_are_not_aligned() -> None:
    layer = ph.nn.PermutohedralConv(1, 2, 2, 1)
    memory, values = torch.randn(21, 2), torch.randn(20, 1)
    for features in (memory[:20], memory[1:]):
        with use_backend("triton"), torch.no_grad():
            found = layer(values, features)
        with use_backend("reference"), torch.no_grad():
            assert_close(found, layer(values, features))


def test_layer_rejects_invalid_arguments() -> None:
    layer, features, values = ph.nn.PermutohedralConv(1, 2, 2, 0), torch.randn(20, 2), torch.randn(20, 1)
    with use_backend("triton"):
        layer(values, features)
        broken = features.clone()
        broken[7, 1] = float("nan")
        with pytest.raises(FeatureRangeError):
            layer(values, broken)
        with pytest.raises(InputError, match="2 dimensions"):
            layer(values, torch.randn(20, 3))
        with pytest.raises(InputError, match="values"):
            layer(values[:7], features)
        with pytest.raises(InputError, match="float64"):
            layer(values.double(), features)
        with pytest.raises(InputError, match="as_tensor"):
            layer(values, features.numpy())
        # and nothing is broken by it
        assert_close(layer(values, features), layer(values, layer.build_lattice(features)))


def test_raises_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    lattice = ph.build_lattice(torch.randn(9, 2), neighborhood_size=1)
    monkeypatch.setattr(memory, "_NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: 1000)
    with use_backend("triton"), pytest.raises(MemoryLimitError, match="channels"):
        ph.permutohedral_filter(torch.randn(9, 1), lattice, torch.randn(7, 1, 64))
