"""
Choosing s and scale
====================

Two choices decide what a filter on the lattice sees: the *scale*, the length of a lattice step, and ``s``, the number
of steps that the filter reaches. ``statistics()`` shows whether they fit the points.
"""

import matplotlib.pyplot as plt
import torch
from skimage import data

import permutohedral as ph

torch.manual_seed(0)
photo = torch.from_numpy(data.astronaut()[::2, ::2].copy()).permute(2, 0, 1).float() / 255

# %%
# Scale
# -----
#
# Lattice points are about one unit apart. After division by a small bandwidth every point is alone on its simplex, and
# the filter finds no neighbors. After division by a large one all points share a few simplices.

print("sigma_space  sigma_color  lattice points  points per lattice point  taps that read zero")
rows = []
for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
    sigma_space, sigma_color = 8.0 * factor, 0.1 * factor
    features = ph.features.bilateral(photo, sigma_space=sigma_space, sigma_color=sigma_color)
    found = ph.build_lattice(features, neighborhood_size=1).statistics()
    rows.append((factor, found.points_per_lattice_point, found.missing_tap_share))
    print(
        f"{sigma_space:11g}  {sigma_color:11g}  {found.num_lattice_points:14,}  "
        f"{found.points_per_lattice_point:24.2f}  {found.missing_tap_share:20.1%}"
    )

# %%
# A rule for images: at least two or three points per lattice point. Some taps always read zero, since color space is
# mostly empty. If nearly all do, a learned filter has little to learn from, and the separable Gaussian loses paths
# through the holes (``halo=1`` keeps them, and costs memory).

# %%
# The size s
# ----------
#
# A filter of size ``s`` has ``(s + 1)^(d + 1) - s^(d + 1)`` taps.

print("     " + "".join(f"{f'd = {d}':>9}" for d in range(1, 7)))
for size in (1, 2, 3):
    print(
        f"s = {size}"
        + "".join(f"{ph.lattice.Neighborhood(d, size).filter_size:9,}" for d in range(1, 7))
    )

# %%
# ``s = 1`` reaches one standard deviation in every direction; ``s = 2`` holds the whole Gaussian. Half the scale with
# twice the ``s`` sees the same part of the signal, more finely. Compare some of each: filters over (y, x, gray),
# fitted by least squares to remove noise.

gray = photo.mean(dim=0)[20:148, 40:168]
noisy = gray + 0.1 * torch.randn_like(gray)


def fitted(size: int, sigma_space: float, sigma_color: float) -> float:
    """PSNR in dB of the best filter, each tap an unknown."""
    features = ph.features.bilateral(noisy[None], sigma_space=sigma_space, sigma_color=sigma_color)
    lattice = ph.build_lattice(features, neighborhood_size=size)
    taps = lattice.neighborhood.filter_size
    # the response to each tap alone, as channels of one convolution
    weight = torch.eye(taps).reshape(taps, 1, taps)
    responses = ph.permutohedral_filter(
        noisy.reshape(-1, 1), lattice, weight, normalization="homogeneous"
    )
    solution = torch.linalg.lstsq(responses.double(), gray.reshape(-1, 1).double()).solution
    error = (responses.double() @ solution - gray.reshape(-1, 1)).square().mean()
    return float(-10 * error.log10())


scores = {}
for size, factor in ((1, 2.0), (1, 1.0), (2, 1.0), (2, 0.5)):
    scores[size, factor] = fitted(size, 2.0 * factor, 0.2 * factor)
    taps = ph.lattice.Neighborhood(3, size).filter_size
    print(f"s = {size}, scale {factor:g}: {taps:3} taps, {scores[size, factor]:.2f} dB")
assert scores[2, 1.0] > scores[1, 1.0]

# %%
_, axes = plt.subplots(1, 2, figsize=(9, 3))
axes[0].plot([row[0] for row in rows], [row[1] for row in rows], marker="o")
axes[0].set(yscale="log", xlabel="scale", title="points per lattice point")
axes[1].plot([row[0] for row in rows], [row[2] for row in rows], marker="o")
axes[1].set(xlabel="scale", title="share of taps that read zero", ylim=(0, 1))
for axis in axes:
    axis.set_xscale("log", base=2)

# %%
# In short: set the scale first, for a few points per lattice point. Take ``s = 1`` for ``d >= 4`` and ``s = 2`` below.
# Then :doc:`learn the bandwidths <learned_bandwidths>`.
