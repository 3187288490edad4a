"""What rows with a network of their own have in common: it is trained by numbered steps, its weights are kept, it is
evaluated, and the figures are told."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as lightning
from torch import nn
from torch.utils.data import DataLoader

from permutohedral.experiments.batches import StepNumbers
from permutohedral.experiments.checkpoints import checkpoint_folder
from permutohedral.experiments.result import Result, make_result, read_weights, weights_path, write_weights
from permutohedral.experiments.training import RunOptions, Task, fit, steps_done

Model = TypeVar("Model", bound=nn.Module)


def run_row(
    experiment: str,
    config: Any,
    options: RunOptions,
    build: Callable[[], Model],
    task: Callable[[Model], Task],
    evaluate: Callable[[Model], dict[str, Any]],
    trained_as: Any = None,
) -> Result | None:
    """Train and evaluate one row.

    Args:
        experiment: its name.
        config: of the row, with `name`, `seed` and `training`.
        options: where to compute and write.
        build: makes the model; weights are drawn from the seed.
        task: trains a model; its steps take the number of a batch.
        evaluate: the figures of a trained model, which is on the device.
        trained_as: the configuration whose checkpoints serve, if not all of `config` matters to the training.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    model = build().to(options.device)
    started = time.perf_counter()
    checkpoints = checkpoint_folder(trained_as or config, options.output, f"{config.name}-{config.seed}")
    numbers = StepNumbers(config.training.steps, first=steps_done(options, checkpoints))
    # the batches are made in the training step, on the device
    if not fit(task(model), DataLoader(numbers, batch_size=None), options, checkpoints):
        return None
    seconds = {"training": time.perf_counter() - started}
    started = time.perf_counter()
    model = model.to(options.device).eval()
    write_weights(weights_path(config, options.output), model)
    weights = sum(parameter.numel() for parameter in model.parameters())
    metrics = evaluate(model) | {"weights": weights}
    seconds["evaluation"] = time.perf_counter() - started
    return make_result(experiment, config, metrics, seconds, options.device)


def load_row(model: Model, config: Any, folder: Path) -> Model:
    """The model of a row, with the weights that `run_row` left in the output folder."""
    model.load_state_dict(read_weights(weights_path(config, folder)))
    return model.eval()
