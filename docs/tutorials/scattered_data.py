"""
Scattered data
==============

Points need not lie on a grid, and results may be at other points. Here an image is known at a random twentieth of its
pixels, and filled in.
"""

import matplotlib.pyplot as plt
import torch
from skimage import data

import permutohedral as ph

torch.manual_seed(0)
picture = torch.from_numpy(data.camera()[::2, ::2].copy()).float() / 255
height, width = picture.shape
positions = ph.features.positions((height, width))
known = torch.randperm(height * width)[: height * width // 20]
values = picture.flatten()[known, None]
print(f"{len(known)} of {height * width} pixels are known")

# %%
# One bandwidth
# -------------
#
# With ``target_features`` the results are at all pixels. A Gaussian as wide as the gaps fills them, and a wider one
# blurs. Without a known point nearby, the result is zero.


def fill(sigma: float) -> torch.Tensor:
    return ph.gaussian_filter(values, positions[known] / sigma, positions / sigma).reshape(
        height, width
    )


def decibels(result: torch.Tensor) -> float:
    return float(-10 * (result - picture).square().mean().log10())


single = {sigma: decibels(fill(sigma)) for sigma in (1.0, 2.0, 3.0, 4.0, 8.0)}
for sigma, quality in single.items():
    print(f"sigma = {sigma:g} pixels: {quality:.2f} dB")

# %%
# Coarse to fine
# --------------
#
# Start with a wide Gaussian, which reaches every pixel. A narrower one then filters the residual at the known points. A
# channel of ones measures how much mass reaches each pixel; the correction counts where it is large.

result = fill(8.0)
for sigma in (4.0, 2.0):
    missed = values - result.flatten()[known, None]
    with_mass = torch.cat([missed, torch.ones_like(missed)], dim=1)
    filtered = ph.gaussian_filter(
        with_mass, positions[known] / sigma, positions / sigma, normalization="none"
    )
    correction = filtered[:, 0] / (filtered[:, 1] + filtered[:, 1].median() / 2)
    result = result + correction.reshape(height, width)
    print(f"with sigma = {sigma:g}: {decibels(result):.2f} dB")
assert decibels(result) > max(single.values())

# %%
sampled = torch.zeros(height * width).scatter(0, known, values[:, 0]).reshape(height, width)
pictures = {"known": sampled, "sigma = 3": fill(3.0), "coarse to fine": result, "true": picture}
_, axes = plt.subplots(1, len(pictures), figsize=(14, 3.8))
for axis, (title, image) in zip(axes, pictures.items(), strict=True):
    axis.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title)
    axis.set_axis_off()

# %%
# Several point sets in a batch
# -----------------------------
#
# Point sets of different sizes form a *ragged* batch: their points are concatenated, and ``batch`` has the item of
# each. Items never mix, even where their points coincide.

sizes = [500, 2000, 120]
points = torch.cat([torch.randn(size, 3) for size in sizes])
item = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
lattice = ph.build_lattice(points * 2, batch=item, neighborhood_size=1)
layer = ph.nn.PermutohedralConv(in_channels=4, out_channels=8, dimension=3)
output = layer(torch.randn(len(points), 4), lattice)
print(lattice)
print("result", list(output.shape))

# %%
# Point sets of one size have a batch axis: ``features [batch, points, d]``, ``values [batch, points, channels]``.
# Networks on points: :doc:`train a PCNN <train_a_pcnn>`, :doc:`laser scans </guide/laser_scans>`.
