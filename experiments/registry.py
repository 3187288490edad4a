"""List of the experiments. Reading it loads neither torch nor any network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.experiment import Experiment

# by name: the module whose `EXPERIMENTS` defines it, and a summary
REGISTRY = {
    "denoising": ("experiments.denoising.run", "Denoise photographs: Table (b) of the paper."),
    "deep_denoising": ("experiments.denoising.deep", "Denoise photographs with deep networks on the lattice."),
    "grids": ("experiments.grids.run", "Filter photographs on the lattice, and on dense and hashed grids."),
    "mnist": ("experiments.mnist.run", "Recognize digits from scattered samples: Table (a) of the paper."),
    "sampling": ("experiments.mnist.run", "Recognize digits from clustered, incomplete and foveated samples."),
    "rotation": ("experiments.invariance.run", "Recognize rotated digits after training on upright ones."),
    "scale": ("experiments.invariance.run", "Recognize scaled digits after training on one size."),
    "mri": ("experiments.mri.run", "Reconstruct images from radial and spiral samples of their spectrum."),
    "upsampling": ("experiments.upsampling.run", "Upsample depth and color along the edges of an image."),
    "features": ("experiments.upsampling.run", "Upsample the features of a network along the edges of an image."),
    "lidar": ("experiments.lidar.run", "Classify ground, vegetation and buildings in laser scans."),
    "points": ("experiments.points.run", "Classify point clouds on the lattice, on voxels, and with PointNet++."),
    "grabcut": ("experiments.grabcut.run", "Cut objects out of photographs with dense CRFs."),
    "fields": ("experiments.fields.run", "Learn surfaces and waves behind encodings of positions."),
}


def load_experiment(name: str) -> Experiment[Any]:
    """Import the experiment of this name."""
    experiment: Experiment[Any] = importlib.import_module(REGISTRY[name][0]).EXPERIMENTS[name]
    return experiment
