"""Workloads of layers: the permutohedral convolution of an image beside torch's convolution of the same image."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.benchmarks import verify
from permutohedral.benchmarks.inputs import Inputs
from permutohedral.benchmarks.registry import OURS, Prepared
from permutohedral.benchmarks.timing import Absent, Contender
from permutohedral.features import position_features
from permutohedral.lattice import build_lattice
from permutohedral.nn import PermutohedralConvolution
from permutohedral.reporting.quality import relative_error

CHANNELS, HEIGHT, WIDTH = 32, 321, 481

# dtype of the values, and whether products of float32 may be rounded to TF32
PRECISIONS = {
    "fp32": (torch.float32, False),
    "TF32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
}


@contextmanager
def precision(name: str) -> Iterator[torch.dtype]:
    """The dtype of a precision of `PRECISIONS`, with torch's switches for TF32 set as it says."""
    dtype, rounded = PRECISIONS[name]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    try:
        yield dtype
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def prepare_image_layer(
    inputs: Inputs, training: bool, batch: int = 1, precision_name: str = "fp32", reused: bool = True
) -> Prepared:
    """A layer of 32 to 32 channels with 19 taps over images of 481 x 321 pixels, beside Conv2d 5 x 5."""
    dtype = PRECISIONS[precision_name][0]
    options: dict[str, Any] = {"device": inputs.device, "dtype": dtype}
    torch.manual_seed(0)
    images = torch.randn(batch, CHANNELS, HEIGHT, WIDTH).to(**options)
    layer = PermutohedralConvolution(CHANNELS, CHANNELS, 2, 2, normalization="none", **options)
    convolutions = [nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, **options) for _ in range(2)]
    # a layout, which torch's annotations of Module.to do not know
    convolutions[1].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    features = position_features(HEIGHT, WIDTH, device=inputs.device).expand(batch, -1, -1).contiguous()
    lattice = build_lattice(features, neighborhood_size=2)
    exact = verify.in_precision(lattice, torch.float64)

    def permutohedral(module: nn.Module, values: Tensor) -> Any:
        if values.dtype is torch.float64:
            return module(values, lattice=exact)
        return module(values, lattice=lattice) if reused else module(values, features)

    make = partial(_contender, training=training, precision_name=precision_name)
    values = images.flatten(2).transpose(1, 2).contiguous()
    by_channels = images.contiguous(memory_format=torch.channels_last)
    others: list[Contender | Absent] = [
        make("Conv2d 5x5", convolutions[0], images, lambda module, given: module(given)),
        make("Conv2d 5x5 channels-last", convolutions[1], by_channels, lambda module, given: module(given)),
    ]
    facts: dict[str, float] = {
        "points": batch * HEIGHT * WIDTH,
        "dimension": 2,
        "channels": CHANNELS,
        "filter_size": 19,
    }
    facts["lattice_points"] = lattice.num_lattice_points

    def check() -> dict[str, float]:
        with precision(precision_name):
            # off the faces of the simplices
            small = position_features(24, 32, device=inputs.device) * 1.01 + 0.123
            return verify.check_convolution(small, CHANNELS, 2, dtype)

    ours = make(OURS, layer, values, permutohedral)
    return Prepared(ours, others, check, "seeded random channels", facts, "the same operation in float64")


def _contender(
    name: str,
    module: nn.Module,
    given: Tensor,
    call: Callable[[nn.Module, Tensor], Any],
    training: bool,
    precision_name: str,
) -> Contender:
    given = given.detach().requires_grad_(training)
    leaves = [given, *module.parameters()]
    gradient = torch.ones_like(call(module, given))

    def run() -> Any:
        # the switches for TF32 mean nothing on the CPU
        with precision(precision_name) if given.is_cuda else nullcontext():
            if training:
                return torch.autograd.grad(call(module, given), leaves, gradient)
            with torch.no_grad():
                return call(module, given)

    def error(output: Tensor) -> float:
        with torch.no_grad():
            truth = call(copy.deepcopy(module).double(), given.double())
        return relative_error(output, truth)

    version = None if name == OURS else str(torch.__version__)
    return Contender(name, run, error=None if training else error, version=version)


def prepare_small_step(inputs: Inputs, own_thread: bool = True) -> Prepared:
    """Forward and backward through a layer of 1 to 20 channels on 64 images of 784 points, the lattice included.

    torch runs the backward pass of a GPU in a thread of its own; without `own_thread`, in the calling thread.
    """
    generator = torch.Generator().manual_seed(0)
    features = (28 * torch.rand(64, 784, 2, generator=generator)).to(inputs.device)
    values = torch.rand(64, 784, 1, generator=generator).to(inputs.device)
    targets = (position_features(24, 24, device=inputs.device) + 2).expand(64, -1, -1).contiguous()
    layer = PermutohedralConvolution(1, 20, 2, 2, device=inputs.device)
    gradient = torch.ones_like(layer(values, features, targets))

    def run() -> Any:
        with torch.autograd.set_multithreading_enabled(own_thread):
            return torch.autograd.grad(layer(values, features, targets), list(layer.parameters()), gradient)

    def error(gradients: Any) -> float:
        exact = copy.deepcopy(layer).double()
        output = exact(values.double(), features.double(), targets.double())
        truth = torch.autograd.grad(output, list(exact.parameters()), gradient.double())
        return max(map(relative_error, gradients, truth))

    check = partial(verify.check_convolution, features[0], 1, 2)
    facts: dict[str, float] = {"points": 64 * 784, "target_points": 64 * 576, "dimension": 2, "filter_size": 19}
    truth = "the same gradients in float64"
    return Prepared(Contender(OURS, run, error=error), [], check, "seeded positions", facts, truth)
