"""Make the weights of color upsampling in the package: `python -m experiments.upsampling.ship FOLDER OUTPUT`."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.results import read_result, read_weights, weights_path
from experiments.upsampling.run import EXPERIMENTS
from permutohedral.models.color_upsampling import ColorUpsampler, save_color_upsamplers

# the last row that has a factor supplies its weights
ROWS = ("kept_learned", "kept_learned_wide")


def main() -> None:
    """Read the rows and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="output folder of the experiment")
    parser.add_argument("output", type=Path, help="file of weights to write")
    arguments = parser.parse_args()
    experiment, models = EXPERIMENTS["upsampling"], {}
    for config in experiment.choose_rows(ROWS):
        metrics = read_result(experiment.result_path(config, arguments.folder)).metrics
        for factor, found in metrics.items():
            model = ColorUpsampler(**found["settings"])
            model.load_state_dict(read_weights(weights_path(config, arguments.folder, f"-{factor}")))
            models[int(factor)] = model
    save_color_upsamplers(models, arguments.output)


if __name__ == "__main__":
    main()
