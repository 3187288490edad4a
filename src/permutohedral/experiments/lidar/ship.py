"""Makes the weights that come with the package: `python -m permutohedral.experiments.lidar.ship FOLDER OUTPUT`.

FOLDER is where `permutohedral reproduce lidar` left its results; the network of a row is taken, of one seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from permutohedral.clouds.weights import STANDARD_CLASSES, Description, save_segmenter
from permutohedral.experiments.config import parse_config
from permutohedral.experiments.lidar.run import LidarConfig, build_model
from permutohedral.experiments.result import read_result
from permutohedral.experiments.trained_row import load_row


def ship(folder: Path, output: Path, row: str = "unet_linear", seed: int = 1) -> None:
    """Write the network of a row, with what describes it, into one file."""
    config = parse_config(LidarConfig, read_result(folder / "runs" / f"{row}-{seed}.json").config)
    network = load_row(build_model(config), config, folder)
    save_segmenter(network, Description(config.model, dict(config.options), STANDARD_CLASSES, config.above), output)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Write the network for laser scans that comes with the package.")
    parser.add_argument("folder", type=Path, help="where reproduce lidar left its results")
    parser.add_argument("output", type=Path, help="the file of weights to write")
    parser.add_argument("--row", default="unet_linear", help="whose network")
    parser.add_argument("--seed", type=int, default=1, help="of the training")
    arguments = parser.parse_args()
    ship(arguments.folder, arguments.output, arguments.row, arguments.seed)


if __name__ == "__main__":
    main()
