"""Make the weights of the package: `python -m experiments.denoising.ship OUTPUT`.

For each level of noise the scale is chosen on validation images. The weights are the least-squares solution on
training images, which takes minutes. `--deep` adds the deep network of an output folder of the experiment. `--tune`
continues its training for weaker noise, which takes two minutes per level on one core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from experiments.data.bsds500 import GrayImage, load_images
from experiments.denoising.deep import EXPERIMENTS, build_model, train
from experiments.denoising.images import center
from experiments.denoising.quadratic import QuadraticErrors, measure_quadratic_errors, set_weights, weights_of
from experiments.quality import mean_psnr
from experiments.results import read_weights, weights_path
from experiments.training import RunOptions, TrainingSettings
from permutohedral.apps.models.deep_denoising import DeepDenoiser
from permutohedral.apps.models.denoising import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from permutohedral.apps.models.pretrained import Entry, read_pretrained, save_pretrained

NOISES = (5.0, 10.0, 15.0, 25.0, 35.0, 50.0, 75.0)
# sigma_space in pixels, and sigma_color in standard deviations of the noise
SCALES = ((1.0, 2.5), (1.5, 2.25), (2.0, 2.0), (2.0, 1.5), (2.5, 1.5))

# the row that the package has under its name
DEEP_ROW = "deep_small"
# training for weaker noise starts from the network for the strongest
TUNING = TrainingSettings(
    steps=300, batch_size=6, optimizer="adam", learning_rate=0.001, weight_decay=0.0, schedule="cosine", warmup=20,
    gradient_clip=1.0,
)  # fmt: skip

_CPU = torch.device("cpu")


def _measure(scale: tuple[float, float], images: list[GrayImage], noise: float) -> QuadraticErrors:
    return measure_quadratic_errors(CombinedDenoiser(*scale), images, noise / 255, 0, _CPU)


def _part(errors: QuadraticErrors, part: slice) -> QuadraticErrors:
    """Return the errors if only some of the weights are not zero."""
    return QuadraticErrors(errors.matrix[:, part, part], errors.vector[:, part], errors.constant)


def fit_noise(noise: float, train: list[GrayImage], val: list[GrayImage]) -> list[tuple[Entry, torch.nn.Module]]:
    """Return the denoisers for one level of noise, each with its best scale on `val`."""
    scales = [(space, round(times * noise / 255, 4)) for space, times in SCALES]
    on_lattice, all_weights = slice(0, 65), slice(0, 90)
    gaussian = weights_of(PermutohedralDenoiser()).detach().double()
    scores: dict[str, dict[tuple[float, float], float]] = {"pcnn_gauss": {}, "pcnn": {}, "pcnn_cnn": {}}
    few = train[:: max(1, len(train) // 16)]
    for scale in scales:
        training, validation = _measure(scale, few, noise), _measure(scale, val, noise)
        scores["pcnn_gauss"][scale] = mean_psnr(_part(validation, on_lattice).evaluate(gaussian))
        for name, part in (("pcnn", on_lattice), ("pcnn_cnn", all_weights)):
            solution = _part(training, part).least_squares()
            scores[name][scale] = mean_psnr(_part(validation, part).evaluate(solution))
    best = {name: max(by_scale, key=by_scale.__getitem__) for name, by_scale in scores.items()}
    print(f"noise {noise:g}:", {name: (best[name], round(max(scores[name].values()), 3)) for name in best}, flush=True)

    def options(name: str) -> dict[str, float]:
        return {"sigma_space": best[name][0], "sigma_color": best[name][1]}

    shipped: list[tuple[Entry, torch.nn.Module]] = []
    gauss = PermutohedralDenoiser(*best["pcnn_gauss"])
    shipped.append((Entry("pcnn_gauss", "permutohedral", options("pcnn_gauss"), noise), gauss))
    pcnn = PermutohedralDenoiser(*best["pcnn"])
    set_weights(pcnn, _part(_measure(best["pcnn"], train, noise), on_lattice).least_squares().float())
    shipped.append((Entry("pcnn", "permutohedral", options("pcnn"), noise), pcnn))
    both, errors = CombinedDenoiser(*best["pcnn_cnn"]), _measure(best["pcnn_cnn"], train, noise)
    set_weights(both, errors.least_squares().float())
    shipped.append((Entry("pcnn_cnn", "combined", options("pcnn_cnn"), noise), both))
    spatial = SpatialDenoiser()
    set_weights(spatial, _part(errors, slice(65, 90)).least_squares().float())
    shipped.append((Entry("cnn", "spatial", {}, noise), spatial))
    return shipped


def add_deep(folder: Path, path: Path) -> None:
    """Add the deep network of the experiment's output folder to a file of weights."""
    kept = [(entry, model) for entry, model in read_pretrained(path) if entry.name != DEEP_ROW]
    [config] = EXPERIMENTS["deep_denoising"].choose_rows([DEEP_ROW])
    model = build_model(config)
    model.load_state_dict(read_weights(weights_path(config, folder)))
    save_pretrained([*kept, (Entry(DEEP_ROW, "deep", config.options, config.noise), model.eval())], path)


def tune_deep(
    noise: float, path: Path, options: RunOptions, settings: TrainingSettings = TUNING, crop: int = 96
) -> None:
    """Add a deep network for weaker noise to a file of weights that has one."""
    models = read_pretrained(path)
    strongest, model = max(
        ((entry, model) for entry, model in models if entry.name == DEEP_ROW), key=lambda pair: pair[0].noise
    )
    assert isinstance(model, DeepDenoiser)
    with torch.no_grad():
        # the same network of scaled images
        model.head.weight *= strongest.noise / noise
        model.tail.weight *= noise / strongest.noise
    [config] = EXPERIMENTS["deep_denoising"].choose_rows([DEEP_ROW])
    train(model, replace(config, training=settings, noise=noise, crop=crop, captured_rows=None), options)
    tuned = replace(strongest, noise=noise)
    kept = [(entry, model) for entry, model in read_pretrained(path) if entry != tuned]
    save_pretrained([*kept, (tuned, model.eval())], path)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Train the denoisers that come with the package.")
    parser.add_argument("output", type=Path, help="the file of weights to write")
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--train-images", type=int, default=64, help="how many of the 200")
    parser.add_argument("--val-images", type=int, default=8, help="how many to choose the scale with")
    parser.add_argument("--center", type=int, default=192, help="pixels of the central square of each")
    parser.add_argument("--deep", type=Path, help="only add the deep network of this output folder")
    parser.add_argument("--tune", type=float, nargs="+", metavar="NOISE", help="only tune the deep network")
    arguments = parser.parse_args()
    if arguments.deep is not None:
        add_deep(arguments.deep, arguments.output)
        return
    for noise in arguments.tune or ():
        with TemporaryDirectory() as folder:
            tune_deep(noise, arguments.output, RunOptions(Path(folder), arguments.data, "cpu"))
    if arguments.tune:
        return
    train_images = [center(i, arguments.center) for i in load_images("train", arguments.data, arguments.train_images)]
    val = [center(i, arguments.center) for i in load_images("val", arguments.data, arguments.val_images)]
    models = [model for noise in NOISES for model in fit_noise(noise, train_images, val)]
    save_pretrained(models, arguments.output)


if __name__ == "__main__":
    main()
