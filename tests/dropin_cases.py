"""Seeded calls that other libraries and the drop-ins both answer. Imports nothing of the package.

They were run once with the originals, which wrote the tables in `dropins/`; the script, tools/record_drop_ins.py, is in
the history. `pydensecrf_cases.py` has smaller fields, with all kinds of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 30, 40


def photo(height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> NDArray[np.uint8]:
    """Return regions of smooth color, with noise, `(height, width, 3)`."""
    random = np.random.default_rng(seed)
    y, x = np.indices((height, width)) / max(height, width)
    waves = [np.sin(random.uniform(3, 9) * x + random.uniform(3, 9) * y + phase) for phase in range(3)]
    smooth = 128 + 60 * np.stack(waves, axis=-1) + 50 * ((x - 0.5) ** 2 + (y - 0.4) ** 2 < 0.06)[..., None]
    image: NDArray[np.uint8] = (smooth + random.normal(0, 4, smooth.shape)).clip(0, 255).astype(np.uint8)
    return image


def scores(labels: int, space: tuple[int, ...] = (HEIGHT, WIDTH), seed: int = 1) -> NDArray[np.float64]:
    """Return probabilities of labels, smooth with noise, `(labels, *space)`."""
    random = np.random.default_rng(seed)
    places = np.indices(space) / max(space)
    energies = [
        sum(np.sin(random.uniform(2, 8) * place + random.uniform(0, 6)) for place in places) for _ in range(labels)
    ]
    exponentials = np.exp(1.5 * np.stack(energies) + random.normal(0, 0.7, (labels, *space)))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=0)
    return probabilities


def _field(
    dcrf: Any, image: NDArray[np.uint8], unary: NDArray[np.float32], gaussian: Any, bilateral: Any, **options: Any
) -> Any:
    """Make the field of two kernels, each given by its bandwidths and its compatibility."""
    field = dcrf.DenseCRF2D(image.shape[1], image.shape[0], len(unary))
    field.setUnaryEnergy(np.ascontiguousarray(unary))
    field.addPairwiseGaussian(sxy=gaussian[0], compat=gaussian[1], **options)
    field.addPairwiseBilateral(
        sxy=bilateral[0], srgb=bilateral[1], rgbim=np.ascontiguousarray(np.copy(image)), compat=bilateral[2], **options
    )
    return field


class Library(NamedTuple):
    """The modules `densecrf` and `utils` of pydensecrf or its drop-in."""

    dcrf: Any
    utils: Any


def _from_softmax(
    gaussian: Any, bilateral: Any, labels: int = 3, steps: int = 10, dtype: Any = np.float32
) -> Callable[..., Any]:
    def solve(library: Library, image: NDArray[np.uint8]) -> Any:
        probabilities = scores(labels, image.shape[:2]).astype(dtype)
        unary = library.utils.unary_from_softmax(probabilities)
        return _field(library.dcrf, image, unary, gaussian, bilateral).inference(steps)

    return solve


def _irn(library: Library, image: NDArray[np.uint8]) -> Any:
    labels = scores(3, image.shape[:2]).argmax(axis=0)
    unary = library.utils.unary_from_labels(labels, 3, gt_prob=0.7, zero_unsure=False)
    return _field(library.dcrf, image, unary, (3, 3), (50, 5, 10)).inference(10)


def _cutler(library: Library, image: NDArray[np.uint8]) -> Any:
    mask = scores(2, image.shape[:2])[1].astype(np.float32)
    unary = library.utils.unary_from_softmax(np.stack([1 - mask, mask]))
    return _field(library.dcrf, image, unary, (3, 7), (50, 5, 10)).inference(10)


def _manga(library: Library, image: NDArray[np.uint8]) -> Any:
    assert library.utils.compute_unary is not None
    mask = (255 * scores(2, image.shape[:2])[1]).astype(np.uint8)
    both = np.concatenate([(255 - mask)[:, :, None], mask[:, :, None]], axis=2).astype(np.float32) / 255.0
    unary = library.utils.unary_from_softmax(both.transpose((2, 0, 1)).reshape((2, -1)))
    options = {"kernel": library.dcrf.DIAG_KERNEL, "normalization": library.dcrf.NO_NORMALIZATION}
    return _field(library.dcrf, image, unary, (1, 3), (23, 7, 20), **options).inference(5)


def _volume(library: Library, image: NDArray[np.uint8]) -> Any:
    space = (6, 12, 14)
    volume = np.random.default_rng(2).uniform(0, 255, (1, *space)).astype(np.float32)
    unary = library.utils.unary_from_softmax(scores(2, space))
    field = library.dcrf.DenseCRF(unary.shape[1], 2)
    field.setUnaryEnergy(unary)
    costs = (1 - np.eye(2)).astype(np.float32)
    features = library.utils.create_pairwise_gaussian(sdims=(1.0, 1.0, 1.0), shape=space)
    field.addPairwiseEnergy(features, compat=2 * costs, kernel=library.dcrf.DIAG_KERNEL)
    features = library.utils.create_pairwise_bilateral(sdims=(5, 5, 5), schan=(30.0,), img=volume, chdim=-1)
    field.addPairwiseEnergy(features, compat=5 * costs, kernel=library.dcrf.DIAG_KERNEL)
    return field.inference(5)


# programs that call pydensecrf, and how
FIELDS: dict[str, Callable[[Library, NDArray[np.uint8]], Any]] = {
    "IRN, AMN, ReCAM": _irn,
    "SEAM, PSA": _from_softmax((3, 3), (80, 13, 10), dtype=np.float64),
    "PSA, scale 12": _from_softmax((3 / 12, 3), (80 / 12, 13, 10), dtype=np.float64),
    "AFA, WeCLIP, one step": _from_softmax((3, 3), (80, 13, 10), steps=1),
    "deeplab-pytorch, CLIP-ES, STEGO": _from_softmax((1, 3), (67, 3, 4)),
    "AFA, WeCLIP, test": _from_softmax((3, 3), (64, 5, 4)),
    "ToCo": _from_softmax((3, 3), (36, 3, 4)),
    "ToCo, COCO": _from_softmax((1, 1), (121, 5, 4)),
    "CutLER": _cutler,
    "manga-image-translator": _manga,
    "CellSeg3D": _volume,
}


class Planes(NamedTuple):
    """Arguments of `bilateralfilter_batch`."""

    num_images: int
    classes: int
    height: int
    width: int
    sigma_rgb: float
    sigma_xy: float

    def buffers(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return flat images and probabilities."""
        images = [photo(self.height, self.width, seed).transpose(2, 0, 1) for seed in range(self.num_images)]
        planes = [scores(self.classes, (self.height, self.width), seed) for seed in range(self.num_images)]
        return np.stack(images).astype(np.float32).flatten(), np.stack(planes).astype(np.float32).flatten()


# ToCo and AFA scale images by 0.5, and with them sigma_xy = 100
PLANES = {
    "AFA, ToCo": Planes(2, 3, 24, 32, 15.0, 50.0),
    "rloss": Planes(1, 4, 20, 28, 15.0, 40.0),
    "narrow": Planes(1, 2, 17, 28, 5.0, 3.0),
}


# bandwidths over space, brightness and color of `bilateral_solver_output`
SOLVES = {"TokenCut": (24, 4, 4), "FOUND": (16, 16, 8)}


def mask() -> NDArray[np.float64]:
    """Return the target of the solver: a rectangle with a hole, and noise."""
    target = np.zeros((HEIGHT, WIDTH))
    target[8:22, 10:30] = 1
    target[14:16, 18:20] = 0
    return np.where(np.random.default_rng(3).random(target.shape) < 0.05, 1 - target, target)


def _maps(*shape: int, seed: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(shape).astype(np.float32)


# arguments of MONAI's functions; arrays are tensors there
FILTERS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "lattice 1-D": ("BilateralFilter", (_maps(2, 1, 30), 2.0, 0.4, True)),
    "lattice 2-D": ("BilateralFilter", (_maps(2, 3, 9, 12), 3.0, 0.5, True)),
    "lattice 3-D": ("BilateralFilter", (_maps(1, 1, 5, 6, 7), 2.0, 0.3, True)),
    # many pixels lie on facets of the lattice
    "lattice of equal colors": ("BilateralFilter", (_maps(1, 2, 9, 12).round(), 4.0, 0.5, True)),
    "window 1-D": ("BilateralFilter", (_maps(2, 1, 30), 2.0, 0.4, False)),
    "window 2-D": ("BilateralFilter", (_maps(2, 3, 9, 12), 1.5, 0.5, False)),
    "window 3-D": ("BilateralFilter", (_maps(1, 1, 5, 6, 7), 1.0, 0.3, False)),
    "features": ("PHLFilter", (_maps(2, 3, 9, 12), _maps(2, 4, 9, 12, seed=5), (0.2, 0.3, 0.4, 0.5, 9.0))),
    "trainable 1-D": ("TrainableBilateralFilter", (_maps(2, 1, 30), (1.5,), 0.4)),
    "trainable 2-D": ("TrainableBilateralFilter", (_maps(2, 1, 9, 12), (1.5, 0.7), 0.4)),
    "trainable 3-D": ("TrainableBilateralFilter", (_maps(1, 1, 5, 6, 7), (1.5, 0.7, 1.0), 0.4)),
    "joint 2-D": ("TrainableJointBilateralFilter", (_maps(2, 1, 9, 12), _maps(2, 1, 9, 12, seed=5), (1.5, 0.7), 0.4)),
    "CRF": ("CRF", (_maps(1, 3, 9, 12), _maps(1, 2, 9, 12, seed=5), (4, 1.0, 0.3, 5.0, 0.5, 5.0, 2.0))),
}
