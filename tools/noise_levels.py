"""How well the noise of photographs is estimated, and what that does to them: `python tools/noise_levels.py`.

Behind the tables in docs/denoising.md: the 200 test images of BSDS500 as they are and with noise of six levels, rounded
to 8 bits. "median" is the estimate of versions before 0.2, from the median response to a filter blind to smooth areas.
Takes some ten minutes on one core.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from permutohedral.experiments.result import Result, describe_environment, write_result
from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.pictures.files import read_picture
from permutohedral.reporting.quality import psnr

LEVELS = (0.0, 2.0, 5.0, 10.0, 15.0, 25.0, 50.0)
# of every eighth picture the central pixels are denoised
EVERY, CENTER = 8, 160


def median_response(pixels: Tensor) -> float:
    """The estimate that there was before."""
    blind = torch.tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]]) / 6
    gray = pixels.sum(dim=0) / math.sqrt(pixels.shape[0])
    return float(F.conv2d(gray[None, None], blind[None, None]).abs().median()) / 0.6745


ESTIMATES: dict[str, Callable[[Tensor], float]] = {"median": median_response, "patches": estimate_noise}


def add_noise(pixels: Tensor, noise: float, seed: int) -> Tensor:
    """The picture with noise of that standard deviation, of 255, in 8 bits."""
    generator = torch.Generator().manual_seed(seed)
    noisy = 255 * pixels + noise * torch.randn(pixels.shape, generator=generator)
    return noisy.round().clamp(0, 255) / 255


def summary(numbers: list[float]) -> dict[str, float]:
    """Median, the fifth and the 95th of a hundred, and the extremes."""
    shares = {"least": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
    return {name: round(float(np.quantile(numbers, share)), 3) for name, share in shares.items()}


def center(pixels: Tensor) -> Tensor:
    """The central pixels."""
    top, left = (pixels.shape[1] - CENTER) // 2, (pixels.shape[2] - CENTER) // 2
    return pixels[:, top : top + CENTER, left : left + CENTER]


def gains(picture: Tensor, noise: float, seed: int) -> dict[str, float]:
    """By how many dB the centre of the picture comes closer to the clean one, the noise known or estimated."""
    noisy = add_noise(picture, noise, seed)
    sigmas = {"known": noise / 255} | {name: estimate(noisy) for name, estimate in ESTIMATES.items()}
    clean, before, denoise = center(picture), center(noisy), ImageDenoiser()
    first = psnr(before, clean)
    return {name: psnr(denoise(before, sigma).clamp(0, 1), clean) - first for name, sigma in sigmas.items()}


def distances(pictures: list[Tensor]) -> dict[str, dict[str, float]]:
    """How far from the input the result lies, in dB, for pictures without noise of ours; 99 where they are equal."""
    denoise = ImageDenoiser()
    found: dict[str, list[float]] = {name: [] for name in ESTIMATES}
    for picture in pictures:
        for name, estimate in ESTIMATES.items():
            result = denoise(picture, estimate(picture)).clamp(0, 1)
            found[name].append(min(psnr(result, picture), 99.0))
    return {
        name: summary(numbers) | {"share_from_45": sum(number >= 45 for number in numbers) / len(numbers)}
        for name, numbers in found.items()
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="Measure the estimate of the noise on photographs.")
    parser.add_argument("--photographs", type=Path, default=Path("../shared/data/bsds500/test"), help="folder")
    parser.add_argument("--output", type=Path, default=Path("results/denoising/noise_levels.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(arguments.photographs.glob("*.jpg"))
    pictures = [read_picture(path).pixels for path in files]
    estimates: dict[str, dict[str, dict[str, float]]] = {}
    for noise in LEVELS:
        noisy = [add_noise(picture, noise, seed) for seed, picture in enumerate(pictures)]
        estimates[f"{noise:g}"] = {
            name: summary([255 * estimate(picture) for picture in noisy]) for name, estimate in ESTIMATES.items()
        }
        print(f"noise {noise:g}:", estimates[f"{noise:g}"], flush=True)
    clean = distances(pictures)
    print("clean:", clean, flush=True)
    gained: dict[str, dict[str, float]] = {}
    for noise in LEVELS[1:]:
        rows = [gains(picture, noise, seed) for seed, picture in enumerate(pictures) if seed % EVERY == 0]
        gained[f"{noise:g}"] = {name: round(sum(row[name] for row in rows) / len(rows), 3) for name in rows[0]}
        print(f"noise {noise:g}:", gained[f"{noise:g}"], flush=True)
    config = {"levels": LEVELS, "pictures": len(files), "denoised": len(files[::EVERY]), "center": CENTER}
    metrics = {"estimates": estimates, "clean": clean, "gains": gained}
    environment = describe_environment(torch.device("cpu"))
    write_result(Result("denoising", "noise_levels", config, metrics, 0, environment=environment), arguments.output)


if __name__ == "__main__":
    main()
