"""Seeded fields that pydensecrf and the drop-in both solve. Imports nothing of the package.

They were run once with pydensecrf2 1.1, which wrote `dropins/pydensecrf.npz`.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT, LABELS, STEPS = 7, 5, 3, 4

NORMALIZATIONS = ("NO_NORMALIZATION", "NORMALIZE_BEFORE", "NORMALIZE_AFTER", "NORMALIZE_SYMMETRIC")
COMPATS: dict[str, Any] = {
    "number": 2.0,
    "vector": np.array([-2.0, -0.5, 1.0], np.float32),
    "matrix": np.array([[-1.0, 2.0, 0.5], [0.0, 0.3, 1.0], [1.5, 1.0, -2.0]], np.float32),
}
KERNELS = ("gaussian", "bilateral", "generic", "all")


class Case(NamedTuple):
    kernel: str
    normalization: str
    compat: str

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.normalization}/{self.compat}"


CASES = [Case(*names) for names in itertools.product(KERNELS, NORMALIZATIONS, COMPATS)]


def inputs() -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32]]:
    """Unary energies, a picture, and features of three axes."""
    random = np.random.default_rng(20)
    unary = random.uniform(0, 3, (LABELS, WIDTH * HEIGHT)).astype(np.float32)
    smooth = np.add.outer(np.arange(HEIGHT) * 20, np.arange(WIDTH) * 12)[..., None] + random.integers(
        0, 60, (HEIGHT, WIDTH, 3)
    )
    features = random.normal(size=(3, WIDTH * HEIGHT)).astype(np.float32)
    return unary, smooth.astype(np.uint8), features


def make_field(dcrf: Any, case: Case) -> Any:
    """The field of a case, of the module `densecrf` of either library."""
    unary, picture, features = inputs()
    field = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
    field.setUnaryEnergy(unary)
    options = {"compat": COMPATS[case.compat], "normalization": getattr(dcrf, case.normalization)}
    if case.kernel in ("gaussian", "all"):
        field.addPairwiseGaussian(sxy=(2, 1.5), kernel=dcrf.FULL_KERNEL, **options)
    if case.kernel in ("bilateral", "all"):
        field.addPairwiseBilateral(sxy=4, srgb=(20, 30, 40), rgbim=picture, **options)
    if case.kernel in ("generic", "all"):
        field.addPairwiseEnergy(features, kernel=dcrf.CONST_KERNEL, **options)
    return field


def solve(dcrf: Any, case: Case) -> dict[str, NDArray[Any]]:
    """Marginals, and what pydensecrf calls their divergence after two steps."""
    field = make_field(dcrf, case)
    marginals = np.array(field.inference(STEPS))
    current, first, second = field.startInference()
    for _ in range(2):
        field.stepInference(current, first, second)
    return {"marginals": marginals, "divergence": np.array(field.klDivergence(current))}
