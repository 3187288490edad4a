"""Makes the weights of color upsampling that come with the package out of the trained row of the experiment.

`python -m permutohedral.experiments.upsampling.ship results/upsampling`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from permutohedral.experiments.result import read_result
from permutohedral.experiments.upsampling.learned import read_models
from permutohedral.models.color_upsampling import save_color_upsamplers

ROW = "kept_learned"


def main() -> None:
    """Read the row and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what the experiment wrote")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / "weights" / "upsampling.safetensors")
    arguments = parser.parse_args()
    metrics = read_result(arguments.folder / f"{ROW}.json").metrics
    models = read_models(arguments.folder, ROW, {int(factor): each["settings"] for factor, each in metrics.items()})
    save_color_upsamplers(models, arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
