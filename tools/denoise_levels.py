"""What the shipped denoisers do to noise of several levels: `python tools/denoise_levels.py --data FOLDER`.

Behind the choice of `auto` and the table in docs/denoising.md. Takes a minute on one core. The deep networks were
trained on the val images, too: the levels can be compared, the figures are no test results.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from permutohedral.data.bsds500 import GrayImage, add_noise, load_images
from permutohedral.experiments.denoising.run import center
from permutohedral.experiments.result import Result, describe_environment, write_result
from permutohedral.models import pretrained
from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.reporting.quality import psnr

LEVELS = (5.0, 10.0, 15.0, 20.0, 25.0, 35.0, 50.0, 75.0)
MODELS = ("pcnn_cnn", "deep_small", "deep_large")
IMAGES, CENTER = 12, 160


def mean_psnr(name: str, noise: float, images: list[GrayImage]) -> float:
    """Of one model on all images, in dB."""
    denoiser = ImageDenoiser(name)
    scores = [psnr(denoiser(add_noise(image, noise / 255)[None], noise / 255)[0], image.pixels) for image in images]
    return sum(scores) / len(scores)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="Measure the shipped denoisers at several levels of noise.")
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--output", type=Path, default=Path("results/denoising/levels.json"))
    arguments = parser.parse_args()
    # also where the deep networks would be refused
    pretrained._LEAST_SHARE = 0.0
    images = [center(image, CENTER) for image in load_images("val", arguments.data, IMAGES)]
    table: dict[str, dict[str, float]] = {name: {} for name in MODELS}
    for noise in LEVELS:
        for name in MODELS:
            table[name][f"{noise:g}"] = mean_psnr(name, noise, images)
        print(f"noise {noise:g}:", {name: round(scores[f"{noise:g}"], 2) for name, scores in table.items()}, flush=True)
    config = {"levels": LEVELS, "val_images": IMAGES, "center": CENTER}
    environment = describe_environment(torch.device("cpu"))
    write_result(Result("denoising", "levels", config, {"psnr": table}, 0, environment=environment), arguments.output)


if __name__ == "__main__":
    main()
