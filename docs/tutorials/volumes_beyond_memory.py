"""
Volumes beyond memory
=====================

Microscopes and scanners write volumes as OME-Zarr, a store of small chunks. This tutorial makes a small one, with
voxels that are twice as deep as wide, and filters it like a store of terabytes.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import zarr

import permutohedral as ph
from permutohedral import files

random = np.random.default_rng(0)
z, y, x = np.meshgrid(np.arange(24) * 2.0, np.arange(80.0), np.arange(80.0), indexing="ij")
clean = 0.3 + 0.4 * (np.sin(z / 9) + np.sin(y / 11) + np.sin(x / 13) > 0)
noisy = (255 * np.clip(clean + 0.1 * random.standard_normal(clean.shape), 0, 1)).astype(np.uint8)

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
scale = [{"type": "scale", "scale": [2.0, 1.0, 1.0]}]
levels = [{"path": "0", "coordinateTransformations": scale}]
described = {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}}
zarr.create_group(str(folder / "noisy.zarr"), attributes=described)
zarr.create_array(
    str(folder / "noisy.zarr"), name="0", shape=noisy.shape, chunks=(12, 32, 32), dtype="uint8"
)[:] = noisy

# %%
# In memory
# ---------
#
# ``spatial_axes=3`` says that three axes follow the channels. A bandwidth for each axis is in voxels: three micrometers
# are one and a half voxels along z, and three along y and x.

sigmas = [3.0 / step for step in scale[0]["scale"]]
volume = torch.from_numpy(noisy).float()[None] / 255
smooth = ph.bilateral_filter(volume, sigmas, sigma_range=0.2, spatial_axes=3)[0].numpy()


def decibels(result: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((result - clean) ** 2)))


print(f"noisy {decibels(noisy / 255):.1f} dB, filtered {decibels(smooth):.1f} dB")
assert decibels(smooth) > decibels(noisy / 255) + 8

# %%
# From store to store
# -------------------
#
# ``permutohedral array filter noisy.zarr smooth.zarr --sigma-space 1.5,3,3 --sigma-color 0.2`` does the same. The
# output has the axes, chunks and scale of the input, and appears when it is complete.

done = files.filter_array(
    folder / "noisy.zarr", folder / "smooth.zarr", sigma_space=sigmas, sigma_color=0.2
)
result = zarr.open_group(str(folder / "smooth.zarr"), mode="r")
print("tile", done.tile, "with margins", done.margins)
print(dict(result.attrs)["ome"]["multiscales"][0]["axes"])
assert np.abs(result["0"][:] - 255 * smooth).max() <= 0.51

# %%
# As a Dask array
# ---------------
#
# ``permutohedral.dask`` filters Dask arrays lazily. Tiles are the chunks of the array with margins of the filter's
# support, so the result equals the filter of the whole.

import dask.array as da

import permutohedral.dask as phd

chunked = da.from_zarr(str(folder / "noisy.zarr"), component="0").rechunk((24, 40, 40))
lazy = phd.bilateral_filter(chunked, sigma_space=sigmas, sigma_color=0.2 * 255, axes="ZYX")
np.testing.assert_array_equal(lazy.compute(), result["0"][:])

# %%
figure, plots = plt.subplots(1, 2, figsize=(8, 4))
for plot, title, shown in zip(
    plots, ("noisy", "filtered"), (noisy[12], result["0"][12]), strict=True
):
    plot.imshow(shown, cmap="gray", vmin=0, vmax=255)
    plot.set_title(title)
    plot.set_axis_off()
plt.show()
temporary.cleanup()
