"""
Learned bandwidths
==================

Gradients reach the features, so bandwidths can be trained: here those of a bilateral filter that removes noise, then
the scale of a learned filter together with its weights.
"""

import matplotlib.pyplot as plt
import torch
from skimage import data

import permutohedral as ph

torch.manual_seed(0)
picture = torch.from_numpy(data.chelsea()[60:188, 100:228].copy()).permute(2, 0, 1).float() / 255
noisy = picture + 0.1 * torch.randn_like(picture)


def decibels(image: torch.Tensor) -> float:
    return float(-10 * (image.detach() - picture).square().mean().log10())


print(f"noisy: {decibels(noisy):.2f} dB")

# %%
# Two numbers
# -----------
#
# ``BilateralFilter(learn_sigma=True)`` holds the logarithms of its standard deviations, which keeps them positive.

layer = ph.nn.BilateralFilter(sigma_space=8.0, sigma_color=0.1, learn_sigma=True)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
history = []
for step in range(40):
    loss = (layer(noisy) - picture).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append((layer.sigma_space.item(), layer.sigma_color.item(), -10 * loss.log10().item()))
    if step % 13 == 0:
        print("step {}: {:.2f} pixels, {:.3f} in color, {:.2f} dB".format(step, *history[-1]))
print(layer)
assert history[-1][2] > history[0][2] + 1

# %%
_, axes = plt.subplots(1, 3, figsize=(12, 3))
for axis, numbers, title in zip(
    axes, zip(*history, strict=True), ("sigma_space", "sigma_color", "dB"), strict=True
):
    axis.plot(numbers)
    axis.set_title(title)
    axis.set_xlabel("step")

# %%
# Weights and scale
# -----------------
#
# A layer with ``learn_sigma=True`` also has one factor per feature dimension. It starts as the Gaussian
# (``init="gaussian"``), from the bandwidths found above.

convolution = ph.nn.PermutohedralConv(
    3, 3, dimension=5, init="gaussian", normalization="homogeneous", learn_sigma=True
)
sigmas = (layer.sigma_space.detach(), layer.sigma_color.detach())
features, values = (
    ph.features.bilateral(noisy, sigma_space=sigmas[0], sigma_color=sigmas[1]),
    ph.features.colors(noisy),
)
optimizer = torch.optim.Adam(convolution.parameters(), lr=0.02)
for _ in range(25):
    output = convolution(values, features).T.reshape(picture.shape)
    loss = (output - picture).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"bilateral filter {history[-1][2]:.2f} dB, learned filter {decibels(output):.2f} dB")
print(
    "scale of y, x, red, green, blue:", [round(number, 2) for number in convolution.scale.tolist()]
)

# %%
# A learned scale changes the lattice at every step, so ``learn_sigma`` takes features, not a lattice.
# Embeddings are learned in the same way: compute the features with a network, and its weights get gradients.
