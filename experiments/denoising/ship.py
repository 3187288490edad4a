"""Make the weights of `ph.apps.Denoiser`: `python -m experiments.denoising.ship FOLDER OUTPUT`.

The network for noise of 25 is a row of the experiment. It is trained further for weaker noise, which takes two minutes
per level on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from experiments.denoising.deep import EXPERIMENTS, build_model, train
from experiments.results import read_weights, weights_path
from experiments.training import RunOptions, TrainingSettings
from permutohedral.apps import Denoiser
from permutohedral.apps.models.network import DeepDenoiser

ROW = "deep_small"
WEAKER = (5.0, 11.0)
# training for weaker noise starts from the network of the row
TUNING = TrainingSettings(
    steps=300, batch_size=6, optimizer="adam", learning_rate=0.001, weight_decay=0.0, schedule="cosine", warmup=20,
    gradient_clip=1.0,
)  # fmt: skip


def tune(
    network: DeepDenoiser, noise: float, options: RunOptions, settings: TrainingSettings = TUNING, crop: int = 96
) -> DeepDenoiser:
    """Return the network of the row, trained further for weaker noise; white is 255."""
    [config] = EXPERIMENTS["deep_denoising"].choose_rows([ROW])
    tuned = deepcopy(network)
    with torch.no_grad():
        # the same network of scaled images
        tuned.head.weight *= config.noise / noise
        tuned.tail.weight *= noise / config.noise
    train(tuned, replace(config, training=settings, noise=noise, crop=crop, captured_rows=None), options)
    return tuned.eval()


def assemble(folder: Path, noises: Sequence[float], options: RunOptions, **tuning: int | TrainingSettings) -> Denoiser:
    """Return the denoiser of the row in an output folder of the experiment, and of its tuned copies."""
    [config] = EXPERIMENTS["deep_denoising"].choose_rows([ROW])
    network = build_model(config)
    network.load_state_dict(read_weights(weights_path(config, folder)))
    denoiser = Denoiser([*noises, config.noise], **config.options)
    networks = [*(tune(network, noise, options, **tuning) for noise in noises), network]  # type: ignore[arg-type]
    for place, trained in zip(denoiser.networks, networks, strict=True):
        place.load_state_dict(trained.state_dict())
    return denoiser


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Train the denoisers that come with the package.")
    parser.add_argument("folder", type=Path, help="output folder of the experiment deep_denoising")
    parser.add_argument("output", type=Path, help="the file of weights to write")
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        denoiser = assemble(arguments.folder, WEAKER, RunOptions(Path(scratch), arguments.data, "cpu"))
    denoiser.save(arguments.output)


if __name__ == "__main__":
    main()
