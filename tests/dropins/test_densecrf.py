"""The drop-in for pydensecrf against what pydensecrf2 answered, and its own rules."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydensecrf_cases
import pytest
from pydensecrf_cases import CASES, COMPATS, HEIGHT, LABELS, WIDTH, Case

import permutohedral as ph
from permutohedral.compat.pydensecrf import densecrf as dcrf
from permutohedral.compat.pydensecrf import eigen
from permutohedral.errors import InputError

RECORDED = np.load(Path(__file__).parent / "pydensecrf.npz")
PIXELS = WIDTH * HEIGHT


def tolerance(case: Case) -> float:
    """How far marginals may lie from pydensecrf2's: without normalization rounding counts more."""
    return 5e-4 if case.normalization == "NO_NORMALIZATION" else 1e-4


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_agrees_with_recorded_results(number: int) -> None:
    case = CASES[number]
    found = pydensecrf_cases.solve(dcrf, case)
    np.testing.assert_allclose(found["marginals"], RECORDED["marginals"][number], rtol=0, atol=tolerance(case))
    np.testing.assert_allclose(found["divergence"], RECORDED["divergence"][number], rtol=tolerance(case))


def simple_field(labels: int = LABELS) -> dcrf.DenseCRF2D:
    field = dcrf.DenseCRF2D(WIDTH, HEIGHT, labels)
    unary, picture, _ = pydensecrf_cases.inputs()
    field.setUnaryEnergy(unary[:labels].copy())
    field.addPairwiseBilateral(sxy=4, srgb=20, rgbim=picture, compat=3)
    return field


def test_signs_of_compats() -> None:
    """A number attracts; arrays are costs: 3 = -3 as a vector = 3 (1 - I) = -3 I."""
    answers = []
    for compat in (
        *(3, np.full(LABELS, -3, np.float32), (3 * (1 - np.eye(LABELS))).astype(np.float32)),
        *((-3 * np.eye(LABELS)).astype(np.float32), np.float64(3)),
    ):
        field = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
        field.setUnaryEnergy(pydensecrf_cases.inputs()[0])
        field.addPairwiseGaussian(2, compat)
        answers.append(np.array(field.inference(3)))
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=2e-6)
    repelled = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
    repelled.setUnaryEnergy(pydensecrf_cases.inputs()[0])
    repelled.addPairwiseGaussian(2, np.full(LABELS, 3, np.float32))
    assert np.abs(np.array(repelled.inference(3)) - answers[0]).max() > 0.1


def test_matrices_are_symmetrized() -> None:
    answers = []
    for matrix in (COMPATS["matrix"], np.ascontiguousarray(COMPATS["matrix"].T)):
        field = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
        field.addPairwiseGaussian(2, matrix)
        field.setUnaryEnergy(pydensecrf_cases.inputs()[0])
        answers.append(field.inference(3))
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-6)


def test_single_steps_agree_with_inference() -> None:
    field = simple_field()
    marginals, first, second = field.startInference()
    np.testing.assert_array_equal(marginals, field.inference(0))
    same = marginals
    for _ in range(3):
        assert field.stepInference(marginals, first, second) is None  # type: ignore[func-returns-value]
    assert same is marginals
    np.testing.assert_allclose(marginals, field.inference(3), atol=1e-6)


def test_without_unary() -> None:
    """Inference starts with equal probabilities, startInference with zeros."""
    field = dcrf.DenseCRF(5, 4)
    np.testing.assert_allclose(field.inference(0), 0.25)
    marginals, first, second = field.startInference()
    assert not marginals.any()
    field.stepInference(marginals, first, second)
    np.testing.assert_allclose(marginals, 0.25)


def test_marginals_are_an_array() -> None:
    marginals = simple_field().inference(2)
    assert isinstance(marginals, eigen.MatrixXf)
    assert marginals.dtype == np.float32
    assert marginals.shape == (LABELS, PIXELS)
    plain = np.array(marginals)
    assert type(plain) is np.ndarray
    np.testing.assert_array_equal(np.argmax(marginals, axis=0), plain.argmax(axis=0))
    assert marginals[1].reshape(HEIGHT, WIDTH).shape == (HEIGHT, WIDTH)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(marginals)), plain)


def test_copies_its_arguments() -> None:
    unary, picture, features = pydensecrf_cases.inputs()
    compat = COMPATS["vector"].copy()
    field = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
    field.setUnaryEnergy(unary)
    field.addPairwiseBilateral(4, 20, picture, compat)
    field.addPairwiseEnergy(features, 1)
    before = np.array(field.inference(2))
    for array in (unary, picture, features, compat):
        array[...] = 0
    np.testing.assert_array_equal(field.inference(2), before)


def test_logistic_unary() -> None:
    random = np.random.default_rng(0)
    weights, features = (random.normal(size=shape).astype(np.float32) for shape in ((LABELS, 4), (4, PIXELS)))
    fields = [dcrf.DenseCRF(PIXELS, LABELS) for _ in range(3)]
    fields[0].setUnaryEnergy(weights @ features)
    fields[1].setUnary(dcrf.LogisticUnary(weights, features))
    fields[2].setUnaryEnergy(weights, features)
    for field in fields[1:]:
        np.testing.assert_allclose(field.inference(0), fields[0].inference(0), atol=1e-6)


def test_infinite_energies_forbid_labels() -> None:
    unary = np.zeros((2, 3), np.float32)
    unary[0, 0], unary[:, 1] = np.inf, np.inf
    field = dcrf.DenseCRF(3, 2)
    field.setUnaryEnergy(unary)
    field.addPairwiseEnergy(np.zeros((1, 3), np.float32), 1)
    # exp of a very negative number may be the smallest float instead of zero
    np.testing.assert_allclose(np.array(field.inference(0))[0], [0, 0.5, 0.5], atol=1e-30)
    assert field.inference(3)[0, 0] < 1e-30


def test_accepts_arguments_like_pydensecrf() -> None:
    assert dcrf.DenseCRF(nvar=4.7, nlabels=2).inference(1.9).shape == (2, 4)  # type: ignore[arg-type]
    assert dcrf.DenseCRF(4, 2, "more", anything=1).inference(-3).shape == (2, 4)
    with pytest.raises(TypeError):
        dcrf.DenseCRF2D(w=3, h=3, nlabels=2)  # type: ignore[call-arg]
    assert [int(kind) for kind in dcrf.NormalizationType] == [0, 1, 2, 3]
    assert [dcrf.CONST_KERNEL, dcrf.DIAG_KERNEL, dcrf.FULL_KERNEL] == [0, 1, 2]

    class Own(dcrf.DenseCRF2D):
        pass

    assert Own(3, 3, 2).inference(1).shape == (2, 9)


def test_read_only_arrays_are_read() -> None:
    """As `numpy.asarray(Image.open(...))` is; pydensecrf rejects it."""
    unary, picture, _ = pydensecrf_cases.inputs()
    read_only = unary.copy(), picture.copy()
    marginals = []
    for energies, photo in ((unary, picture), read_only):
        field = dcrf.DenseCRF2D(WIDTH, HEIGHT, 3)
        field.setUnaryEnergy(energies)
        field.addPairwiseBilateral(sxy=5, srgb=10, rgbim=photo, compat=3)
        marginals.append(np.array(field.inference(2)))
        read_only[0].flags.writeable = read_only[1].flags.writeable = False
    np.testing.assert_array_equal(marginals[0], marginals[1])


# what ends pydensecrf's process, is silently wrong there, or raises there too
BadCalls = dict[str, tuple[type[Exception], Callable[[Any], Any]]]


def bad_unaries() -> BadCalls:
    unary = pydensecrf_cases.inputs()[0]
    with_nan = unary.copy()
    with_nan[1, 5] = np.nan
    return {
        "unary NaN": (InputError, lambda field: field.setUnaryEnergy(with_nan)),
        "unary float64": (InputError, lambda field: field.setUnaryEnergy(unary.astype(float))),
        "unary of 3 axes": (InputError, lambda field: field.setUnaryEnergy(unary.reshape(3, HEIGHT, WIDTH))),
        "unary transposed": (InputError, lambda field: field.setUnaryEnergy(unary.reshape(-1, 3).T)),
        "unary of 2 labels": (InputError, lambda field: field.setUnaryEnergy(unary[:2])),
        "unary None": (TypeError, lambda field: field.setUnaryEnergy(None)),
        "unary list": (TypeError, lambda field: field.setUnaryEnergy(unary.tolist())),
        "logistic shapes": (InputError, lambda field: field.setUnaryEnergy(unary, unary)),
        "no Unary": (TypeError, lambda field: field.setUnary(unary)),
    }


def bad_calls() -> BadCalls:
    unary, picture, features = pydensecrf_cases.inputs()
    nan, infinite = features.copy(), features.copy()
    nan[0, 0], infinite[0, 0] = np.nan, np.inf
    wide = np.zeros((3, 2), np.float32)
    return {
        "sxy 0": (InputError, lambda field: field.addPairwiseGaussian(0, 3)),
        "sxy NaN": (InputError, lambda field: field.addPairwiseGaussian(np.nan, 3)),
        "sxy tiny": (InputError, lambda field: field.addPairwiseGaussian(1e-38, 3)),
        "sxy of one": (InputError, lambda field: field.addPairwiseGaussian((3,), 3)),
        "srgb 0": (InputError, lambda field: field.addPairwiseBilateral(3, 0, picture, 3)),
        "NaN feature": (InputError, lambda field: field.addPairwiseEnergy(nan, 3)),
        "infinite feature": (InputError, lambda field: field.addPairwiseEnergy(infinite, 3)),
        "huge feature": (InputError, lambda field: field.addPairwiseEnergy(features * np.float32(1e30), 3)),
        "no feature": (InputError, lambda field: field.addPairwiseEnergy(features[:0], 3)),
        "negative size": (InputError, lambda field: dcrf.DenseCRF2D(-3, 4, 2)),
        "no labels": (InputError, lambda field: dcrf.DenseCRF(3, 0)),
        "huge size": (InputError, lambda field: dcrf.DenseCRF(2**40, 2)),
        "size NaN": (InputError, lambda field: dcrf.DenseCRF(np.nan, 2)),  # type: ignore[arg-type]
        "size text": (TypeError, lambda field: dcrf.DenseCRF("3", 2)),  # type: ignore[arg-type]
        "short vector": (InputError, lambda field: field.addPairwiseGaussian(3, np.ones(2, np.float32))),
        "matrix 3 x 2": (InputError, lambda field: field.addPairwiseGaussian(3, wide)),
        "compat NaN": (InputError, lambda field: field.addPairwiseGaussian(3, np.nan)),
        "compat vector NaN": (InputError, lambda field: field.addPairwiseGaussian(3, np.full(3, np.nan, np.float32))),
        "compat float64": (InputError, lambda field: field.addPairwiseGaussian(3, np.ones(3))),
        "compat of 3 axes": (InputError, lambda field: field.addPairwiseGaussian(3, np.ones((3, 3, 3), np.float32))),
        "compat of no axes": (InputError, lambda field: field.addPairwiseGaussian(3, np.array(3, np.float32))),
        "compat list": (TypeError, lambda field: field.addPairwiseGaussian(3, [1, 2, 3])),
        "compat None": (TypeError, lambda field: field.addPairwiseGaussian(3, None)),
        "compat complex": (TypeError, lambda field: field.addPairwiseGaussian(3, 1j)),
        "kernel 7": (InputError, lambda field: field.addPairwiseGaussian(3, 3, kernel=7)),
        "normalization 9": (InputError, lambda field: field.addPairwiseGaussian(3, 3, normalization=9)),
        "4 channels": (
            InputError,
            lambda field: field.addPairwiseBilateral(3, 3, np.zeros((HEIGHT, WIDTH, 4), np.uint8), 3),
        ),
        "picture of floats": (
            InputError,
            lambda field: field.addPairwiseBilateral(3, 3, picture.astype(np.float32), 3),
        ),
        "picture turned": (
            InputError,
            lambda field: field.addPairwiseBilateral(3, 3, np.zeros((WIDTH, HEIGHT, 3), np.uint8), 3),
        ),
        "features of other points": (InputError, lambda field: field.addPairwiseEnergy(features[:, :5].copy(), 3)),
        "steps NaN": (InputError, lambda field: field.inference(np.nan)),
        "steps None": (TypeError, lambda field: field.inference(None)),
        "step of an array": (TypeError, lambda field: field.stepInference(unary, eigen.MatrixXf(), eigen.MatrixXf())),
        "step of another shape": (
            InputError,
            lambda field: field.stepInference(eigen.MatrixXf(), eigen.MatrixXf(), eigen.MatrixXf()),
        ),
        "step from NaN": (
            InputError,
            lambda field: field.klDivergence(eigen.matrixXf(np.full((3, PIXELS), np.nan, np.float32))),
        ),
        **bad_unaries(),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_rejected_calls_change_nothing(name: str) -> None:
    error, call = bad_calls()[name]
    field = simple_field()
    before = np.array(field.inference(2))
    with pytest.raises(error):
        call(field)
    np.testing.assert_array_equal(field.inference(2), before)


def test_rejects_sums_that_overflow() -> None:
    field = simple_field()
    for _ in range(2):
        field.addPairwiseGaussian(100, 3e38, normalization=dcrf.NO_NORMALIZATION)
    with ph.backends.use("reference"), pytest.raises(InputError, match="scale"):
        field.inference(3)
