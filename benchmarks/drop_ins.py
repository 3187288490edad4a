"""Workloads of the loss of weakly supervised segmentation, next to rloss's C++ filter.

RLOSS names a checkout of meng-tang/rloss, whose filter is compiled with g++.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import permutohedral as ph
from benchmarks.inputs import Inputs, synthetic_image
from benchmarks.registry import OURS, Absent, Contender, Prepared, Workload
from permutohedral.compat.bilateralfilter import bilateralfilter_batch

RLOSS = "rloss"
BATCH, CLASSES, HEIGHT, WIDTH = SHAPE = (8, 21, 224, 224)
SIGMA_COLOR, SIGMA_SPACE = 15.0, 50.0
_VARIANTS = 4

_INTERFACE = """
#include "bilateralfilter.hpp"
extern "C" void run(float* images, float* ins, float* outs, int N, int K, int H, int W, float rgb, float xy) {
    bilateralfilter_batch(images, N * 3 * H * W, ins, N * K * H * W, outs, N * K * H * W, N, K, H, W, rgb, xy);
}
"""


def build_rloss(checkout: str) -> Callable[..., None]:
    """Compile rloss's filter without SWIG, and return its `bilateralfilter_batch`."""
    source = Path(checkout) / "pytorch" / "wrapper" / "bilateralfilter"
    with tempfile.TemporaryDirectory() as folder:
        interface, library = Path(folder, "interface.cpp"), Path(folder, "library.so")
        interface.write_text(_INTERFACE)
        files = [interface, source / "bilateralfilter.cpp", source / "permutohedral.cpp"]
        flags = ["-O3", "-shared", "-fPIC", "-fopenmp", "-w", f"-I{source}"]
        command: list[str | Path] = ["g++", *flags, "-o", library, *files]
        subprocess.run(command, check=True)
        function = ctypes.CDLL(str(library)).run
    buffer = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    function.argtypes, function.restype = [buffer] * 3 + [ctypes.c_int] * 4 + [ctypes.c_float] * 2, None
    return function


def _draw(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images `[8, 3, 224, 224]`, 0 to 255, and probabilities `[8, 21, 224, 224]`."""
    photo = synthetic_image(HEIGHT, WIDTH).roll(50 * seed, dims=-2)
    photos = torch.stack([photo.roll(16 * number, dims=-1) for number in range(BATCH)])
    generator = torch.Generator().manual_seed(seed)
    return 255 * photos, torch.randn(SHAPE, generator=generator).softmax(dim=1)


def _prepare_filter(inputs: Inputs) -> Prepared:
    images, ins = (each.flatten().numpy() for each in _draw())
    outs = np.zeros_like(ins)
    arguments = (images, ins, outs, *SHAPE, SIGMA_COLOR, SIGMA_SPACE)
    theirs: Contender | Absent = Absent(RLOSS, "set RLOSS to a checkout of meng-tang/rloss")
    if checkout := os.environ.get("RLOSS"):
        run = build_rloss(checkout)
        theirs = Contender(RLOSS, lambda _: run(*arguments), note="an image for each thread")
    return Prepared(Contender(OURS, lambda _: bilateralfilter_batch(*arguments)), [theirs])


def _prepare_loss(inputs: Inputs) -> Prepared:
    given = [tuple(each.to(inputs.device) for each in _draw(seed)) for seed in range(_VARIANTS)]
    layer = ph.nn.DenseEnergyLoss(sigma_space=2 * SIGMA_SPACE, sigma_color=SIGMA_COLOR, weight=1e-7, scale_factor=0.5)

    def run(number: int) -> None:
        images, probabilities = given[number % _VARIANTS]
        layer(images, probabilities.detach().requires_grad_()).backward()

    return Prepared(Contender(OURS, run), num_inputs=_VARIANTS)


_SIZE = "8 images of 224 x 224, 21 classes"
WORKLOADS = (
    Workload("bilateralfilter", f"bilateralfilter_batch, {_SIZE}", "cpu", _prepare_filter),
    Workload("energy-loss", f"DenseEnergyLoss and gradient, {_SIZE}", "any", _prepare_loss),
)
