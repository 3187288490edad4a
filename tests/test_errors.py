"""Bad input raises the right error, with a message that says what to pass instead."""

from __future__ import annotations

import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, ErrorCase, assert_raises
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import DOCUMENTATION, PAGE, FeatureRangeError

SIGMAS: dict[str, Any] = {"sigma_space": 1.0, "sigma_color": 1.0}

pytestmark = pytest.mark.usefixtures("backend")

InputError = ph.errors.InputError


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, device=DEVICE, dtype=dtype)


def features_with(value: float) -> Tensor:
    features = zeros(6, 2)
    features[4, 1] = value
    return features


def lattice_of(*shape: int, **options: Any) -> ph.Lattice:
    return ph.build_lattice(zeros(*shape), **options)


def items(*numbers: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, device=DEVICE, dtype=dtype)


FEATURES: dict[str, ErrorCase] = {
    "nan": (
        lambda: ph.build_lattice(features_with(float("nan"))),
        ph.errors.FeatureRangeError,
        "finite.*row 4.*repair",
    ),
    "infinite": (lambda: ph.build_lattice(features_with(float("inf"))), ph.errors.FeatureRangeError, "finite.*row 4"),
    "too_large": (
        lambda: ph.build_lattice(features_with(1e9)),
        ph.errors.FeatureRangeError,
        "do not fit.*subtract the mean.*larger bandwidth.*float64",
    ),
    "nan_in_targets": (
        lambda: ph.build_lattice(zeros(6, 2), features_with(float("nan"))),
        ph.errors.FeatureRangeError,
        "finite.*row 4",
    ),
    "nan_in_an_image": (
        lambda: ph.bilateral_filter(torch.full((1, 4, 4), float("nan"), device=DEVICE), **SIGMAS),
        InputError,
        "finite",
    ),
    "without_numbers": (lambda: ph.build_lattice(torch.zeros(5, 2, device="meta")), InputError, "holds no numbers"),
    "one_axis": (lambda: ph.build_lattice(zeros(5)), InputError, r"\[points, dimension\].*\(5,\)"),
    "four_axes": (lambda: lattice_of(1, 2, 3, 4), InputError, r"\[batch, points, dimension\].*\(1, 2, 3, 4\)"),
    "no_dimension": (lambda: lattice_of(5, 0), InputError, r"at least one dimension.*\(5, 0\)"),
    "integers": (lambda: ph.build_lattice(zeros(5, 2, dtype=torch.int64)), InputError, r"int64.*\.float\(\)"),
    "sixteen_bits": (lambda: ph.build_lattice(zeros(5, 2, dtype=torch.float16)), InputError, r"float16.*\.float\(\)"),
    "complex": (lambda: ph.build_lattice(zeros(5, 2, dtype=torch.complex64)), InputError, "real, of at least 16 bits"),
    "numpy": (lambda: ph.build_lattice(np.zeros((5, 2))), InputError, "ndarray.*torch.as_tensor"),  # type: ignore[arg-type]
    "sparse": (lambda: ph.build_lattice(zeros(5, 2).to_sparse()), InputError, r"dense.*sparse_coo.*to_dense\(\)"),
    "none": (
        lambda: ph.permutohedral_filter(zeros(5, 1), None, zeros(7, 1, 1)),  # type: ignore[arg-type]
        InputError,
        "features must be a torch.Tensor or a Lattice, got NoneType",
    ),
    "targets_of_another_dimension": (
        lambda: ph.build_lattice(zeros(5, 2), zeros(5, 3)),
        InputError,
        "same dimension.* 2 and 3",
    ),
    "targets_of_another_rank": (lambda: ph.build_lattice(zeros(5, 2), zeros(1, 5, 2)), InputError, "both"),
    "targets_of_another_batch": (lambda: ph.build_lattice(zeros(3, 5, 2), zeros(2, 5, 2)), InputError, "one size"),
    "targets_of_another_dtype": (
        lambda: ph.build_lattice(zeros(5, 2), zeros(5, 2, dtype=torch.float64)),
        InputError,
        "share dtype.*float32.*float64",
    ),
    "targets_elsewhere": (
        lambda: ph.build_lattice(zeros(5, 2), torch.zeros(5, 2, device="meta")),
        InputError,
        "share dtype and device.*meta",
    ),
}

BATCHES: dict[str, ErrorCase] = {
    "list": (lambda: lattice_of(2, 2, batch=[0, 1]), InputError, "batch must be a torch.Tensor, got list.*as_tensor"),
    "too_short": (lambda: lattice_of(5, 2, batch=items(0, 1)), InputError, r"each of the 5 points.*\(2,\)"),
    "floating": (lambda: lattice_of(2, 2, batch=zeros(2)), InputError, "integer vector.*float32"),
    "boolean": (lambda: lattice_of(2, 2, batch=items(0, 1, dtype=torch.bool)), InputError, "integer.*bool"),
    "negative": (lambda: lattice_of(2, 2, batch=items(0, -1)), InputError, "from 0 to.*got -1 to 0"),
    "beyond_int32": (lambda: lattice_of(2, 2, batch=items(0, 2**31)), InputError, "from 0 to"),
    "of_a_dense_batch": (lambda: lattice_of(2, 2, 2, batch=items(0, 1)), InputError, "already; drop batch"),
    "not_for_targets": (
        lambda: ph.build_lattice(zeros(2, 2), zeros(1, 2), batch=items(0, 1)),
        InputError,
        "batch and target_batch both",
    ),
    "only_for_targets": (
        lambda: ph.build_lattice(zeros(2, 2), zeros(1, 2), target_batch=items(0)),
        InputError,
        "batch and target_batch both",
    ),
    "without_targets": (
        lambda: ph.build_lattice(zeros(2, 2), batch=items(0, 1), target_batch=items(0, 1)),
        InputError,
        "without target_features",
    ),
    "elsewhere": (
        lambda: lattice_of(2, 2, batch=torch.zeros(2, dtype=torch.int64, device="meta")),
        InputError,
        "batch is on meta.*move one",
    ),
}

NEIGHBORHOODS: dict[str, ErrorCase] = {
    "negative_size": (
        lambda: lattice_of(5, 2, neighborhood_size=-1),
        ph.errors.NeighborhoodError,
        "at least 0.*got -1",
    ),
    "fraction": (lambda: lattice_of(5, 2, neighborhood_size=1.5), ph.errors.NeighborhoodError, "whole number.*1.5"),
    "no_dimension": (lambda: ph.lattice.Neighborhood(0, 1), ph.errors.NeighborhoodError, "at least 1, got 0"),
    "negative_dimension": (
        lambda: ph.lattice.gaussian_weight(-2, 1),
        ph.errors.NeighborhoodError,
        "at least 1, got -2",
    ),
    # 3^21 - 2^21 taps
    "too_many_taps": (
        lambda: lattice_of(5, 20, neighborhood_size=2),
        ph.errors.NeighborhoodError,
        "10,458,256,051 taps.*41,833,024,204 bytes.*smaller neighborhood_size.*gaussian_filter",
    ),
    "transposed_features": (
        lambda: ph.permutohedral_filter(zeros(1, 4000), zeros(5, 4000), zeros(7)),
        ph.errors.NeighborhoodError,
        r"in 4000 dimensions has about 2\^4001 taps.*features are \[points, dimension\]",
    ),
    "too_many_taps_in_a_layer": (
        lambda: ph.nn.PermutohedralConv(1, 1, dimension=30),
        ph.errors.NeighborhoodError,
        "2,147,483,647 taps",
    ),
    "too_many_channels_in_an_image": (
        lambda: ph.nn.BilateralConv2d(16, 32),
        ph.errors.NeighborhoodError,
        "^guide_channels.*got 16.*pass guide_channels=3.* or guide_channels=0 for",
    ),
    "negative_halo": (lambda: lattice_of(5, 2, halo=-1), InputError, "halo.*-1"),
    "halo_of_a_fraction": (lambda: lattice_of(5, 2, halo=0.5), InputError, "halo.*0.5"),
    "halo_without_end": (lambda: lattice_of(5, 1, halo=10**6), InputError, "1000000 steps.*1024 steps"),
    "halo_of_too_many": (lambda: lattice_of(5, 5, halo=100), InputError, "100 steps.*lattice points around each"),
    # the number itself would take hours
    "dimensions_without_end": (
        lambda: ph.lattice.Neighborhood(2**70, 1),
        ph.errors.NeighborhoodError,
        "fewer feature dimensions",
    ),
}

MEMORY: dict[str, ErrorCase] = {
    # 3 lattice points with 217 taps of 4 bytes
    "neighbors": (
        lambda: lattice_of(5, 2, memory_limit=150, neighborhood_size=8),
        ph.errors.MemoryLimitError,
        r"217 taps.* 3 lattice points would take 2,604 bytes, more than memory_limit, 150 bytes; use",
    ),
    "simplices": (
        lambda: lattice_of(500, 2, memory_limit=1000),
        ph.errors.MemoryLimitError,
        "500 points in 2 dimensions would take 12,000 bytes",
    ),
    "text": (lambda: lattice_of(5, 2, memory_limit="1GB"), InputError, "memory_limit must be a number of bytes.*'1GB'"),
    "halo": (
        lambda: lattice_of(5, 2, memory_limit=200, halo=3),
        ph.errors.MemoryLimitError,
        "halo of 3 lattice points",
    ),
}


def test_sufficient_memory_limit_changes_nothing() -> None:
    assert ph.build_lattice(zeros(5, 2), memory_limit=10_000).num_lattice_points == 3


VALUES: dict[str, ErrorCase] = {
    "too_many": (lambda: ph.splat(zeros(6, 1), lattice_of(5, 2)), InputError, r"\[..., 5, channels\].*\(6, 1\)"),
    "one_axis": (lambda: ph.splat(zeros(5), lattice_of(5, 2)), InputError, r"\[..., 5, channels\].*\(5,\)"),
    "flat_on_a_batch": (
        lambda: ph.splat(zeros(10, 1), lattice_of(2, 5, 2)),
        InputError,
        r"\[2, 5, channels\].*\(10, 1\)",
    ),
    "transposed": (
        lambda: ph.splat(zeros(5, 2, 1), lattice_of(2, 5, 2)),
        InputError,
        r"\[2, 5, channels\].*\(5, 2, 1\)",
    ),
    "integers": (
        lambda: ph.splat(zeros(5, 1, dtype=torch.int64), lattice_of(5, 2)),
        InputError,
        r"floating.*int64.*\.float\(\)",
    ),
    "not_a_tensor": (lambda: ph.splat([1.0], lattice_of(5, 2)), InputError, "floating tensor, got list"),  # type: ignore[arg-type]
    "double_on_single": (
        lambda: ph.splat(zeros(5, 1, dtype=torch.float64), lattice_of(5, 2)),
        InputError,
        "float64.*float32; convert one",
    ),
    "half_on_double": (
        lambda: ph.splat(zeros(5, 1, dtype=torch.float16), ph.build_lattice(zeros(5, 2, dtype=torch.float64))),
        InputError,
        "16 bits go with float32 features",
    ),
    "elsewhere": (
        lambda: ph.splat(torch.zeros(5, 1, device="meta"), lattice_of(5, 2)),
        InputError,
        "on meta.*move one",
    ),
    "lattice_values": (
        lambda: ph.convolve(zeros(4, 1), zeros(7, 1, 1), lattice_of(5, 2)),
        InputError,
        r"\[..., 3, channels\].*source lattice point.*\(4, 1\)",
    ),
    "sliced_values": (lambda: ph.slice(zeros(4, 1), lattice_of(5, 2)), InputError, r"\[..., 3, channels\]"),
}

WEIGHTS: dict[str, ErrorCase] = {
    "another_size": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(19, 1, 1)),
        InputError,
        "19 taps.*size 1 in 2 dimensions has 7; 19 taps belong to neighborhood_size=2",
    ),
    "no_size_at_all": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(8, 1, 1)),
        InputError,
        r"8 taps, but.* has 7 \(see ",
    ),
    "two_axes": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(7, 1)),
        InputError,
        r"\[filter_size, in_channels / groups, out_channels\] or \[filter_size\], got \(7, 1\)",
    ),
    "channels": (
        lambda: ph.permutohedral_filter(zeros(5, 4), zeros(5, 2), zeros(7, 3, 3)),
        InputError,
        "does not fit values of 4 channels.*in_channels / groups",
    ),
    "more_channels_than_values": (
        lambda: ph.permutohedral_filter(zeros(5, 2), zeros(5, 2), zeros(7, 4, 4)),
        InputError,
        "does not fit values of 2 channels",
    ),
    "groups": (
        lambda: ph.permutohedral_filter(zeros(5, 4), zeros(5, 2), zeros(7, 2, 3)),
        InputError,
        "third a multiple of groups",
    ),
    "dtype": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(7, 1, 1, dtype=torch.float64)),
        InputError,
        "weight is torch.float64.*values are torch.float32.*convert one",
    ),
    "elsewhere": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), torch.zeros(7, 1, 1, device="meta")),
        InputError,
        "weight is torch.float32 on meta",
    ),
}

FILTERS: dict[str, ErrorCase] = {
    "values_of_another_length_symmetric": (
        lambda: ph.permutohedral_filter(zeros(4, 1), zeros(5, 2), zeros(7), normalization="symmetric"),
        InputError,
        "5, channels.*4, 1",
    ),
    "normalization": (
        lambda: ph.permutohedral_filter(zeros(5, 1), zeros(5, 2), zeros(7), normalization="mean"),  # type: ignore[arg-type]
        InputError,
        "'none', 'homogeneous', 'symmetric', 'density', 'coverage', got 'mean'",
    ),
    "method": (
        lambda: ph.gaussian_filter(zeros(5, 1), zeros(5, 2), method="fast"),  # type: ignore[call-overload]
        InputError,
        "'lattice', 'dense', 'exact', 'auto', got 'fast'",
    ),
    "lattice_and_targets": (
        lambda: ph.permutohedral_filter(zeros(5, 1), lattice_of(5, 2), zeros(7), zeros(5, 2)),
        InputError,
        "target_features must be left out with a Lattice",
    ),
    "lattice_and_batch": (
        lambda: ph.gaussian_filter(zeros(5, 1), lattice_of(5, 2, separable=True), batch=zeros(5)),
        InputError,
        "batch must be left out with a Lattice",
    ),
    "features_as_lattice": (
        lambda: ph.splat(zeros(5, 1), zeros(5, 2)),  # type: ignore[arg-type]
        InputError,
        r"lattice must be a Lattice, got Tensor; use build_lattice\(features\)",
    ),
    "lattice_not_separable": (
        lambda: ph.gaussian_filter(zeros(5, 1), lattice_of(5, 2)),
        InputError,
        "separable=True",
    ),
    "lattice_too_small_for_the_dense_gaussian": (
        lambda: ph.gaussian_filter(zeros(5, 1), lattice_of(5, 2), method="dense"),
        InputError,
        "neighborhood_size=2",
    ),
    "halo_of_a_given_lattice": (
        lambda: ph.gaussian_filter(zeros(5, 1), lattice_of(5, 2, separable=True), halo=1),
        InputError,
        "halo.*build_lattice",
    ),
    "fill_value_beyond_its_dtype": (
        lambda: ph.gaussian_filter(zeros(5, 1), zeros(5, 2), fill_value=1e300),
        InputError,
        "fill_value must be at most 3.4e.38 for torch.float32, got 1e.300",
    ),
    "fill_value_of_an_image": (
        lambda: ph.bilateral_filter(zeros(1, 4, 4).half(), **SIGMAS, fill_value=-1e5),
        InputError,
        "fill_value must be at most 6.55e.04 for torch.float16, got -100000.0",
    ),
    "fill_value_as_text": (
        lambda: ph.gaussian_filter(zeros(5, 1), zeros(5, 2), fill_value="none"),  # type: ignore[call-overload]
        InputError,
        "fill_value must be a number, got 'none'",
    ),
    "guide_without_rows": (
        lambda: ph.upsample(zeros(1, 4, 4), zeros(3, 0, 16)),
        InputError,
        r"cannot bring a grid of \(4, 4\) to one of \(0, 16\)",
    ),
    "image_without_pixels_after_scaling": (
        lambda: ph.nn.DenseEnergyLoss(scale_factor=0.1)(zeros(1, 3, 9, 20), zeros(1, 2, 9, 20)),
        InputError,
        "images of 9 x 20 pixels have none left after scaling by scale_factor=0.1",
    ),
    "channels_last": (lambda: ph.bilateral_filter(zeros(40, 50, 3), **SIGMAS), InputError, r"movedim\(-1, -3\)"),
    "gray_image": (lambda: ph.bilateral_filter(zeros(4, 5), **SIGMAS), InputError, r"image\[None\]"),
    "integer_image": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5, dtype=torch.int32), **SIGMAS),
        InputError,
        r"^image of int32 has no rule for sigma_color: pass value_range=\(low, high\)",
    ),
    "bool_image": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5, dtype=torch.bool), **SIGMAS),
        InputError,
        r"got torch.bool; convert it, for instance with image.float\(\)",
    ),
    "value_range": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, value_range=(9, 3)),
        InputError,
        r"value_range must be \(low, high\), two finite numbers, got \(9, 3\)",
    ),
    "integer_guide": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, guide=zeros(1, 4, 5, dtype=torch.int64)),
        InputError,
        "^guide of int64 has no rule",
    ),
    "gray_guide": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, guide=zeros(4, 5)),
        InputError,
        r"^guide must be.*guide\[None\]",
    ),
    "guide_with_its_channels_last": (
        lambda: ph.bilateral_filter(zeros(3, 40, 50), **SIGMAS, guide=zeros(40, 50, 3)),
        InputError,
        "guide and image.*channels_last=True",
    ),
    "guide_of_another_dtype": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, guide=zeros(1, 4, 5, dtype=torch.float64)),
        InputError,
        r"^guide is torch.float64.* image torch.float32.*guide.to\(image\)",
    ),
    "explained_guide": (
        lambda: ph.accuracy.explain_bilateral(zeros(3, 4, 5), **SIGMAS, guide=zeros(1, 5, 4)),
        InputError,
        "^guide and image must have one height",
    ),
    "weights_of_a_row": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, sample_weight=zeros(5)),
        InputError,
        r"sample_weight must be \[4, 5\].*got \[5\]",
    ),
    "guide_of_another_size": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, guide=zeros(1, 5, 4)),
        InputError,
        "one height and width",
    ),
    "guide_of_another_batch": (
        lambda: ph.bilateral_filter(zeros(2, 3, 4, 5), **SIGMAS, guide=zeros(3, 1, 4, 5)),
        InputError,
        r"batch axes.*\(3,\) and \(2,\)",
    ),
    "guide_of_a_batch_for_one_image": (
        lambda: ph.bilateral_filter(zeros(3, 4, 5), **SIGMAS, guide=zeros(2, 1, 4, 5)),
        InputError,
        "batch axes",
    ),
}


CASES = {
    f"{group}-{name}": case
    for group, cases in (
        ("features", FEATURES),
        ("batch", BATCHES),
        ("neighborhood", NEIGHBORHOODS),
        ("memory", MEMORY),
        ("values", VALUES),
        ("weight", WEIGHTS),
        ("filter", FILTERS),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", [*CASES.values()], ids=[*CASES])
def test_rejects_with_advice(case: ErrorCase) -> None:
    assert_raises(*case)


def kinds(
    base: type[ph.errors.PermutohedralError] = ph.errors.PermutohedralError,
) -> list[type[ph.errors.PermutohedralError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


def test_errors_link_to_existing_sections() -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "errors.md").read_text()
    sections = [heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)]
    for kind in kinds():
        assert kind.section in sections
        assert f"`{kind.__name__}`" in page
        assert str(kind("so it is")) == f"so it is (see {PAGE}#{kind.section})"
        assert str(ph.errors.InputError(f"first: {kind('so it is')}")).count("(see ") == 1
        assert str(pickle.loads(pickle.dumps(kind("so it is")))) == str(kind("so it is"))
        # as Dask makes an error that a worker raised
        assert isinstance(kind.__new__(kind), kind)


def test_links_lead_to_the_documentation_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION


def test_errors_derive_from_builtin_errors() -> None:
    assert issubclass(ph.errors.InputError, ValueError)
    assert issubclass(ph.errors.FeatureRangeError, ph.errors.InputError)
    assert issubclass(ph.errors.NeighborhoodError, ph.errors.InputError)
    assert issubclass(ph.errors.MemoryLimitError, MemoryError)
    assert issubclass(ph.errors.BackendUnavailable, RuntimeError)
    for error in (ph.errors.InputError, ph.errors.MemoryLimitError, ph.errors.BackendUnavailable):
        assert issubclass(error, ph.errors.PermutohedralError)


@pytest.mark.parametrize("options", [{}, {"method": "dense"}], ids=["lattice", "dense"])
def test_errors_of_targets_have_their_rows(options: dict[str, Any]) -> None:
    targets = torch.rand(7, 2, device=DEVICE)
    targets[5, 0] = float("nan")
    with pytest.raises(FeatureRangeError, match=r"^target_features must be finite, but 1 of 7 points .* at row 5"):
        ph.gaussian_filter(torch.rand(9, 1, device=DEVICE), torch.rand(9, 2, device=DEVICE), targets, **options)
