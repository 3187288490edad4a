"""The row whose filter is trained, one for each factor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from permutohedral.data.bsds500 import load_colors
from permutohedral.experiments.batches import StepNumbers
from permutohedral.experiments.checkpoints import checkpoint_folder
from permutohedral.experiments.result import read_weights, write_weights
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings, fit, steps_done
from permutohedral.experiments.upsampling.methods import Upsample
from permutohedral.models.color_upsampling import ColorUpsampler

# of the train pictures of BSDS500
_TRAIN_PICTURES = 80
# coarse samples along an axis of a crop, whose size is at least so many pixels
_COARSE, _LEAST_CROP = 12, 64


@dataclass(frozen=True)
class Crops:
    """Random parts of pictures, drawn by the number of a step.

    Attributes:
        pictures: `[3, height, width]` each.
        factor: one pixel of so many along each axis keeps its color.
        number: in a batch.
        seed: of the choice.
    """

    pictures: Sequence[Tensor]
    factor: int
    number: int
    seed: int

    def draw(self, step: int) -> Tensor:
        """`[number, 3, size, size]`."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        size = max(_COARSE * self.factor, _LEAST_CROP)
        crops = []
        for _ in range(self.number):
            picture = self.pictures[int(torch.randint(len(self.pictures), (), generator=generator))]
            top, left = (int(torch.randint(extent - size + 1, (), generator=generator)) for extent in picture.shape[1:])
            crops.append(picture[:, top : top + size, left : left + size])
        return torch.stack(crops)


class ColorTask(Task):
    """Makes the mean PSNR of crops large."""

    def __init__(self, model: ColorUpsampler, settings: TrainingSettings, crops: Crops) -> None:
        super().__init__(model, settings)
        self.crops = crops

    def training_step(self, step: int) -> Tensor:
        """The loss of one batch."""
        rgb = self.crops.draw(int(step)).to(self.device)
        found: Tensor = self.model(rgb[..., :: self.crops.factor, :: self.crops.factor], rgb.mean(dim=1, keepdim=True))
        # of a crop that is next to perfect no more is asked
        return ((found - rgb).square().mean(dim=(1, 2, 3)) + 1e-5).log().mean()


def train(config: Any, factor: int, settings: Mapping[str, Any], options: RunOptions) -> tuple[Upsample, float] | None:
    """The trained filter of a factor, and the seconds it took; None in all but the first of several processes."""
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    started = time.perf_counter()
    pictures = list(load_colors("train", options.data, config.pictures or _TRAIN_PICTURES).values())
    model = ColorUpsampler(**settings)
    crops = Crops(pictures, factor, config.training.batch_size, config.seed)
    checkpoints = checkpoint_folder(config, options.output, f"{config.name}_{factor}")
    numbers = StepNumbers(config.training.steps, first=steps_done(options, checkpoints))
    task = ColorTask(model, config.training, crops)
    if not fit(task, DataLoader(numbers, batch_size=None), options, checkpoints):
        return None
    model = model.to("cpu").eval()
    write_weights(_weights_path(options.output, config.name, factor), model)
    return by_model(model), time.perf_counter() - started


def by_model(model: ColorUpsampler) -> Upsample:
    """A trained filter as a method, whatever the settings."""

    def run(coarse: Tensor, guide: Tensor, factor: float, settings: Mapping[str, Any]) -> Tensor:
        found: Tensor = model(coarse, guide)
        return found

    return run


def read_models(folder: Path, name: str, chosen: Mapping[int, Mapping[str, Any]]) -> dict[int, ColorUpsampler]:
    """The trained filters of a row by factor, with the settings that were chosen for them."""
    models = {}
    for factor, settings in chosen.items():
        models[factor] = ColorUpsampler(**settings)
        models[factor].load_state_dict(read_weights(_weights_path(folder, name, factor)))
    return models


def _weights_path(folder: Path, name: str, factor: int) -> Path:
    return folder / f"{name}_{factor}.safetensors"
