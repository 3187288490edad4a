"""
Speed and memory
================

What costs time and memory, and what to do about it. :doc:`Benchmarks </research/benchmarks>` compares with other
libraries; the figures below are of the machine that built this page.
"""

import time
from collections.abc import Callable

import torch
from skimage import data

import permutohedral as ph

photo = torch.from_numpy(data.astronaut()).permute(2, 0, 1).float() / 255
features, values = (
    ph.features.bilateral(photo, sigma_space=16.0, sigma_color=0.1),
    ph.features.colors(photo),
)


def milliseconds(call: Callable[[], object], repeats: int = 5) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1000 * sorted(times)[repeats // 2]


# %%
# Which backend runs
# ------------------
#
# The compiled core runs on the CPU, Triton kernels on a GPU. ``reference``, the readable definition, is much slower.

print(ph.backends.explain())

# %%
# Build once
# ----------
#
# Building the lattice takes most of the time of a small filter. Build it once if the features stay the same.

lattice = ph.build_lattice(features, neighborhood_size=0, separable=True)
rebuilt = milliseconds(lambda: ph.gaussian_filter(values, features))
reused = milliseconds(lambda: ph.gaussian_filter(values, lattice))
print(f"lattice and filter {rebuilt:.0f} ms, filter alone {reused:.0f} ms")

# %%
# Many images with one set of features share a lattice: ``values [batch, points, channels]`` with ``features [points,
# d]``. Channels are cheap, so filter them together.

for channels in (1, 8, 32):
    many = torch.rand(len(features), channels)
    duration = milliseconds(lambda many=many: ph.gaussian_filter(many, lattice), repeats=3)
    print(f"{channels:2} channels: {duration:.0f} ms")

# %%
# Forecast memory
# ---------------
#
# ``ph.lattice.forecast_memory`` counts bytes without allocating any. The number of lattice points is at most
# ``points * (d + 1)``. Images have far fewer; measure a smaller image.

bound = ph.lattice.forecast_memory(
    20_000_000, dimension=5, separable=True, neighborhood_size=0, channels=8
)
share = lattice.num_lattice_points / len(features)
likely = ph.lattice.forecast_memory(
    20_000_000,
    5,
    neighborhood_size=0,
    channels=8,
    num_lattice_points=int(share * 20e6),
    separable=True,
)
print(
    f"20 megapixels: at most {bound.total / 2**30:.1f} GiB, likely {likely.total / 2**30:.1f} GiB"
)
assert likely.total < bound.total

# %%
# A request beyond the free memory, or beyond ``memory_limit``, raises before anything is allocated:

try:
    ph.build_lattice(features, neighborhood_size=2, memory_limit=50_000_000)
except ph.errors.MemoryLimitError as error:
    print(error)

# %%
# Further
# -------
#
# - **Threads.** The compiled core uses as many as ``torch.get_num_threads()``, and gives the same bits for any number.
#   The environment variable ``PERMUTOHEDRAL_NUM_THREADS`` limits it, and so does the processor limit of a container.
# - **Low precision.** Values of 16 bits halve the traffic on a GPU; sums are in float32. Features stay in float32.
# - **Data loaders.** A lattice can be pickled: build it in a worker, and move it with ``lattice.to("cuda")``.
# - **Freed memory.** The compiled core keeps up to 512 MB of freed memory for its next calls. The environment variable
#   ``PERMUTOHEDRAL_KEPT_MEMORY`` sets another number of megabytes.
