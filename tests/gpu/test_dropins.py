"""Drop-ins on a GPU, compared with the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from dropin_cases import PLANES, SOLVES, mask, photo
from pydensecrf_cases import CASES, Case, solve
from support import INTERPRETED

from permutohedral.compat.bilateral_solver import bilateral_solver_output
from permutohedral.compat.bilateralfilter import bilateralfilter_batch
from permutohedral.compat.pydensecrf import densecrf

pytestmark = pytest.mark.skipif(INTERPRETED, reason="tests/interpreted/test_mean_field.py has the drop-in")


def on_gpu(width: int, height: int, labels: int) -> densecrf.DenseCRF2D:
    return densecrf.DenseCRF2D(width, height, labels, device="cuda")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_cpu(case: Case) -> None:
    expected, found = (
        solve(module, case) for module in (densecrf, SimpleNamespace(**vars(densecrf) | {"DenseCRF2D": on_gpu}))
    )
    for name in expected:
        assert isinstance(found[name], np.ndarray)
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_field_of_points() -> None:
    random = np.random.default_rng(0)
    unary, features = random.uniform(0, 3, (4, 300)).astype(np.float32), random.normal(size=(3, 300)) * 2
    answers = []
    for device in ("cpu", "cuda"):
        field = densecrf.DenseCRF(300, 4, device=device)
        field.setUnaryEnergy(unary)
        field.addPairwiseEnergy(features.astype(np.float32), compat=3)
        answers.append(np.array(field.inference(5)))
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PLANES)
def test_bilateralfilter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, ins = PLANES[name].buffers()
    answers = []
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("PERMUTOHEDRAL_DEVICE", device)
        answers.append(np.zeros_like(ins))
        bilateralfilter_batch(images, ins, answers[-1], *PLANES[name])
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-3)


def test_bilateral_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("PERMUTOHEDRAL_DEVICE", device)
        answers.append(bilateral_solver_output(None, mask(), *SOLVES["TokenCut"], img=photo()))
    np.testing.assert_allclose(answers[1][0], answers[0][0], rtol=1e-6)
    np.testing.assert_array_equal(answers[1][1], answers[0][1])
