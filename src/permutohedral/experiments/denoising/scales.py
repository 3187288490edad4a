"""The scale of the features, chosen on the validation images as in the paper."""

from __future__ import annotations

from dataclasses import replace

from permutohedral.experiments.denoising.run import DenoisingConfig, evaluate, load
from permutohedral.experiments.experiment import Tell
from permutohedral.experiments.result import Result, describe_environment, write_result
from permutohedral.experiments.training import RunOptions
from permutohedral.models.denoising import PermutohedralDenoiser

SIGMA_SPACES = (1.0, 1.25, 1.5, 1.75, 2.0)
SIGMA_RANGES = (0.175, 0.2, 0.225, 0.25, 0.3)


def choose_scales(configs: list[DenoisingConfig], options: RunOptions, tell: Tell) -> list[DenoisingConfig]:
    """The rows with the best scale on the validation images, which is also written to `scales.json`."""
    scales = cross_validate(configs[0], options, configs[0].test_images, tell)
    write_result(scales, options.output / "scales.json")
    return [with_scale(config, scales) for config in configs]


def cross_validate(config: DenoisingConfig, options: RunOptions, limit: int | None, tell: Tell) -> Result:
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
            tell(f"sigma_space {sigma_space:g} pixels, sigma_range {sigma_range:g}: {mean:.3f} dB")
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
