"""
Bilateral features
==================

Features define which points are near. This tutorial sharpens a coarse depth map with a photo (joint bilateral
upsampling). ``ph.upsample`` does it in one call.
"""

import matplotlib.pyplot as plt
import torch
from skimage import data
from torch.nn.functional import interpolate

import permutohedral as ph

photo = torch.from_numpy(data.astronaut()).permute(2, 0, 1).float()[:, 20:276, 100:356] / 255
height, width = photo.shape[1:]

# %%
# This depth map is made up: nearer where the photo is brighter, in steps whose edges are edges of the photo.

depth = (photo.mean(dim=0, keepdim=True) * 4).round() / 4
factor = 8
coarse = interpolate(depth[None], scale_factor=1 / factor, mode="area")[0]
print("known:", list(coarse.shape), "wanted:", list(depth.shape))

# %%
# Source and target features
# --------------------------
#
# A coarse pixel is at the center of its eight by eight pixels, and has their mean color. Positions and colors are
# divided by their bandwidths. ``ph.features.bilateral`` joins both for one image, and shifts them; two images that are
# filtered together need the same features.

sigma_space, sigma_color = 6.0, 0.08
coarse_photo = interpolate(photo[None], scale_factor=1 / factor, mode="area")[0]
middle = ph.features.positions((height // factor, width // factor)) * factor + (factor - 1) / 2
source = ph.features.join(middle / sigma_space, ph.features.colors(coarse_photo, sigma_color))
places = ph.features.positions((height, width), sigma_space)
target = ph.features.join(places, ph.features.colors(photo, sigma_color))
print("source features", list(source.shape), "target features", list(target.shape))

# %%
# Filter from one to the other
# ----------------------------
#
# A target with no source of similar color would stay empty, so a second, wider Gaussian fills it. A channel of ones
# measures how much mass reaches a target.

values = ph.features.colors(coarse)
with_mass = torch.cat([values, torch.ones_like(values)], dim=1)
narrow = ph.gaussian_filter(with_mass, source, target, normalization="none")
wide = ph.gaussian_filter(with_mass, source / 4, target / 4, normalization="none")
filled = narrow + 1e-3 * wide
upsampled = (filled[:, :1] / filled[:, 1:]).T.reshape(1, height, width)
bilinear = interpolate(coarse[None], scale_factor=factor, mode="bilinear")[0]


def error(result: torch.Tensor) -> float:
    return float((result - depth).square().mean().sqrt())


print(f"root mean square error: bilinear {error(bilinear):.3f}, guided {error(upsampled):.3f}")
assert error(upsampled) < error(bilinear)

# %%
pictures = {
    "photo": photo,
    "known": coarse,
    "bilinear": bilinear,
    "guided": upsampled,
    "true": depth,
}
_, axes = plt.subplots(1, len(pictures), figsize=(15, 3.4))
for axis, (title, image) in zip(axes, pictures.items(), strict=True):
    axis.imshow(image.permute(1, 2, 0).squeeze(-1).numpy(), cmap="magma", vmin=0, vmax=1)
    axis.set_title(title)
    axis.set_axis_off()

# %%
# Other features
# --------------
#
# Time in a video, normals of a surface or channels of a network can be features, too. ``ph.features.join`` concatenates
# them. Every dimension adds lattice points and :doc:`taps <choosing_s_and_scale>`. Use learned filters up to about six
# dimensions; the separable Gaussian goes further.

time = torch.full((height * width, 1), 3.0)
video = ph.features.join(target, time / 2.0)
print("position, color and time:", list(video.shape))
