"""Choose learning rate, cell and inputs of rows on validation data: `python -m experiments.points.tune ROW...`.

All rows try the same lists, see `PROTOCOL.md`. The scores become results with `split=validation`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from experiments.points.run import EXPERIMENTS, PointsConfig, run
from experiments.results import Result, describe_environment
from experiments.training import RunOptions

LEARNING_RATES = (0.001, 0.003, 0.01)
CELLS = {"lidar": (0.35, 0.5, 0.7, 1.0), "digits": (0.7, 1.0, 1.4, 2.0)}
INPUTS = {"lidar": (("ones",), ("height",), ("above",)), "digits": (("values",),)}
_OTHER_CELLS, _OTHER_INPUTS = (0.05, 0.07, 0.1, 0.14), (("ones",), ("height",))
_SEED = 100


def tune(config: PointsConfig, options: RunOptions) -> Result:
    """Try one list of settings after the other; return the best ones with the scores of all."""
    assert config.training is not None
    best, scores, started = replace(config, split="validation", seed=_SEED), dict[str, float](), time.perf_counter()
    lists: dict[str, Sequence[Any]] = {
        "training": [replace(config.training, learning_rate=rate) for rate in LEARNING_RATES],
        "cell": CELLS.get(config.data, _OTHER_CELLS) if config.network != "pointwise" else (config.cell,),
        "inputs": INPUTS.get(config.data, _OTHER_INPUTS),
    }
    for name, values in lists.items():
        candidates = {describe(tried): tried for tried in (replace(best, **{name: value}) for value in values)}
        for key, tried in candidates.items():
            if key not in scores:
                metrics, _ = run(tried, replace(options, output=options.output / "tuning"))
                scores[key] = next(iter(metrics["scores"].values()))["100"]["score"]
        best = candidates[max(candidates, key=scores.__getitem__)]
    seconds = {"tuning": time.perf_counter() - started}
    environment = describe_environment(options.device)
    return Result("points", config.name, asdict(best), {"tried": scores}, _SEED, seconds, environment)


def describe(config: PointsConfig) -> str:
    """Return the settings that are chosen as text."""
    assert config.training is not None
    return f"learning_rate {config.training.learning_rate:g}, cell {config.cell:g}, inputs {' '.join(config.inputs)}"


def main() -> None:
    """Choose settings of the given rows, and write the scores into the table of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="+", metavar="ROW", help="names of rows, or patterns")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--output", type=Path, default=Path("out/points"), help="default: out/points")
    arguments = parser.parse_args()
    experiment, options = EXPERIMENTS["points"], RunOptions(arguments.output, arguments.data, progress=True)
    for config in experiment.choose_rows(arguments.rows):
        if config.training is not None:
            result = tune(config, options)
            experiment.write_results([result], options.output)
            scores = result.metrics["tried"]
            print("\n".join(f"{config.name}: {key}: {score:.4f}" for key, score in scores.items()))


if __name__ == "__main__":
    main()
