"""Makes the weights of color upsampling that come with the package out of the trained rows of the experiment.

`python -m permutohedral.experiments.upsampling.ship results/upsampling`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from permutohedral.experiments.result import read_result
from permutohedral.experiments.upsampling.learned import read_models
from permutohedral.models.color_upsampling import save_color_upsamplers

# of a factor that several have, the last is taken
ROWS = ("kept_learned", "kept_learned_wide")


def main() -> None:
    """Read the rows and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what the experiment wrote")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / "weights" / "upsampling.safetensors")
    arguments = parser.parse_args()
    models = {}
    for row in ROWS:
        metrics = read_result(arguments.folder / f"{row}.json").metrics
        settings = {int(factor): each["settings"] for factor, each in metrics.items()}
        models.update(read_models(arguments.folder, row, settings))
    save_color_upsamplers(models, arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
