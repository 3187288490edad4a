"""
Your own laser scans
====================

Train a network that classifies the points of a cloud, and apply it. The files are small towns that are made here.
The same lines train on your own files.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from permutohedral import apps
from permutohedral.apps import PointSegmenter
from permutohedral.apps.io.clouds import read_cloud

GROUND, TREE, HOUSE = 2, 5, 6
folder = Path(tempfile.mkdtemp())


# %%
# A file with classes
# -------------------
#
# Houses have flat roofs, trees are full of points, and the ground slopes. Positions are in meters, anywhere on the map;
# classes have the numbers of the LAS standard. ``.laz``, ``.las`` and ``.ply`` files hold the same.


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

# %%
# Train
# -----
#
# The network sees positions in meters near the origin and no other values. Each step takes the town turned about the
# vertical. Real scans are larger than a step: draw squares of 30 to 50 m from several files, and train for a thousand
# steps on a GPU.

numbers = {"ground": GROUND, "tree": TREE, "house": HOUSE}
cloud = read_cloud(north)
assert cloud.labels is not None
positions = (cloud.positions - cloud.positions.mean(dim=0)).float()
labels = torch.stack([cloud.labels == number for number in numbers.values()]).int().argmax(dim=0)
values, item = torch.zeros(len(positions), 0), torch.zeros(len(positions), dtype=torch.int32)

torch.manual_seed(0)
network = PointSegmenter(in_channels=0, classes=numbers, channels=(16, 24, 40))
optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
for _ in range(30):
    angle = 2 * torch.pi * torch.rand(())
    rotation = torch.eye(3)
    rotation[:2, :2] = torch.tensor([[angle.cos(), angle.sin()], [-angle.sin(), angle.cos()]])
    loss = cross_entropy(network(values, positions @ rotation, item), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss after the last step: {loss:.3f}")

model = folder / "model.safetensors"
network.save(model)

# %%
# Apply it to another file
# ------------------------
#
# The output is a copy of the file with other classes. Measure accuracy on files that were not used for training.

output = folder / "classified.npz"
[result] = apps.segment_cloud(
    south, output, model=model, image=folder / "classes.png", device="cpu"
)
truth, found = read_cloud(south).labels, read_cloud(output).labels
assert truth is not None
assert found is not None
right = float((truth == found).float().mean())
print(result.classes, f"{100 * right:.1f} % of the test points are right")
assert right > 0.8

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4.2))
positions = read_cloud(south).positions
for axis, title, labels in zip(axes, ("true", "found"), (truth, found), strict=True):
    axis.scatter(positions[:, 0], positions[:, 1], c=labels, s=1, cmap="viridis")
    axis.set(title=title, aspect="equal", xticks=[], yticks=[])

# %%
# The command ``permutohedral cloud segment south.laz classified.laz --model model.safetensors`` does the same.
# :doc:`Laser scans </guide/laser_scans>` has all options, what the network sees, and how good it is on real scans.
