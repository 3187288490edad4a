"""Runs the rows of a table one after another, and writes what they gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from permutohedral.errors import InputError
from permutohedral.experiments.config import parse_config, read_config, shipped_configs
from permutohedral.experiments.denoising import DenoisingConfig, evaluate, load, run
from permutohedral.experiments.result import Result, describe_environment, read_result, write_result
from permutohedral.experiments.training import RunOptions
from permutohedral.models.denoising import PermutohedralDenoiser

# the rows of the paper's table, in its order
PAPER_ROWS = ("noisy", "cnn", "pcnn_gauss", "pcnn_trained", "pcnn_cnn_trained")

SIGMA_SPACES = (1.0, 1.25, 1.5, 1.75, 2.0)
SIGMA_RANGES = (0.175, 0.2, 0.225, 0.25, 0.3)

Report = Callable[[str], None]


@dataclass(frozen=True)
class SmokeSettings:
    """What a smoke run makes of a row.

    Attributes:
        train_images: how many images to train with.
        test_images: how many to evaluate on.
        center: pixels of the square that is kept of each.
        steps: training steps at most.
    """

    train_images: int
    test_images: int
    center: int
    steps: int

    def shorten(self, config: DenoisingConfig) -> DenoisingConfig:
        """The same row, quickly."""
        training = config.training
        if training is not None:
            training = replace(training, steps=min(self.steps, training.steps), batch_size=min(4, training.batch_size))
        return replace(
            config,
            train_images=self.train_images,
            test_images=self.test_images,
            center=self.center,
            crop=min(config.crop, self.center // 2),
            training=training,
        )


def choose_rows(names: Sequence[str], files: Sequence[Path], smoke: bool) -> list[DenoisingConfig]:
    """The configurations of the rows with these names and in these files; by default the rows of the paper."""
    shipped = shipped_configs("denoising")
    if not names and not files:
        names = PAPER_ROWS
    unknown = [name for name in names if name not in shipped]
    if unknown:
        raise InputError(f"there is no row {unknown[0]!r}; there are {', '.join(shipped)}")
    configs = [read_config(DenoisingConfig, path) for path in [*(shipped[name] for name in names), *files]]
    if smoke:
        settings = read_config(SmokeSettings, shipped_configs("smoke")["denoising"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def reproduce(configs: Sequence[DenoisingConfig], options: RunOptions, report: Report) -> list[Result]:
    """Run every row and write `<row>.json` into the output folder.

    Args:
        configs: the rows.
        options: where and on what.
        report: told of every row that begins or ends.
    """
    results = []
    for config in configs:
        path = options.output / f"{config.name}.json"
        kept = _done(config, path) if options.resume else None
        if kept is not None:
            report(f"{config.title}: kept from {path}")
            results.append(kept)
            continue
        report(f"{config.title} ...")
        result = run(config, options)
        if result is None:
            continue
        write_result(result, path)
        report(f"{config.title}: {result.metrics['psnr']:.2f} dB in {sum(result.seconds.values()):.0f} s")
        results.append(result)
    return results


def _done(config: DenoisingConfig, path: Path) -> Result | None:
    """The result of an earlier run with this very configuration."""
    if not path.is_file():
        return None
    result = read_result(path)
    try:
        # settings that are younger than the result had their default then
        same = parse_config(DenoisingConfig, result.config) == config
    except InputError:
        return None
    return result if same else None


def cross_validate(config: DenoisingConfig, options: RunOptions, limit: int | None, report: Report) -> Result:
    """Try the Gaussian with every scale of the grid on the validation images; the paper chooses the scale so.

    Returns:
        `metrics["psnr"]` of every scale, and the best one as `sigma_space` and `sigma_range`.
    """
    images = load(config, "val", limit, options)
    table: dict[str, float] = {}
    best = (float("-inf"), 0.0, 0.0)
    for sigma_space in SIGMA_SPACES:
        for sigma_range in SIGMA_RANGES:
            model = PermutohedralDenoiser(sigma_space, sigma_range).to(options.device)
            scores = evaluate(model, images, config, options.device)
            mean = sum(scores.values()) / len(scores)
            table[f"{sigma_space:g}, {sigma_range:g}"] = mean
            best = max(best, (mean, sigma_space, sigma_range))
            report(f"sigma_space {sigma_space:g} pixels, sigma_range {sigma_range:g}: {mean:.3f} dB")
    return Result(
        experiment="denoising",
        name="scales",
        config={"sigma_spaces": list(SIGMA_SPACES), "sigma_ranges": list(SIGMA_RANGES), "val_images": len(images)},
        metrics={"psnr": table, "sigma_space": best[1], "sigma_range": best[2]},
        seed=config.seed,
        environment=describe_environment(options.device),
    )


def with_scale(config: DenoisingConfig, scales: Result) -> DenoisingConfig:
    """The row with the scale that cross-validation chose, where it has one."""
    if "sigma_space" not in config.options or config.model == "deep":
        return config
    chosen = {name: scales.metrics[name] for name in ("sigma_space", "sigma_range")}
    return replace(config, options=config.options | chosen)
