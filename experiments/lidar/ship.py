"""Make the weights for laser scans in the package: `python -m experiments.lidar.ship FOLDER OUTPUT`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from experiments.lidar.run import EXPERIMENTS, build_model
from experiments.results import read_weights, weights_path
from permutohedral.files.cloud_models import STANDARD_CLASSES, Description, save_segmenter


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
    network = build_model(config)
    network.load_state_dict(read_weights(weights_path(config, arguments.folder)))
    description = Description(dict(config.options), STANDARD_CLASSES, config.above)
    save_segmenter(network.eval(), description, arguments.output)


if __name__ == "__main__":
    main()
