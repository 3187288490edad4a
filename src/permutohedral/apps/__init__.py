"""Applications, provisional: one function per job on files, and networks with trained weights, imported lazily."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from permutohedral.apps.jobs.arrays import FilteredArray as FilteredArray
    from permutohedral.apps.jobs.arrays import filter_array as filter_array
    from permutohedral.apps.jobs.clouds import segment_cloud as segment_cloud
    from permutohedral.apps.jobs.clouds import smooth_cloud as smooth_cloud
    from permutohedral.apps.jobs.images import denoise_image as denoise_image
    from permutohedral.apps.jobs.images import filter_image as filter_image
    from permutohedral.apps.jobs.maps import colorize_image as colorize_image
    from permutohedral.apps.jobs.maps import solve_map as solve_map
    from permutohedral.apps.jobs.maps import upsample_map as upsample_map
    from permutohedral.apps.jobs.segmentation import SegmentedImage as SegmentedImage
    from permutohedral.apps.jobs.segmentation import segment_image as segment_image
    from permutohedral.apps.models.image_denoiser import Denoiser as Denoiser
    from permutohedral.apps.models.point_segmentation import PointSegmenter as PointSegmenter

# public functions and classes, and their modules
_MODULES = {
    "filter_image": "jobs.images",
    "denoise_image": "jobs.images",
    "segment_image": "jobs.segmentation",
    "SegmentedImage": "jobs.segmentation",
    "upsample_map": "jobs.maps",
    "solve_map": "jobs.maps",
    "colorize_image": "jobs.maps",
    "filter_array": "jobs.arrays",
    "FilteredArray": "jobs.arrays",
    "smooth_cloud": "jobs.clouds",
    "segment_cloud": "jobs.clouds",
    "Denoiser": "models.image_denoiser",
    "PointSegmenter": "models.point_segmentation",
}

# modules and their extras of the package
_EXTRAS = {"jobs.arrays": "dask", "jobs.clouds": "clouds"}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        error.add_note(f"apps.{name} needs an extra: pip install 'permutohedral[{_EXTRAS.get(module, 'images')}]'")
        return _missing(error)


def _missing(error: ModuleNotFoundError) -> Callable[..., NoReturn]:
    """Return a function that raises `error`, so that `help` and `hasattr` work without the extra."""

    def missing(*_: Any, **__: Any) -> NoReturn:
        """Raise `ModuleNotFoundError`: this function needs an extra of the package."""
        raise error

    return missing


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
