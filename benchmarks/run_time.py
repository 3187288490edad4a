"""Section 3 of the paper: run time of permutohedral layers next to spatial convolutions.

Each workload is one number of channels. Its contenders, layers and `Conv2d`, run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import permutohedral as ph
from benchmarks.inputs import Inputs, color_photo
from benchmarks.registry import Contender, Prepared, Workload

CHANNELS = (1, 4, 16, 32, 64)
CONVOLUTIONS = ("Conv2d 5 x 5", "Conv2d 5 x 5, channels-last")
# bandwidths in pixels and in gray values, None for position alone, and noise of the guide
FEATURES = {
    "position, 1 pixel": (1.0, None, 0.0),
    "position and gray of a photo, 8 pixels / 0.2": (8.0, 0.2, 0.0),
    "position and gray with noise of 25/255, 1 pixel / 0.4": (1.0, 0.4, 25 / 255),
}


def prepare(inputs: Inputs, channels: int, training: bool) -> Prepared:
    """Run layers with as many outputs as inputs on an image of 481 x 321 pixels.

    Layers whose lattice is built take and return images. Those whose lattice is reused take points, as in a network
    of layers that share it.
    """
    torch.manual_seed(0)
    gray = color_photo(inputs).mean(dim=0)[None, None]
    space = gray.shape[-2:]
    # other values in every call
    images = [torch.randn(1, channels, *space).to(inputs.device) for _ in range(3)]
    points = [image[0].flatten(1).mT.contiguous() for image in images]
    by_channels = [image.contiguous(memory_format=torch.channels_last) for image in images]
    for leaf in (*images, *points, *by_channels):
        leaf.requires_grad_(training)

    def contender(
        name: str, module: nn.Module, leaves: list[Tensor], call: Callable[[Tensor, int], Tensor]
    ) -> Contender:
        parameters, gradient = list(module.parameters()), torch.ones_like(leaves[0])

        def run(number: int) -> Any:
            leaf = leaves[number % 3]
            with torch.set_grad_enabled(training):
                output = call(leaf, number)
            return torch.autograd.grad(output, [leaf, *parameters], gradient) if training else output

        return Contender(name, run)

    def of_image(layer: nn.Module, guides: list[Tensor] | None, image: Tensor, number: int) -> Any:
        return layer(image) if guides is None else layer(image, guides[number % 3])

    def of_points(layer: nn.Module, lattice: ph.Lattice, values: Tensor, number: int) -> Any:
        return layer(values, lattice)

    contenders = []
    for features, (sigma_space, sigma_color, noise) in FEATURES.items():
        guide = (gray + noise * torch.randn(gray.shape)).to(inputs.device)
        guides = [guide, guide.flip(2), guide.flip(3)] if sigma_color else None
        seen = guide[0] if sigma_color else guide[0, :0]
        places = ph.features.bilateral(seen, sigma_space=sigma_space, sigma_color=sigma_color or 1.0)
        for reach in (1, 2):
            layer = ph.nn.BilateralConv2d(
                channels,
                channels,
                guide_channels=0 if guides is None else 1,
                neighborhood_size=reach,
                sigma_space=sigma_space,
                sigma_color=sigma_color,
                normalization="none",
                device=inputs.device,
            )
            lattice = ph.build_lattice(places, neighborhood_size=reach)
            title, points_layer = f"{features}, s = {reach}", layer.convolution
            contenders += [
                contender(f"{title}, lattice built", layer, images, partial(of_image, layer, guides)),
                contender(f"{title}, lattice reused", points_layer, points, partial(of_points, points_layer, lattice)),
            ]
    for name, leaves in zip(CONVOLUTIONS, (images, by_channels), strict=True):
        convolution = nn.Conv2d(channels, channels, 5, padding=2, device=inputs.device)
        if leaves is by_channels:
            # a layout, which torch's annotations of Module.to do not know
            convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        contenders.append(contender(name, convolution, leaves, partial(of_image, convolution, None)))
    return Prepared(contenders[0], contenders[1:], inputs.photo[1], num_inputs=3)


WORKLOADS = tuple(
    Workload(
        f"run-time-{channels}-{name}",
        f"{channels} to {channels} channels, 481 x 321 image, {text}",
        "any",
        "run-time",
        partial(prepare, channels=channels, training=name == "training"),
        optional=True,
    )
    for name, text in (("forward", "forward"), ("training", "forward and backward"))
    for channels in CHANNELS
)
