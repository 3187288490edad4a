# %% [markdown]
# # Your own laser scans
#
# Networks that give every point of a cloud a class, trained on classified files of your own: what `train-points` and
# `segment-points` do, step by step, on a small town that is made here. With files of your own, begin with the commands
# at the end.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from permutohedral.clouds.scenes import Cropping
from permutohedral.clouds.segment import segment_file
from permutohedral.data.cloud_files import read_cloud
from permutohedral.experiments.lidar.own_files import OwnTraining, train_on_files
from permutohedral.experiments.training import RunOptions

GROUND, TREE, HOUSE = 2, 5, 6
folder = Path(tempfile.mkdtemp())


# %% [markdown]
# ## A file with classes
#
# Houses have flat roofs, trees are full of points, and the ground slopes. Positions are in meters, anywhere on the map;
# classes have the numbers of the LAS standard. `.laz`, `.las` and `.ply` files hold the same.


# %%
def make_town(seed: int, side: float = 60.0, points: int = 8000) -> Path:
    random = np.random.default_rng(seed)
    flat = random.uniform(0, side, size=(points, 2))
    height, labels = 0.05 * flat[:, 0], np.full(points, GROUND, dtype=np.uint8)
    for center in random.uniform(8, side - 8, size=(4, 2)):
        house = (np.abs(flat - center) < random.uniform(3, 6)).all(axis=1)
        height[house], labels[house] = height[house] + 6, HOUSE
    for center in random.uniform(4, side - 4, size=(5, 2)):
        tree = (np.linalg.norm(flat - center, axis=1) < random.uniform(2, 4)) & (labels == GROUND)
        height[tree] += random.uniform(2, 9, size=int(tree.sum()))
        labels[tree] = TREE
    height += 0.03 * random.normal(size=points)
    path = folder / f"town{seed}.npz"
    positions = np.column_stack([flat + np.array([676_000.0, 246_000.0]), height + 500])
    np.savez(path, positions=positions, classification=labels)
    return path


north, south = make_town(seed=1), make_town(seed=2)

# %% [markdown]
# ## Train
#
# Crops of the towns are turned, mirrored, scaled and thinned out. Real scans need the 1,500 steps of 8 crops that
# `train-points` takes by default, minutes on a GPU; this town is learned in a few.

# %%
torch.manual_seed(0)
classes = {"ground": (GROUND,), "tree": (TREE,), "house": (HOUSE,)}
training = OwnTraining(classes, steps=20, crops=2, cropping=Cropping(20.0, 30.0, points=2000))
network = folder / "network.safetensors"
learned = train_on_files([north], network, training, RunOptions(folder / "training", progress=False, accelerator="cpu"))
print(f"{100 * learned:.1f} % of the points that were learned are right")

# %% [markdown]
# ## Apply it to a file that was not learned
#
# The result is a copy of the file with other classes. What is told about the files that were learned means little; a
# file that was kept aside tells what the network knows.

# %%
output = folder / "classified.npz"
counts = segment_file(south, output, network, folder / "classes.png", "cpu")
truth, found = read_cloud(south).labels, read_cloud(output).labels
assert truth is not None
assert found is not None
right = float((truth == found).float().mean())
print(counts, f"{100 * right:.1f} % of the town that was kept aside are right")
assert right > 0.8

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4.2))
positions = read_cloud(south).positions
for axis, title, labels in zip(axes, ("true", "found"), (truth, found), strict=True):
    axis.scatter(positions[:, 0], positions[:, 1], c=labels, s=1, cmap="viridis")
    axis.set(title=title, aspect="equal", xticks=[], yticks=[])

# %% [markdown]
# ## The same from the command line
#
# ```bash
# permutohedral train-points north.laz west.laz network.safetensors --class ground=2 --class tree=5 --class house=6
# permutohedral segment-points south.laz classified.laz --model network.safetensors --picture classes.png
# ```
#
# [Laser scans](../laser_scans.md) has all options, what the network sees, and how good it is on real scans.
