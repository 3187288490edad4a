"""
A neural field
==============

A picture as a function of position: learned features on lattices, and a small network.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage import data
from torch import nn

import permutohedral as ph

torch.manual_seed(0)
picture = torch.from_numpy(data.astronaut()[:256, 100:356].copy()).float() / 255
size = len(picture)
axis = (torch.arange(size) + 0.5) / size
positions = torch.cartesian_prod(axis, axis)

# %%
# Train
# -----
#
# The finest cells are about a pixel. A checkerboard of pixels is held out.

encoding = ph.nn.PermutohedralEncoding(
    2, num_levels=8, table_size=2**13, sigmas=np.geomspace(0.25, 0.004, 8)
)
field = nn.Sequential(encoding, nn.Linear(encoding.out_features, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(field.parameters(), lr=0.01)
seen = (torch.arange(size)[:, None] + torch.arange(size)) % 2 == 0
points, colors = positions[seen.flatten()], picture[seen]
for _ in range(300):
    batch = torch.randint(len(points), (8192,))
    loss = (field(points[batch]) - colors[batch]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# Evaluate
# --------
#
# The field is defined between the pixels, and has a gradient there.

with torch.no_grad():
    fitted = field(positions).view(size, size, 3)
decibels = -10 * (fitted - picture)[~seen].square().mean().log10()
print(
    f"held-out pixels: {decibels:.1f} dB, {sum(each.numel() for each in field.parameters()):,} parameters"
)
assert decibels > 25

leaf = positions.clone().requires_grad_()
(slope,) = torch.autograd.grad(field(leaf).sum(), leaf)
_, axes = plt.subplots(1, 3, figsize=(12, 4))
images = {
    "picture": picture,
    "field": fitted.clamp(0, 1),
    "slope": slope.norm(dim=1).view(size, size),
}
for panel, (title, image) in zip(axes, images.items(), strict=True):
    panel.imshow(image.numpy(), vmax=float(image.quantile(0.99)), cmap="gray")
    panel.set_title(title)
    panel.axis("off")
