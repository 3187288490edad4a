"""Rows with a trained filter, one for each factor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.data.bsds500 import load_colors
from experiments.results import weights_path, write_weights
from experiments.training import RunOptions, checkpoint_folder, fit, seed_everything
from experiments.upsampling.methods import ColorUpsampler, Upsample

# of the train images of BSDS500
_TRAIN_PICTURES = 80
# coarse samples along an axis of a crop, and its least size in pixels
_COARSE, _LEAST_CROP = 12, 64


@dataclass(frozen=True)
class Crops:
    """Draw random parts of images; those of a step are always the same.

    Attributes:
        pictures: `[3, height, width]` each.
        factor: one pixel of `factor` along each axis keeps its color.
        number: of crops in a batch.
        seed: of the choice.
    """

    pictures: Sequence[Tensor]
    factor: int
    number: int
    seed: int

    def draw(self, step: int) -> Tensor:
        """Return the crops of a step, `[number, 3, size, size]`."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        size = max(_COARSE * self.factor, _LEAST_CROP)
        crops = []
        for _ in range(self.number):
            picture = self.pictures[int(torch.randint(len(self.pictures), (), generator=generator))]
            top, left = (int(torch.randint(extent - size + 1, (), generator=generator)) for extent in picture.shape[1:])
            crops.append(picture[:, top : top + size, left : left + size])
        return torch.stack(crops)


def train(config: Any, factor: int, settings: Mapping[str, Any], options: RunOptions) -> tuple[Upsample, float]:
    """Train the filter of a factor; return it and the seconds taken."""
    seed_everything(config.seed)
    started = time.perf_counter()
    pictures = list(load_colors("train", options.data, config.pictures or _TRAIN_PICTURES).values())
    model = ColorUpsampler(**settings).to(options.device)
    crops = Crops(pictures, factor, config.training.batch_size, config.seed)

    def loss(step: int) -> Tensor:
        rgb = crops.draw(step).to(options.device)
        found: Tensor = model(rgb[..., ::factor, ::factor], rgb.mean(dim=1, keepdim=True))
        # the constant keeps crops that are almost perfect from dominating
        return ((found - rgb).square().mean(dim=(1, 2, 3)) + 1e-5).log().mean()

    fit(model, loss, config.training, options, checkpoint_folder(config, options, f"-{factor}"))
    model = model.to("cpu").eval()
    write_weights(weights_path(config, options.output, f"-{factor}"), model)
    return lambda coarse, guide, _factor, _settings: model(coarse, guide), time.perf_counter() - started
