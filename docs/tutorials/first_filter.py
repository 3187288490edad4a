"""
First filter
============

Smooth a photo and keep its edges. Every pixel becomes a point with five coordinates, two of position and three of
color. A Gaussian averages over points that are near each other in all five.
"""

import matplotlib.pyplot as plt
import torch
from skimage import data

import permutohedral as ph

photo = torch.from_numpy(data.astronaut()).permute(2, 0, 1).float() / 255
smooth = ph.bilateral_filter(photo, sigma_space=16.0, sigma_color=0.15)
print(photo.shape, "to", smooth.shape)


# %%
def show(*pictures: tuple[str, torch.Tensor]) -> None:
    _, axes = plt.subplots(1, len(pictures), figsize=(4 * len(pictures), 4.2), squeeze=False)
    for axis, (title, image) in zip(axes[0], pictures, strict=True):
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
        axis.set_title(title)
        axis.set_axis_off()


show(("photo", photo), ("filtered: 16 pixels, 0.15 in color", smooth))

# %%
# The two bandwidths
# ------------------
#
# ``sigma_space`` is the standard deviation of the Gaussian in pixels, ``sigma_color`` that in color, in the units of
# the image (here white is 1). A wide ``sigma_color`` averages across edges; a narrow one keeps even faint ones.

detail = photo[:, 20:200, 130:310]
show(
    *(
        (f"sigma_color = {s}", ph.bilateral_filter(detail, sigma_space=8.0, sigma_color=s))
        for s in (0.05, 0.15, 0.6)
    )
)

# %%
# The same, by hand
# -----------------
#
# ``bilateral_filter`` is three lines: features of the image, values of the image, and the Gaussian of one feature unit.
# Dividing by a bandwidth makes it one unit.

features = ph.features.bilateral(photo, sigma_space=16.0, sigma_color=0.15)
values = ph.features.colors(photo)
by_hand = ph.gaussian_filter(values, features).T.reshape(photo.shape)
print("features", list(features.shape), "values", list(values.shape))
assert torch.equal(by_hand, smooth)

# %%
# Other filters in its place
# --------------------------
#
# ``permutohedral_filter`` takes any filter, with one weight (or one matrix from input to output channels) per tap; the
# layers in ``ph.nn`` learn them. Here the taps are a Gaussian, cut off after one step. The image minus its result shows
# what the filter removes: texture and noise.

lattice = ph.build_lattice(features, neighborhood_size=1)
print(lattice.neighborhood.filter_size, "taps,", lattice.num_lattice_points, "lattice points")
weight = ph.lattice.gaussian_weight(dimension=5, neighborhood_size=1)
mean = ph.permutohedral_filter(values, lattice, weight, normalization="homogeneous")
taken = (values - mean).T.reshape(photo.shape)
show(("removed by the filter, four times", 0.5 + 4 * taken))

# %%
# Next: :doc:`your own features <bilateral_features>`, :doc:`scattered points <scattered_data>`, or
# :doc:`training <train_a_pcnn>`.
