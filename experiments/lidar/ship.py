"""Make the weights for laser scans in the package: `python -m experiments.lidar.ship FOLDER OUTPUT`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from experiments.data.lidar import CLASSES
from experiments.lidar.run import EXPERIMENTS
from experiments.lidar.scenes import VALUE_CHANNELS
from experiments.results import read_weights, weights_path
from permutohedral.apps import PointSegmenter

# numbers of the classes in the LAS standard
_NUMBERS = (2, 5, 6)
# first and last layer that read the values
_ENTER, _HEAD = "network.encoder.enter.weight", "network.head.0.weight"


def main() -> None:
    """Write the network of one row and seed, with its description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="output folder of the experiment")
    parser.add_argument("output", type=Path, help="file of weights to write")
    parser.add_argument("--row", default="unet_linear", help="default: unet_linear")
    parser.add_argument("--seed", type=int, default=1, help="of the training (default: 1)")
    arguments = parser.parse_args()
    [config] = EXPERIMENTS["lidar"].choose_rows([arguments.row])
    config = replace(config, seed=arguments.seed)
    weights = read_weights(weights_path(config, arguments.folder))
    if config.above != "nothing":
        parser.error(f"--row {arguments.row} reads heights; pass a row of positions alone")
    # without the channels of the heights, which are zero
    weights[_ENTER] = weights[_ENTER][:, VALUE_CHANNELS:]
    weights[_HEAD] = weights[_HEAD][:, :-VALUE_CHANNELS]
    network = PointSegmenter(0, dict(zip(CLASSES, _NUMBERS, strict=True)), **config.options)
    network.load_state_dict(weights)
    network.save(arguments.output)


if __name__ == "__main__":
    main()
