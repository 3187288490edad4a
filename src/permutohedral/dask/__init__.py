"""The filters over Dask arrays: data larger than memory, on one machine or many.

    import permutohedral.dask as phd

    filtered = phd.bilateral_filter(volume, sigma_space=2.0, sigma_color=0.1, axes="ZYX")   # lazy, tile by tile
    smoothed = phd.gaussian_filter(values, features)   # points in any order: one lattice of all chunks

Results equal those of the functions in memory. Needs the extra `dask`.
"""

from importlib.util import find_spec

if find_spec("dask") is None:
    raise ModuleNotFoundError("permutohedral.dask needs an extra: pip install 'permutohedral[dask]'", name="dask")

from permutohedral.dask.points import gaussian_filter
from permutohedral.dask.tiles import bilateral_filter, map_tiles
from permutohedral.dask.workers import start_workers

__all__ = ["bilateral_filter", "gaussian_filter", "map_tiles", "start_workers"]
