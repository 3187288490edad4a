"""Pictures of the guide: commands, a dense CRF, a laser scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from skimage import data
from torch.nn import functional

import permutohedral as ph
from figures.photographs import COLORS, draw_panels, rough_labels
from permutohedral import apps
from permutohedral.apps.io.labels import LabelMap, blend_labels

GROUND, TREE, HOUSE = 2, 5, 6


def draw_commands(folder: Path) -> Figure:
    """Run each command on images, and show its input and its output."""
    photo = data.coffee()[:384, :592]
    height, width = photo.shape[:2]
    gray = photo.mean(axis=2).astype(np.uint8)
    noisy = np.clip(photo + np.random.default_rng(0).normal(0, 25, photo.shape), 0, 255).astype(np.uint8)
    labels = (255 * COLORS[rough_labels()[:384, :592]]).byte().numpy()
    coarse = functional.adaptive_avg_pool2d(torch.from_numpy(gray).float()[None], (height // 16, width // 16))[0]
    inputs = {"photo": photo, "noisy": noisy, "labels": labels, "coarse": coarse.byte().numpy()}
    for name, pixels in inputs.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")

    def path(name: str) -> Path:
        return folder / f"{name}.png"

    apps.filter_image(path("photo"), path("filtered"), sigma_space=16, sigma_color=0.15)
    apps.denoise_image(path("noisy"), path("denoised"), sigma=25)
    apps.segment_image(
        path("photo"), path("segmented"), labels=path("labels"), overlay=path("overlay"), sigma_space=40, strength=15
    )
    apps.upsample_map(path("coarse"), path("upsampled"), guide=path("photo"))
    titles = {"photo": "photo.png", "filtered": "image filter", "noisy": "noisy.png", "denoised": "image denoise"}
    titles |= {"labels": "labels.png", "overlay": "image segment --overlay", "coarse": "map.png"}
    titles["upsampled"] = "map upsample"
    read = {title: np.array(Image.open(path(name)).convert("RGB")) for name, title in titles.items()}
    return draw_panels({title: torch.from_numpy(image).permute(2, 0, 1) for title, image in read.items()}, 4, 4.4)


def draw_crf() -> Figure:
    """Show rough labels before and after steps of the mean field."""
    photo = torch.from_numpy(data.coffee()).permute(2, 0, 1).float() / 255
    labels = rough_labels()
    energies = ph.crf.energies_from_labels(labels, 3, certainty=0.7)
    kernels = [
        ph.crf.spatial_kernel(photo.shape[1:], 3.0, compatibility=1.0),
        ph.crf.bilateral_kernel(photo, sigma_space=40.0, sigma_color=0.03, compatibility=15.0),
    ]
    found = {"rough labels": labels}
    for count in (1, 10):
        found[f"mean field, {count} iteration{'s' * (count > 1)}"] = ph.crf.mean_field(
            energies, kernels, num_iterations=count
        ).argmax(dim=0)
    return draw_panels({title: blend_labels(photo, LabelMap(each, COLORS)) for title, each in found.items()}, 3, 3.2)
